"""The predicted time of a step: its range, its rates and its parts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from rosetta.core import gpus
from rosetta.plan import autotune_results, hlo_text, schedule, step_kernels, step_time
from tests.support import required_modules
from tests.support.hlo_module import TEXT

if TYPE_CHECKING:
    from pathlib import Path

H100 = gpus.GPUS["h100"]
WORKLOAD = step_time.Workload(sequences=64, tokens=640, gpus=8, per_node=8)


def test_the_parts_make_up_the_time_and_the_range_is_around_it() -> None:
    time = step_time.report_time(TEXT, H100, WORKLOAD)
    seconds = time["seconds"]
    assert seconds["likely"] == pytest.approx(sum(time["parts"].values()))
    assert seconds["fastest"] < seconds["likely"] < seconds["slowest"]
    assert {"products", "attention", schedule.LAUNCHES} <= set(time["parts"])
    assert time["prediction"] is True
    assert time["autotuning"] == autotune_results.UNTUNED
    tuned = step_time.report_time(TEXT, H100, WORKLOAD, tuned=True)
    assert tuned == {**time, "autotuning": autotune_results.TUNED}


def test_rates_are_of_one_gpu() -> None:
    time = step_time.report_time(TEXT, H100, WORKLOAD)
    rate = time["sequences_per_second_per_gpu"]
    assert rate == pytest.approx(64 / 8 / time["seconds"]["likely"])
    assert time["tokens_per_second_per_gpu"] == pytest.approx(640 * rate)


def test_the_mfu_leaves_out_what_is_computed_again() -> None:
    module = hlo_text.parse_module(TEXT)
    gemms = step_kernels.list_gemms(module)
    assert any(gemm.rematerialised for gemm in gemms)
    flops = sum(gemm.flops * gemm.times for gemm in gemms if not gemm.rematerialised)
    flops += step_kernels.count_attention_flops(module) or 0.0
    time = step_time.report_time(TEXT, H100, WORKLOAD)
    # The step has a product in FP8, so the peak is that of FP8.
    assert time["mfu"] == pytest.approx(flops / time["seconds"]["likely"] / 1978.9e12)
    without_peaks = dataclasses.replace(H100, peaks={"fp32": 66.9, "bf16": 989.4})
    assert step_time.report_time(TEXT, without_peaks, WORKLOAD)["mfu"] is None


def test_the_text_says_that_the_time_is_a_prediction() -> None:
    time = step_time.report_time(TEXT, H100, WORKLOAD)
    first, *_ = step_time.format_time(time)
    assert first.startswith("predicted ")
    assert autotune_results.UNTUNED in first


def test_the_chart_is_a_picture(tmp_path: Path) -> None:
    required_modules.need_modules("PIL")
    from PIL import Image

    from rosetta.plan import step_chart

    run = {"what": "a model", "gpus": 8, "gpu": H100.name, "fits": True}
    time = step_time.report_time(TEXT, H100, WORKLOAD)
    time["seconds"] = {"likely": 1.0, "fastest": 0.9, "slowest": 1.2}
    report = {"time": time, "run": run}
    step_chart.draw_chart(report, tmp_path / "plan.png")
    with Image.open(tmp_path / "plan.png") as image:
        assert image.format == "PNG"
        counts = image.convert("RGB").getcolors(1 << 20)
    assert counts is not None
    colours = {colour for _, colour in counts}
    assert {(0x3B, 0x6E, 0xA5), (0xC8, 0xCD, 0xD3)} <= colours  # the bars, and the range
