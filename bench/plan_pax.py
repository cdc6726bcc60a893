"""What Pax's training steps do on GPUs that are not here, by the published topologies. Needs an
environment of pax for cuda12 or cuda13.

    PYTHONPATH=. ENV/bin/python bench/plan_pax.py [--out DIR] [CASE ...]

Each case is `rosetta plan pax` in a process of its own, one to three minutes on two idle cores; its
report stays in DIR. Prints a table, for a GPU and step, and where a case misses what is aimed at:
80 GB; parameters gathered in bfloat16, kernels in FP8 where they are multiplied in it; gradients
scattered as they are reduced; neither of them waited for; one all-reduce at most in a loop's body
for FP8's largest values.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MEMORY = 80e9
HYBRID = "DCN_MESH_SHAPE=[32,1,1]"  # parameters split within a node, copies across
MODELS: dict[str, list[str]] = {
    "5b": ["Synthetic5B"],
    "5b-hybrid": ["Synthetic5B", HYBRID],
    "175b": ["Synthetic175B"],
    "glam64b": ["SyntheticGLaM64B64E"],
    "llama70b": ["SyntheticLLaMA70B", "USE_REPEATED_LAYER=True"],
}
CASES: dict[str, tuple[str, list[str]]] = {
    **{name: ("h100", words) for name, words in MODELS.items()},
    **{f"{name}-fp8": ("h100", [*words, "USE_FP8=True"]) for name, words in MODELS.items()},
    **{f"{name}-a100": ("a100", words) for name, words in MODELS.items()},
}
COLUMNS = (
    "case",
    "peak, GB",
    "params gathered, GB",
    "gradients scattered, GB",
    "reduced, GB",
    "from other nodes, GB",
    "waited for, GB",
    "activations, GB",
    "FP8 products",
    "largest",
    "s",
    "RSS, GB",
)


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the table and the aims need of a report."""
    moved = found["traffic"]["flows"]

    def total(what: str, **chosen: str) -> float:
        return sum(
            flow[what] or 0.0
            for flow in moved
            if all(flow[name] == value for name, value in chosen.items())
        )

    model = [flow for flow in moved if flow["role"] in ("parameters", "gradients")]
    flops = found["flops_by_role"].values()
    return {
        "peak": found["memory"]["peak"],
        "gathered": {
            flow["dtype"]: flow["bytes"] for flow in moved if flow["role"] == "parameters"
        },
        "scattered": total("bytes", kind="reduce-scatter", role="gradients"),
        "reduced": total("bytes", kind="all-reduce", role="gradients"),
        "across": sum(flow["across"] or 0.0 for flow in moved),
        "waited": sum(flow["waited"] for flow in model),
        "activations": total("bytes", role="activations"),
        "fp8": sum(role["fp8"] for role in flops)
        / sum(role["fp8"] + role["other"] for role in flops),
        "largest": max((loop["largest"] for loop in found["traffic"]["loops"]), default=0),
        "seconds": found["compile"]["seconds"],
        "rss": found["compile"]["rss"],
    }


def missed(made: dict[str, Any]) -> list[str]:
    """Return what a case misses of what is aimed at."""
    wide = {
        kind: count
        for kind, count in made["gathered"].items()
        if not kind.startswith(("bf16", "f8")) and count > 1e6
    }
    lines = {
        f"{made['peak'] / 1e9:.1f} GB is more than 80": made["peak"] > MEMORY,
        f"parameters are gathered in {', '.join(wide)}": bool(wide),
        f"{made['waited'] / 1e9:.2f} GB of parameters and gradients are waited for": made["waited"]
        > 1e6,
        f"{made['largest']} all-reduces for FP8 in a loop's body": made["largest"] > 1,
    }
    return [line for line, is_so in lines.items() if is_so]


def row(name: str, made: dict[str, Any]) -> str:
    """Return a line of the table, in Markdown."""
    gathered = ", ".join(
        f"{count / 1e9:.1f} {kind}"
        for kind, count in sorted(made["gathered"].items(), key=lambda item: -item[1])
        if count > 1e7
    )
    gigas = [
        f"{made[key] / 1e9:.2f}"
        for key in ("scattered", "reduced", "across", "waited", "activations")
    ]
    cells = [
        name,
        f"{made['peak'] / 1e9:.1f}",
        gathered,
        *gigas,
        f"{made['fp8']:.0%}",
        str(made["largest"]),
        f"{made['seconds']:.0f}",
        f"{made['rss'] / 1e9:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/plan-pax"))
    parser.add_argument(
        "--kept", action="store_true", help="show the reports that are there, compile nothing"
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"default: all of {' '.join(CASES)}"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    aims = []
    for name in args.cases or CASES:
        card, (config, *words) = CASES[name]
        path = args.out / f"{name}.json"
        if not args.kept:
            argv = [
                sys.executable,
                "-m",
                "rosetta",
                "plan",
                "pax",
                config,
                "--json",
                "--card",
                card,
                "--hlo",
                f"{args.out}/{name}.hlo",
                "--with",
                "ATTENTION=cudnn",
                *words,
            ]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                aims.append(f"{name}: {done.stderr[-2000:]}")
                continue
            path.write_text(json.dumps(json.loads(done.stdout)["result"]))
        if path.exists():
            made = summary(json.loads(path.read_text()))
            print(row(name, made), flush=True)
            aims += [f"{name}: {line}" for line in missed(made)]
    print("\n".join(aims))


if __name__ == "__main__":
    main()
