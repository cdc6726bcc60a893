"""Predict the time of a compiled step as a range, its rate, and where the time goes.

Nothing is measured: see rosetta.plan.roofline for the figures behind a prediction, and
docs/project/benchmarks.md for how well it agrees with published times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.plan import autotune_results, hlo_text, roofline, schedule, step_kernels

if TYPE_CHECKING:
    from rosetta.core.gpus import Gpu
    from rosetta.plan.hlo_text import HloModule
    from rosetta.plan.roofline import Shares

MILLISECONDS = 1e3


@dataclass(frozen=True)
class Workload:
    """What a step works on.

    Attributes:
        sequences: Sequences of the global batch.
        tokens: Tokens of a sequence, of inputs and targets together.
        gpus: GPUs of all nodes.
        per_node: GPUs of a node.
    """

    sequences: int
    tokens: int
    gpus: int
    per_node: int


def predict_seconds(
    module: HloModule, gpu: Gpu, per_node: int, shares: Shares | None = None
) -> dict[str, float]:
    """Return the predicted seconds of a step: "likely", and "fastest" and "slowest" of the range.

    Args:
        module: The optimised module.
        gpu: The GPU.
        per_node: GPUs of a node.
        shares: The shares of the GPU's figures that kernels are likely to reach; None for those of
            rosetta.plan.roofline.
    """
    timelines = _play_range(module, gpu, per_node, shares or roofline.find_shares(gpu))
    return {name: timeline.compute for name, timeline in timelines.items()}


def _play_range(
    module: HloModule, gpu: Gpu, per_node: int, shares: Shares
) -> dict[str, schedule.Timeline]:
    """Return the timelines of the likely prediction and of both ends of the range."""
    factors = {"likely": 1.0, "fastest": roofline.FASTEST, "slowest": roofline.SLOWEST}
    timelines = {}
    for name, factor in factors.items():
        scaled = roofline.scale_shares(shares, factor)
        timelines[name] = schedule.Player(module, gpu, per_node, scaled).play_step()
    return timelines


def report_time(text: str, gpu: Gpu, workload: Workload, *, tuned: bool = False) -> dict[str, Any]:
    """Return the predicted time of a step. It is `time` in the JSON of `rosetta plan`.

    The keys are:

    - `prediction`: true, because nothing is measured;
    - `autotuning`: TUNED, or UNTUNED: XLA then chose the tiles of products without the GPU, and the
      prediction assumes tiles that are as good as those of cuBLAS;
    - `seconds`: the likely time of a step, and both ends of the range;
    - `sequences_per_second_per_gpu` and `tokens_per_second_per_gpu`: the likely rates;
    - `mfu`: FLOPs that the model asks for, without those that are rematerialised, as a share of
      the peak: that of FP8 if any product is in FP8; None if the peak is not known;
    - `parts`: where the likely time goes, kind -> seconds;
    - `communication`: the seconds of all collectives, hidden or not.

    Args:
        text: The optimised HLO module.
        gpu: The GPU.
        workload: What a step works on.
        tuned: Whether XLA had the results of autotuning.
    """
    module = hlo_text.parse_module(text)
    timelines = _play_range(module, gpu, workload.per_node, roofline.find_shares(gpu))
    likely = timelines["likely"]
    sequences = workload.sequences / likely.compute / workload.gpus
    return {
        "prediction": True,
        "autotuning": autotune_results.TUNED if tuned else autotune_results.UNTUNED,
        "seconds": {name: timeline.compute for name, timeline in timelines.items()},
        "sequences_per_second_per_gpu": sequences,
        "tokens_per_second_per_gpu": sequences * workload.tokens,
        "mfu": _compute_mfu(module, gpu, likely.compute),
        "parts": dict(sorted(likely.seconds.items(), key=lambda item: -item[1])),
        "communication": likely.communicated,
    }


def _compute_mfu(module: HloModule, gpu: Gpu, seconds: float) -> float | None:
    """Return the share of the peak that the FLOPs of the model reach, see `report_time`."""
    gemms = step_kernels.list_gemms(module)
    has_fp8 = any(gemm.fp8 for gemm in gemms)
    peak = gpu.peak_flops("fp8" if has_fp8 else "bfloat16")
    if peak is None:
        return None
    flops = sum(gemm.flops * gemm.times for gemm in gemms if not gemm.rematerialised)
    flops += step_kernels.count_attention_flops(module) or 0.0
    return flops / seconds / peak


def format_time(time: dict[str, Any]) -> list[str]:
    """Return the result of `report_time` as lines of text."""
    seconds = {name: value * MILLISECONDS for name, value in time["seconds"].items()}
    mfu = "unknown" if time["mfu"] is None else f"{time['mfu']:.1%}"
    total = seconds["likely"]
    lines = [
        (
            f"predicted    {total:,.1f} ms a step ({seconds['fastest']:,.1f} to "
            f"{seconds['slowest']:,.1f}), {time['autotuning']}; nothing was measured"
        ),
        (
            f"rate         {time['sequences_per_second_per_gpu']:,.4g} sequences/s/GPU, "
            f"{time['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU, MFU {mfu}"
        ),
    ]
    for kind, part in time["parts"].items():
        lines.append(
            f"  {kind:<24} {part * MILLISECONDS:>10,.1f} ms {part * MILLISECONDS / total:>6.1%}"
        )
    lines.append(
        f"communication {time['communication'] * MILLISECONDS:,.1f} ms, of which "
        f"{time['parts'].get(schedule.EXPOSED, 0.0) * MILLISECONDS:,.1f} ms are not hidden"
    )
    return lines
