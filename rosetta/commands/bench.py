"""The command `rosetta bench t5`: measure a training step of T5 on synthetic tokens.

A mode is a number type with switches, such as bfloat16+fp8. The modes take turns, so that a change
of the machine's speed affects all of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rosetta.bench import modes
from rosetta.core import gpu_query, log, option_types
from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.core.value_parsing import parse_list

if TYPE_CHECKING:
    import argparse


NO_GPU = UserError(
    "no NVIDIA GPU is visible",
    "bench t5",
    "start the container with --gpus=all, or give --allow-cpu",
    kind=MISSING,
)
_SPEED_TOLERANCE = 0.05  # share of a ratio


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the top parser's subcommands."""
    bench = commands.add_parser("bench", parents=[common])
    actions = bench.add_subparsers(dest="action", metavar="WHAT")
    t5 = actions.add_parser(
        "t5",
        help="measure T5 1.1 on synthetic tokens in several modes, which take turns",
        description=(
            "A ratio compares a mode with the first one: it is the median over all turns. "
            "docs/reference/gpus.md has the peaks of GPUs, for the MFU."
        ),
    )
    option_types.add_shape_options(t5, size="small", sizes=", ".join(modes.list_sizes()))
    words = ", ".join([*modes.DTYPES, *modes.SWITCHES])
    t5.add_argument(
        "--modes",
        help=(
            f"the modes, separated by commas; a mode is one or more of {words}, joined by + "
            f"(default: {','.join(modes.DEFAULT)})"
        ),
    )
    t5.add_argument(
        "--batch",
        type=option_types.parse_count,
        default=32,
        help="sequences in a step, over all devices (default: 32)",
    )
    t5.add_argument(
        "--steps",
        type=option_types.parse_count,
        default=10,
        help="steps of a mode in each turn (default: 10)",
    )
    t5.add_argument(
        "--turns", type=option_types.parse_count, default=5, help="turns of each mode (default: 5)"
    )
    t5.add_argument(
        "--devices",
        type=option_types.parse_count,
        default=1,
        help="devices that share the batch (default: 1)",
    )
    t5.add_argument(
        "--layers",
        type=option_types.parse_count,
        default=0,
        metavar="N",
        help="layers of the encoder, and of the decoder (default: those of the size)",
    )
    t5.add_argument(
        "--allow-cpu", action="store_true", help="measure on the CPU if there is no GPU"
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta bench t5`; return its result and the text to print."""
    # These checks come before JAX is imported, which takes seconds.
    modes.read_size_fields(args.size)
    names = parse_list("--modes", args.modes or "") or list(modes.DEFAULT)
    for name in names:
        modes.parse_mode(name)
    if len(set(names)) < len(names):
        raise UserError(
            "a mode is named twice", "bench t5 --modes", "name each mode once", kind=INVALID
        )
    has_gpu = gpu_query.detect_gpus(os.environ) or gpu_query.has_gpu_device_file()
    if not os.environ.get("JAX_PLATFORMS") and not has_gpu:
        # JAX with CUDA prints tracebacks when it finds no GPU.
        if not args.allow_cpu:
            raise NO_GPU
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        import jax

        from rosetta.bench import t5
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed",
            "bench t5",
            "run the command in a baked environment",
            kind=MISSING,
            value=error.name,
        ) from None
    if jax.devices()[0].platform != "gpu" and not args.allow_cpu:
        raise NO_GPU
    task = t5.Task(
        args.size,
        args.batch,
        args.inputs,
        args.targets,
        args.dropout,
        args.steps,
        args.turns,
        args.devices,
        args.layers,
    )
    result = t5.run_benchmark(task, names, skip=args.modes is None, say=log.info)
    return result, format_table(result)


def format_table(result: dict[str, Any]) -> str:
    """Return the result as text: the task, a row for each mode, and warnings."""
    task = result["task"]
    title = (
        f"T5 1.1 {task['size']}, {task['batch']} x {task['inputs']}/{task['targets']} tokens, "
        f"dropout {task['dropout']}, "
        f"{result['devices']} x {result['card']}, {result['flops'] / 1e12:.3g} TFLOP a step"
    )
    header = (
        f"{'mode':20} {'ms/step':>9} {'ratio':>6} {'seq/s':>9} {'tokens/s':>10} {'MFU':>7} "
        f"{'of':>9} {'GiB':>6} {'compile':>8}"
    )
    rows = result["modes"]
    lines = [title, header, *(_format_row(row) for row in rows)]
    if _speed_changed(rows):
        lines.append(
            "The machine's speed changed between turns: compare by the ratio, which is taken "
            "within each turn."
        )
    if any(row["mfu"] is None for row in rows):
        lines.append(f"No MFU: the peak of {result['card']} is not known.")
    bad_modes = [row["mode"] for row in rows if isinstance(row["loss"], str)]
    if bad_modes:
        lines.append(
            f"The loss is not finite in {', '.join(bad_modes)}; all modes train one state."
        )
    return "\n".join(lines)


def _format_row(row: dict[str, Any]) -> str:
    """Return the line of a mode."""
    mfu = "-" if row["mfu"] is None else f"{row['mfu']:.1%}"
    memory = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f}"
    return (
        f"{row['mode']:20} {row['seconds'] * 1e3:9.2f} {row['ratio']:6.3f} "
        f"{row['sequences_per_second']:9.1f} "
        f"{row['tokens_per_second']:10.0f} {mfu:>7} {row['peak_of']:>9} {memory:>6} "
        f"{row['compile_seconds']:6.1f} s"
    )


def _speed_changed(rows: list[dict[str, Any]]) -> bool:
    """Return whether a ratio differs from that of the median times in the same table."""
    first = rows[0]["seconds"]
    return any(abs(row["seconds"] / first / row["ratio"] - 1) > _SPEED_TOLERANCE for row in rows)


RUN = {"bench": run}
