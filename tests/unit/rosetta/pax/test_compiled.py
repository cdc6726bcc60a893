"""Layers compiled for an H100 that is not here, in an environment that has the CUDA plugin: FP8 products are cuBLASLt's, attention is cuDNN's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "praxis")

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def calls() -> Any:
    """What each layer calls of the libraries."""
    if not any(find_spec(name) for name in ("jax_cuda12_plugin", "jax_cuda13_plugin")):
        pytest.skip(
            "NOT CHECKED here: needs an environment for cuda12 or cuda13 (python build.py --distribution pax --accelerator cuda13 --output env:DIR)"
        )
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.compile_for_h100"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("layer", ["attention", "groups"])
def test_cudnn_computes_attention_and_its_gradient(calls: Any, layer: str) -> None:
    fused = [each.split()[0] for each in calls[layer] if each.startswith("__cudnn$fmha")]
    assert sorted(fused) == ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"]


@pytest.mark.parametrize(("layer", "products"), [("combined", 1), ("experts", 2)])
def test_a_product_and_its_gradients_are_in_fp8(calls: Any, layer: str, products: int) -> None:
    """Forward and both gradients, of q, k and v in one and of all experts in one; the router and what dispatches have none."""
    found = [
        each.split()[1].split("/")[-2].strip("()").rpartition("(")[2]
        for each in calls[layer]
        if each.startswith("__cublas$lt$matmul$f8")
    ]
    assert sorted(found) == sorted(["fprop", "dgrad", "wgrad"] * products)
