from __future__ import annotations

import sys

import pytest

from rosetta import xlaflags
from rosetta.pax import xla
from tests.rosetta import jaxkit


@pytest.mark.parametrize(
    ("config", "threshold"),
    [("Pile126M", 33554432), ("Lambada126M", 33554432), ("Synthetic126M", 33554432), ("Pile5B", 51200), ("GPT175B", 51200), ("PileGLaM126M64E", 51200), ("PileGLaM64B64E", 51200), ("LLaMA70B", 51200)],
)
def test_all_reduces_are_combined_as_the_published_runs_did(config: str, threshold: int) -> None:
    assert xla.options(config)["xla_gpu_all_reduce_combine_threshold_bytes"] == threshold


def test_xla_knows_every_flag() -> None:
    jaxkit.need("jax")
    xlaflags.require_known(xlaflags.written(xla.options("Pile5B")), sys.executable)
