"""Plan the training step of a BERT for an H100 that this machine does not have, dense and sparse.

    PYTHONPATH=. ENV/bin/python bench/plan_encoders.py [--out DIR] [CASE ...]

ENV is an environment of t5x for cuda13. The cases are BERT-base with two layers at 4,096 and 16,384
tokens, with block-sparse attention, with dense attention in plain XLA, and with cuDNN's attention.
A case compiles for one to three minutes on two cores. The program prints a table: figures are per
GPU and step, from the compiler's own plan and from the optimized HLO.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rosetta.core.gpus import get_gpu
from rosetta.plan import step_report, step_time, t5x_step

LAYERS = 2
BATCH_TOKENS = 32_768
# The layout of BigBird's ITC base model: 8 blocks of keys for each block of queries.
BIGBIRD = {
    "block": 64,
    "num_sliding_window_blocks": 3,
    "num_global_blocks": 2,
    "num_random_blocks": 3,
    "different_layout_per_head": True,
}
ATTENTIONS: dict[str, dict[str, Any]] = {
    "sparse": {"sparse_attention": BIGBIRD},
    "sparse-relative": {"sparse_attention": BIGBIRD, "positions": "relative"},
    "dense": {"attention": "xla"},
    "cudnn": {"attention": "cudnn"},
}
# Name -> the tokens of a row, and fields of T5Config.
CASES = {
    f"{name}-{length}": (length, fields)
    for length in (4_096, 16_384)
    for name, fields in ATTENTIONS.items()
}


def compile_case(length: int, fields: dict[str, Any]) -> t5x_step.CompiledStep:
    """Compile a case, see CASES."""
    from rosetta.t5x.run import gin_text

    lengths = {"inputs": length, "targets": length}
    batch = BATCH_TOKENS // length
    settings: dict[str, Any] = {
        "MODEL_DIR": "",
        "TRAIN_STEPS": 1,
        "DATA": "synthetic",
        "VOCAB": "ids:30592",
        "OBJECTIVE": "mlm",
        "TASK_FEATURE_LENGTHS": lengths,
        "DROPOUT_RATE": 0.0,
        "BATCH_SIZE": batch,
    }
    network = {"num_encoder_layers": LAYERS, "max_positions": length, "dtype": "bfloat16", **fields}
    settings |= {f"network.T5Config.{name}": value for name, value in network.items()}
    return t5x_step.compile_t5x_step(
        ["rosetta/t5x/gin/bert/base.gin", "rosetta/t5x/gin/runs/pretrain_encoder.gin"],
        [f"{name} = {gin_text.format_literal(value)}" for name, value in settings.items()],
        gpu_name="h100",
        nodes=1,
        per_node=1,
        tensor_parallel=1,
        batch_size=batch,
        lengths=lengths,
    )


def write_figures(name: str, out: Path) -> None:
    """Compile a case and write its figures as JSON."""
    length, fields = CASES[name]
    t5x_step.prepare_t5x_compilation("off", "base", "h100")
    compiled = compile_case(length, fields)
    figures = step_report.summarize_step(compiled)
    workload = step_time.Workload(BATCH_TOKENS // length, length, 1, 1)
    figures["time"] = step_time.report_time(compiled.text, get_gpu("h100", "CASE"), workload)
    (out / f"{name}.json").write_text(json.dumps(figures))


def format_row(name: str, figures: dict[str, Any]) -> str:
    """Return a line of the table for a case."""
    length, _ = CASES[name]
    seconds = figures["time"]["seconds"]["likely"]
    cells = [
        name.rpartition("-")[0],
        f"{length:,}",
        f"{BATCH_TOKENS // length}",
        f"{figures['memory']['peak'] / 1e9:.1f} GB",
        f"{figures['bytes'] / 1e9:,.0f} GB",
        f"{1000 * seconds:,.0f} ms",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Run the benchmark that the command line describes.

    Returns:
        The exit status: 1 if a case could not be compiled, else 0.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/plan-encoders"))
    parser.add_argument(
        "--in-this-process", dest="in_this_process", action="store_true", help=argparse.SUPPRESS
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"default: all of {' '.join(CASES)}"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.in_this_process:
        write_figures(args.cases[0], args.out)
        return 0
    status = 0
    print("| attention | tokens | rows | peak memory | read and written | predicted time |")
    print("|---|---|---|---|---|---|")
    for name in args.cases or CASES:
        # Each case has a process of its own, because XLA keeps memory after it has compiled.
        done = subprocess.run(
            [sys.executable, __file__, "--in-this-process", "--out", str(args.out), name],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{name}: {done.stderr[-2000:]}")
            status = 1
            continue
        figures = json.loads((args.out / f"{name}.json").read_text())
        print(format_row(name, figures), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
