"""Plan Pax's training steps for GPUs that this machine does not have.

    PYTHONPATH=. ENV/bin/python bench/plan_pax.py [--out DIR] [--kept] [CASE ...]

ENV is an environment of pax for cuda12 or cuda13. Each case runs `rosetta plan pax` in a process of
its own, which takes one to three minutes on two idle cores. Its report and its HLO stay in DIR.

The program prints a table: the communication per GPU and step, and the time and the memory that the
compilation took. Then it prints each case that cannot be planned, and each aim that a case misses.
The exit status is 1 if a case cannot be planned. The aims are:

- The peak memory is at most 80 GB.
- Parameters are gathered in bfloat16 or FP8.
- The step does not wait for parameters and gradients.
- The body of a loop has at most one all-reduce for FP8's largest values.

Less than 1 MB counts as nothing. The table also shows whether gradients are scattered while they
are reduced: then few are all-reduced.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MAX_PEAK_BYTES = 80e9
TOLERATED_BYTES = 1e6
# Parameters are split within each of 32 nodes, and each node has a copy.
HYBRID = "DCN_MESH_SHAPE=[32,1,1]"
# The experiment of each model, and its settings.
MODELS: dict[str, list[str]] = {
    "5b": ["Synthetic5B"],
    "5b-hybrid": ["Synthetic5B", HYBRID],
    "175b": ["Synthetic175B"],
    "glam64b": ["SyntheticGLaM64B64E"],
    "llama70b": ["SyntheticLLaMA70B", "USE_REPEATED_LAYER=True"],
}
# The GPU of each case, and its experiment with settings. The experiment sets the number of GPUs.
CASES: dict[str, tuple[str, list[str]]] = {
    **{name: ("h100", model) for name, model in MODELS.items()},
    **{f"{name}-fp8": ("h100", [*model, "USE_FP8=True"]) for name, model in MODELS.items()},
    **{f"{name}-a100": ("a100", model) for name, model in MODELS.items()},
}
COLUMNS = (
    "case",
    "peak, GB",
    "params gathered, GB",
    "gradients scattered, GB",
    "gradients all-reduced, GB",
    "from other nodes, GB",
    "waited for, GB",
    "activations, GB",
    "FLOPs in FP8",
    "FP8 all-reduces in a loop",
    "compiled in, s",
    "compiler's RSS, GB",
)


def summarize_report(report: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a report that the table and the aims need.

    The keys of flows are explained in rosetta.plan.traffic.
    """
    flows = report["traffic"]["flows"]

    def sum_flows(field: str, **selection: str) -> float:
        # The flows that have all keys and values of the selection.
        selected = [flow for flow in flows if selection.items() <= flow.items()]
        return sum(flow[field] or 0.0 for flow in selected)

    model_flows = [flow for flow in flows if flow["role"] in ("parameters", "gradients")]
    role_flops = report["flops_by_role"].values()
    fp8_flops = sum(flops["fp8"] for flops in role_flops)
    all_flops = sum(flops["fp8"] + flops["other"] for flops in role_flops)
    return {
        "peak": report["memory"]["peak"],
        "gathered": {
            flow["dtype"]: flow["bytes"] for flow in flows if flow["role"] == "parameters"
        },
        "scattered": sum_flows("bytes", kind="reduce-scatter", role="gradients"),
        "reduced": sum_flows("bytes", kind="all-reduce", role="gradients"),
        "across": sum_flows("across"),
        "waited": sum(flow["waited"] for flow in model_flows),
        "activations": sum_flows("bytes", role="activations"),
        "fp8": fp8_flops / all_flops,
        "largest": max((loop["largest"] for loop in report["traffic"]["loops"]), default=0),
        "seconds": report["compile"]["seconds"],
        "rss": report["compile"]["rss"],
    }


def list_missed_aims(summary: dict[str, Any]) -> list[str]:
    """Return a line for each aim that a case misses."""
    missed = []
    if summary["peak"] > MAX_PEAK_BYTES:
        missed.append(f"the peak memory is {summary['peak'] / 1e9:.1f} GB, more than 80 GB")
    wide_types = [
        dtype
        for dtype, size in summary["gathered"].items()
        if not dtype.startswith(("bf16", "f8")) and size > TOLERATED_BYTES
    ]
    if wide_types:
        missed.append(f"parameters are gathered in {', '.join(wide_types)}")
    if summary["waited"] > TOLERATED_BYTES:
        missed.append(
            f"the step waits for {summary['waited'] / 1e9:.2f} GB of parameters and gradients"
        )
    if summary["largest"] > 1:
        missed.append(f"a loop's body has {summary['largest']} all-reduces for FP8")
    return missed


def format_row(name: str, summary: dict[str, Any]) -> str:
    """Return the Markdown table row of a case."""
    by_size = sorted(summary["gathered"].items(), key=lambda item: -item[1])
    gathered = [f"{size / 1e9:.1f} {dtype}" for dtype, size in by_size if size > 1e7]
    traffic = ("scattered", "reduced", "across", "waited", "activations")
    cells = [
        name,
        f"{summary['peak'] / 1e9:.1f}",
        ", ".join(gathered),
        *(f"{summary[key] / 1e9:.2f}" for key in traffic),
        f"{summary['fp8']:.0%}",
        str(summary["largest"]),
        f"{summary['seconds']:.0f}",
        f"{summary['rss'] / 1e9:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def plan_case(name: str, out: Path) -> str:
    """Plan a case, and write its report and its HLO.

    Returns:
        The end of what the program wrote to stderr if it failed, else "".
    """
    gpu, (experiment, *settings) = CASES[name]
    argv = [sys.executable, "-m", "rosetta", "plan", "pax", experiment, "--json", "--card", gpu]
    argv += ["--hlo", f"{out}/{name}.hlo", "--with", "ATTENTION=cudnn", *settings]
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    if process.returncode:
        return process.stderr[-2000:]
    (out / f"{name}.json").write_text(json.dumps(json.loads(process.stdout)["result"]))
    return ""


def main() -> int:
    """Run the benchmark that the command line describes.

    Returns:
        The exit status: 1 if a case could not be planned, else 0.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/plan-pax"))
    parser.add_argument(
        "--kept", action="store_true", help="show the reports in --out, and compile nothing"
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"default: all of {' '.join(CASES)}"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    failures, missed_aims = [], []
    for name in args.cases or CASES:
        if not args.kept and (error := plan_case(name, args.out)):
            failures.append(f"{name}: {error}")
            continue
        path = args.out / f"{name}.json"
        if path.exists():
            summary = summarize_report(json.loads(path.read_text()))
            print(format_row(name, summary), flush=True)
            missed_aims += [f"{name}: {aim}" for aim in list_missed_aims(summary)]
    print("\n".join([*failures, *missed_aims]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
