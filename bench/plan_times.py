"""Compare predicted step times with published ones.

    PYTHONPATH=. T5X_ENV/bin/python bench/plan_times.py compile [--out DIR] [--rows ROW ...]
    PYTHONPATH=. PAX_ENV/bin/python bench/plan_times.py compile [--out DIR] [--rows ROW ...]
    python -m bench.plan_times compare [--out DIR]

The published rows are those of NVIDIA's tables for T5X and Pax, and of MaxText. `compile` compiles
the step of each row that the environment can compile, for the GPU of the row, and keeps the
compiled text in DIR. `compare` predicts the time of each kept step and prints the errors. It needs
no JAX.

Models whose layers are not scanned compile for many minutes. They are compiled twice, with few
layers, and their times are extrapolated to the published number of layers.

The published software is not ours. Each row says what was compiled in its place:

- Upstream's network, for rows of T5X without Transformer Engine.
- XLA's FP8 with fused projections, unfused attention and a gated MLP of XLA's kernels, for rows of
  T5X with Transformer Engine.
- XLA's attention for rows of Pax without Transformer Engine, and for GPT 126M, which was published
  without flash attention; cuDNN's attention for all others.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import gpus
from rosetta.plan import hlo_text, step_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.plan import t5x_step
    from rosetta.plan.hlo_text import HloModule
    from rosetta.plan.roofline import Shares

# The models whose rows the constants of rosetta.plan.roofline are fitted to.
FITTED_MODELS = ("T5 large", "GPT 5B")


@dataclass(frozen=True)
class PublishedRow:
    """A published throughput, and the step that is compiled for it.

    Attributes:
        name: The name on the command line and of the kept files.
        source: Whose table has the row.
        model: The model.
        gpu: The short name of the GPU.
        gpus: The number of GPUs.
        rate: Sequences per second of all GPUs together.
        batch: Sequences of a global batch.
        step: What is compiled: a case of bench/plan_t5x.py, or hyper-parameters of an experiment
            with its name under "experiment".
        layers: The layers of the model, for T5 those of the encoder and those of the decoder. Of no
            meaning if the model is compiled as it is.
        compiled_layers: The two numbers of layers that are compiled; none if it is compiled as it
            is.
    """

    name: str
    source: str
    model: str
    gpu: str
    gpus: int
    rate: float
    batch: int
    step: Mapping[str, Any]
    layers: int
    compiled_layers: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """The published time of a step."""
        return self.batch / self.rate

    @property
    def fitted(self) -> bool:
        """Whether constants were fitted to this row."""
        return self.model in FITTED_MODELS


# Name, GPU, GPUs, GPUs that share a copy, sequences for each copy, sequences/s/GPU, and what is
# compiled. 512 inputs and 128 targets.
_UPSTREAM: dict[str, Any] = {"upstream": True}
_XLA_FP8 = {"fp8": "xla", "fused_geglu": False, "fused_qkv_gradients": False}
_TE_FP8: dict[str, Any] = {"switches": {"fuse_qkv": True, **_XLA_FP8}}
_REMAT: dict[str, Any] = {"switches": {"remat": "minimal"}}
_TE_FP8_REMAT: dict[str, Any] = {"switches": {**_TE_FP8["switches"], **_REMAT["switches"]}}
_T5X_TABLE = (
    ("large-a100", "a100", 64, 1, 32, 75.8, _UPSTREAM),
    ("large-h100-fp8", "h100", 64, 1, 32, 174.1, _TE_FP8),
    ("small-a100", "a100", 8, 1, 256, 714.0, _UPSTREAM),
    ("xl-a100-256", "a100", 256, 1, 8, 16.9, _UPSTREAM),
    ("xl-a100-144", "a100", 144, 1, 8, 21.0, _UPSTREAM),
    ("xl-h100-fp8-256", "h100", 256, 1, 8, 37.8, _TE_FP8),
    ("xl-h100-fp8-144", "h100", 144, 1, 14, 50.4, _TE_FP8_REMAT),
    ("xxl-a100", "a100", 512, 8, 36, 3.69, _REMAT),
)
_WHOLE_T5_SIZES = ("small",)  # few enough layers to compile them all
_T5_LAYERS, _FEW_LAYERS = 24, (2, 4)

# Name, model, GPU, GPUs, rows of a GPU, rows/s of all GPUs, experiment, and hyper-parameters. 2,048
# tokens for GPT, 4,096 for LLaMA. MaxText's row is 11,400 tokens/s/GPU.
_CUDNN = {"ATTENTION": "cudnn"}
_FP8 = {"ATTENTION": "cudnn", "USE_FP8": True}
_NODES_2 = {"DCN_MESH_SHAPE": [1, 2, 1]}
_LORA = {"USE_LORA": True, **_NODES_2}
_PAX_TABLE: tuple[tuple[str, str, str, int, int, float, str, dict[str, Any]], ...] = (
    ("gpt-5b-h100", "GPT 5B", "h100", 256, 8, 1657.24, "Synthetic5B", _CUDNN),
    ("gpt-5b-a100", "GPT 5B", "a100", 256, 8, 718.19, "Synthetic5B", _CUDNN),
    ("gpt-5b-a100-xla", "GPT 5B", "a100", 256, 8, 594.13, "Synthetic5B", {}),
    ("gpt-5b-h100-fp8", "GPT 5B", "h100", 256, 8, 2374.66, "Synthetic5B", _FP8),
    ("gpt-175b-h100", "GPT 175B", "h100", 256, 6, 51.0, "Synthetic175B", _CUDNN),
    ("gpt-175b-a100", "GPT 175B", "a100", 256, 6, 20.44, "Synthetic175B", _CUDNN),
    ("gpt-175b-h100-fp8", "GPT 175B", "h100", 256, 6, 84.45, "Synthetic175B", _FP8),
    ("gpt-126m-h100", "GPT 126M", "h100", 64, 4, 4709.12, "Synthetic126M", {}),
    ("gpt-126m-a100-te", "GPT 126M", "a100", 64, 4, 2526.72, "Synthetic126M", {}),
    ("gpt-126m-a100", "GPT 126M", "a100", 64, 4, 2098.16, "Synthetic126M", {}),
    ("llama-7b-te", "LLaMA 7B", "h100", 16, 2, 53.69, "SyntheticLLaMA7B", _CUDNN | _NODES_2),
    ("llama-7b", "LLaMA 7B", "h100", 16, 2, 43.24, "SyntheticLLaMA7B", _NODES_2),
    ("llama-7b-lora-te", "LLaMA 7B", "h100", 16, 2, 63.2, "SyntheticLLaMA7B", _CUDNN | _LORA),
    ("llama-7b-lora-te-1", "LLaMA 7B", "h100", 16, 1, 56.0, "SyntheticLLaMA7B", _CUDNN | _LORA),
    ("llama-7b-lora", "LLaMA 7B", "h100", 16, 2, 43.8, "SyntheticLLaMA7B", _LORA),
    ("llama-7b-maxtext", "LLaMA 7B", "h100", 8, 2, 11400 * 8 / 4096, "SyntheticLLaMA7B", _CUDNN),
)
_UNROLLED_LAYERS = {"SyntheticLLaMA7B": 32}


def list_rows() -> list[PublishedRow]:
    """Return the published rows."""
    rows = []
    for name, gpu, count, tp, batch, rate, case in _T5X_TABLE:
        size = name.partition("-")[0]
        step = {"size": size, "gpu": gpu, "gpus": count, "tp": tp, "batch": batch, **case}
        few = () if size in _WHOLE_T5_SIZES else _FEW_LAYERS
        total_batch = batch * count // tp
        rows.append(
            PublishedRow(
                *(f"t5-{name}", "T5X", f"T5 {size}", gpu, count, rate * count, total_batch, step),
                *(_T5_LAYERS, few),
            )
        )
    for name, model, gpu, count, batch, rate, experiment, hyper in _PAX_TABLE:
        step = {"experiment": experiment, "PERCORE_BATCH_SIZE": batch, **hyper}
        layers = _UNROLLED_LAYERS.get(experiment, 0)
        source = "MaxText" if name.endswith("maxtext") else "Pax"
        few = _FEW_LAYERS if layers else ()
        rows.append(
            PublishedRow(name, source, model, gpu, count, rate, batch * count, step, layers, few)
        )
    return rows


def list_compilations(row: PublishedRow) -> list[tuple[str, int]]:
    """Return the kept name and the layers of each step that a row needs; 0 for the model's own.

    Rows with equal steps share what is kept.
    """
    name = next(
        other.name
        for other in list_rows()
        if (other.step, other.gpu, other.gpus) == (row.step, row.gpu, row.gpus)
    )
    if not row.compiled_layers:
        return [(name, 0)]
    return [(f"{name}.{layers}", layers) for layers in row.compiled_layers]


def compile_row(row: PublishedRow, layers: int) -> t5x_step.CompiledStep:
    """Compile the step of a row.

    Args:
        row: The row.
        layers: The number of layers; 0 for the model's own.
    """
    step = dict(row.step)
    if row.source == "T5X":
        from bench import plan_t5x
        from rosetta.plan import t5x_step

        t5x_step.prepare_t5x_compilation(
            step.get("switches", {}).get("fp8", "off"), step["size"], row.gpu
        )
        return plan_t5x.compile_case({**step, "layers": layers})
    from rosetta.plan import pax_step

    experiment = step.pop("experiment")
    hyper = {**step, "NUM_LAYERS": layers} if layers else step
    # The published runs had the level of that time, not the one of today's presets.
    os.environ["JAX_OPTIMIZATION_LEVEL"] = "O0"
    pax_step.prepare_pax_compilation(experiment, row.gpu, hyper)
    return pax_step.compile_pax_step(
        pax_step.make_experiment(experiment, hyper),
        gpu_name=row.gpu,
        nodes=max(row.gpus // 8, 1),
        per_node=min(row.gpus, 8),
    ).compiled


def compile_rows(rows: Sequence[PublishedRow], out: Path) -> int:
    """Compile the steps that were not compiled before, each in a separate process.

    Returns:
        The exit status: 1 if a step could not be compiled, else 0.
    """
    out.mkdir(parents=True, exist_ok=True)
    status = 0
    has_pax = importlib.util.find_spec("paxml") is not None
    for row in rows:
        if (row.source != "T5X") != has_pax:
            continue
        for name, layers in list_compilations(row):
            if (out / f"{name}.json").exists():
                continue
            process = subprocess.run(
                [
                    *(sys.executable, "-m", "bench.plan_times", "one", "--out", str(out)),
                    *("--layers", str(layers), "--rows", row.name),
                ],
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            if process.returncode:
                print(f"{name}: {process.stderr[-2000:]}", flush=True)
                status = 1
            else:
                print(f"{name}: compiled", flush=True)
    return status


def keep_step(compiled: t5x_step.CompiledStep, name: str, out: Path) -> None:
    """Write the text of a compiled step and its memory."""
    with gzip.open(out / f"{name}.hlo.gz", "wt", compresslevel=4) as file:
        file.write(compiled.text)
    figures = {"peak": compiled.peak, "seconds": compiled.seconds, "rss": compiled.rss}
    (out / f"{name}.json").write_text(json.dumps(figures))


def predict_row(row: PublishedRow, out: Path, shares: Shares | None = None) -> dict[str, float]:
    """Return the predicted seconds of a row's step, see rosetta.plan.step_time.predict_seconds.

    Args:
        row: The row.
        out: The folder with the kept steps.
        shares: The shares to predict with; None for those of rosetta.plan.roofline.
    """
    figures = []
    for name, _layers in list_compilations(row):
        module = read_kept_module(out / f"{name}.hlo.gz")
        figures.append(step_time.predict_seconds(module, gpus.GPUS[row.gpu], 8, shares))
    if len(figures) == 1:
        return figures[0]
    fewer, more = row.compiled_layers
    factor = (row.layers - fewer) / (more - fewer)
    return {
        name: seconds + factor * (figures[1][name] - seconds)
        for name, seconds in figures[0].items()
    }


@functools.cache
def read_kept_module(path: Path) -> HloModule:
    """Return the module that a kept step consists of."""
    with gzip.open(path, "rt") as file:
        return hlo_text.parse_module(file.read())


def is_kept(row: PublishedRow, out: Path) -> bool:
    """Return whether all steps of a row are kept."""
    return all((out / f"{name}.json").exists() for name, _ in list_compilations(row))


def compare_rows(rows: Sequence[PublishedRow], out: Path) -> None:
    """Print the table of published and predicted rates, and the sums of the errors."""
    print(
        "| row | source | fitted | published, ms | predicted, ms | range, ms | error | in range |"
    )
    print(f"|{'---|' * 8}")
    errors: dict[bool, list[tuple[float, bool]]] = {True: [], False: []}
    predicted = {}
    for row in rows:
        seconds = predict_row(row, out)
        predicted[row.name] = seconds["likely"]
        error = seconds["likely"] / row.seconds - 1
        inside = seconds["fastest"] <= row.seconds <= seconds["slowest"]
        errors[row.fitted].append((error, inside))
        cells = (
            row.name,
            row.source,
            "fitted" if row.fitted else "held out",
            f"{row.seconds * 1e3:,.0f}",
            f"{seconds['likely'] * 1e3:,.0f}",
            f"{seconds['fastest'] * 1e3:,.0f} to {seconds['slowest'] * 1e3:,.0f}",
            f"{error:+.0%}",
            "yes" if inside else "no",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    for fitted, label in ((True, "fitted"), (False, "held out")):
        if errors[fitted]:
            sizes = [abs(error) for error, _ in errors[fitted]]
            inside_share = statistics.mean(inside for _, inside in errors[fitted])
            print(
                f"{label}: {len(sizes)} rows, median error {statistics.median(sizes):.0%}, worst "
                f"{max(sizes):.0%}, {inside_share:.0%} inside their ranges"
            )
    right, pairs = count_ordered_pairs(rows, predicted)
    print(f"pairs of rows of one model that differ by more than 10 %: {right} of {pairs} in order")


def count_ordered_pairs(
    rows: Sequence[PublishedRow], predicted: Mapping[str, float]
) -> tuple[int, int]:
    """Return how many pairs of a model are predicted in the published order, and the pairs.

    Rows are compared by the time that a GPU spends on a sequence. Pairs that differ by at most 10 %
    do not count.
    """
    right = pairs = 0
    for first, second in itertools.combinations(rows, 2):
        weights = first.gpus / first.batch, second.gpus / second.batch
        published = first.seconds * weights[0] / (second.seconds * weights[1])
        if first.model != second.model or 1 / 1.1 <= published <= 1.1:
            continue
        ratio = predicted[first.name] * weights[0] / (predicted[second.name] * weights[1])
        pairs += 1
        right += (ratio > 1) == (published > 1)
    return right, pairs


def main() -> int:
    """Run the benchmark that the command line describes.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("compile", "compare", "one"))
    parser.add_argument("--out", type=Path, default=Path("build/plan-times"))
    parser.add_argument("--layers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument(
        "--rows", nargs="+", default=[], metavar="ROW", help="the names of rows (default: all)"
    )
    args = parser.parse_args()
    rows = [row for row in list_rows() if not args.rows or row.name in args.rows]
    if args.action == "compile":
        return compile_rows(rows, args.out)
    if args.action == "one":
        (row,) = rows
        name = next(name for name, layers in list_compilations(row) if layers == args.layers)
        keep_step(compile_row(row, args.layers), name, args.out)
        return 0
    compare_rows([row for row in rows if is_kept(row, args.out)], args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
