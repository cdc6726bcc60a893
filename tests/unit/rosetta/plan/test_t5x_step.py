"""A real step compiled for an H100 that is not here, in an environment that has the CUDA plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rosetta.core import gpus
from rosetta.plan import t5x_step
from tests.support import errors, required_modules

ROOT = Path(__file__).resolve().parents[4]


def _plan(*words: str) -> Any:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "rosetta", "plan", "t5x", "--json", *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_a_missing_cuda_plugin_is_reported() -> None:
    if any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        pytest.skip("NOT CHECKED: this environment has the plugin")
    status, document = _plan()
    assert status == 2
    assert "cannot compile for GPUs" in document["error"]["what"]


def test_a_gpu_that_the_installed_cuda_does_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(metadata={"Name": "jax-cuda13-plugin"})
    monkeypatch.setattr(metadata, "distributions", lambda: [plugin])
    t5x_step.require_compiler(gpus.GPUS["a100"])
    with errors.expect_user_error(
        errors.UNSUPPORTED, where="--card v100", value="v100", remedy="cuda12"
    ):
        t5x_step.require_compiler(gpus.GPUS["v100"])
    plugin.metadata["Name"] = "jax-cuda12-plugin"
    t5x_step.require_compiler(gpus.GPUS["v100"])


def test_a_step_in_fp8() -> None:
    """Every projection's forward, dgrad and wgrad is an FP8 call; what is left are the logits; attention is cuDNN's."""
    required_modules.need_modules("t5x", "seqio")
    if not any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        pytest.skip("NOT CHECKED: needs an environment for cuda12 or cuda13")
    sizes = (
        "emb_dim=256",
        "num_heads=4",
        "num_encoder_layers=2",
        "num_decoder_layers=2",
        "mlp_dim=512",
    )
    status, document = _plan(
        "--size",
        "small",
        "--gpus",
        "2",
        "--batch-per-gpu",
        "8",
        "--with",
        "fp8=xla",
        "fuse_qkv=true",
        "attention=cudnn",
        "remat=minimal",
        *sizes,
    )
    assert status == 0, document
    found = document["result"]
    # Encoder: q+k+v, out, wi_0+wi_1, wo. Decoder: these, and q, k+v and out of the attention to the encoder. Two layers of each, three products of each.
    assert found["gemms"] == {"fp8": 2 * (4 + 7) * 3, "other": 3}
    assert all("decoder" in name and "layers" not in name for name in found["not_fp8"])
    assert {
        role: flops["other"]
        for role, flops in found["flops_by_role"].items()
        if role in ("fprop", "dgrad", "wgrad")
    } == {"fprop": 0, "dgrad": 0, "wgrad": 0}
    assert sum(found["attention"].values()) == 2 * (1 + 2) * 2
    assert 0 < found["memory"]["peak"] < 80e9
