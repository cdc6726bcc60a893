"""`rosetta bench t5` where there is no GPU, and what its table says."""

from __future__ import annotations

import argparse
import sys

import pytest

from rosetta.commands import bench
from rosetta.core import gpu_query
from tests.support import errors


def _arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_parsers(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    return parser.parse_args(["bench", "t5", *words])


def test_a_missing_gpu_is_reported_before_jax_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(gpu_query, "detect_gpus", lambda _: [])
    monkeypatch.setattr(gpu_query, "has_gpu_device_file", lambda: False)
    monkeypatch.setitem(sys.modules, "jax", None)  # an import of it would be another error
    with errors.expect_user_error(
        errors.MISSING, where="bench t5", names="NVIDIA", remedy="--allow-cpu"
    ):
        bench.run(_arguments())


@pytest.mark.parametrize(
    ("second", "ratio", "says"), [(0.227, 0.946, True), (0.227, 1.188, False), (0.191, 1.0, False)]
)
def test_times_that_contradict_the_ratio_are_explained(
    second: float, ratio: float, says: bool
) -> None:
    row = {
        "mode": "f32",
        "seconds": 0.191,
        "ratio": 1.0,
        "sequences_per_second": 1.0,
        "tokens_per_second": 1.0,
        "mfu": 0.5,
        "peak_of": "f32",
        "peak_bytes": None,
        "compile_seconds": 1.0,
        "loss": 1.0,
    }
    rows = [row, {**row, "mode": "f32+fused", "seconds": second, "ratio": ratio}]
    task = {"size": "tiny", "batch": 1, "inputs": 8, "targets": 4, "dropout": 0.0}
    text = bench.format_table(
        {"task": task, "devices": 1, "card": "cpu", "flops": 1e9, "modes": rows}
    )
    assert ("speed changed between turns" in text) is says
