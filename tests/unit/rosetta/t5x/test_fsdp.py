"""FSDP: gradients are those of whole parameters, and each device holds a share of the kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "t5x.utils")
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What tests/support/t5x_sharded_gradients.py prints, for each variant of the network."""
    flags = (
        "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 "
        "--xla_llvm_disable_expensive_passes=true"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.t5x_sharded_gradients"],
        cwd=ROOT,
        env=os.environ
        | {
            "XLA_FLAGS": flags,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    result: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return result


@pytest.mark.parametrize(
    ("variant", "tolerance"),
    [
        ("plain", 1e-5),
        ("fused", 1e-5),
        ("tied", 1e-5),
        ("scanned", 1e-5),
        ("tensor parallel", 1e-5),
        ("narrow logits", 1e-5),
        ("bfloat16", 0.02),
        ("fp8", 1e-5),
        ("fused fp8", 1e-5),
        ("adafactor", 1e-4),
        ("adamw_rms", 1e-4),
        ("muon", 1e-4),
        ("scanned muon", 1e-4),
        ("adapters", 1e-5),
        ("adapters, tensor parallel", 1e-5),
        ("adapters, fp8", 1e-5),
    ],
)
def test_gradients_and_updates_are_those_of_whole_parameters(
    found: dict[str, Any], variant: str, tolerance: float
) -> None:
    """The difference is relative to the largest gradient of each array."""
    assert found[variant]["difference"] < tolerance


def test_a_device_holds_its_share_of_kernels_and_embeddings(found: dict[str, Any]) -> None:
    """So is the state of the optimizer."""
    for variant, shards in (("plain", 4), ("scanned", 4), ("tensor parallel", 2), ("muon", 4)):
        for name, share in found[variant]["held"].items():
            expected = 1 / shards if name.endswith(("/kernel", "/embedding")) else 1
            assert share == expected, (variant, name)
