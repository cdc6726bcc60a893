"""Paxml's step of a tiny experiment, compiled for eight H100s in two nodes that are not here."""

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

ROOT = Path(__file__).resolve().parents[4]
TINY = (
    "NUM_LAYERS=2",
    "MODEL_DIMS=256",
    "NUM_HEADS=2",
    "DIMS_PER_HEAD=128",
    "HIDDEN_DIMS=1024",
    "VOCAB_SIZE=512",
    "MAX_SEQ_LEN=128",
    "PERCORE_BATCH_SIZE=2",
)


def _plan(*words: str) -> tuple[int, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    argv = [
        sys.executable,
        "-m",
        "rosetta",
        "plan",
        "pax",
        "Synthetic5B",
        "--json",
        "--gpus",
        "8",
        "--gpus-per-node",
        "4",
        *words,
    ]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def _needed() -> None:
    required_modules.need_modules("paxml", "praxis")
    if not any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        pytest.skip("NOT CHECKED: needs an environment of pax for cuda12 or cuda13")


def test_sizes() -> None:
    """A stack of 3 kernels of 8 x 16 over a mesh of 2 x 4: kept, gathered over either axis, over both; one layer of each; dimensions in one."""
    jax = required_modules.need_modules("jax")
    required_modules.need_modules("paxml")
    from rosetta.plan import pax_step

    spec = jax.sharding.PartitionSpec
    shapes = {
        "kernel": jax.ShapeDtypeStruct((3, 8, 16), "float32"),
        "bias": jax.ShapeDtypeStruct((16,), "float32"),
    }
    found = pax_step.find_parameter_dimensions(
        shapes, {"kernel": spec(None, "data", "mdl"), "bias": spec("mdl")}, {"data": 2, "mdl": 4}
    )
    split = {(8, 16), (4, 16), (4, 8), (4, 4)}  # of 8 x 16, 4 x 16, 8 x 4 and 4 x 4
    assert found >= {(3, *each) for each in split} | split | {(16,), (4,), (128,), (64,), (32,)}
    assert (16, 24) in found  # the first two dimensions of the stack as one
    assert not {(8, 8), (2, 16), (2, 8)} & found


def test_a_step_in_fp8_with_parameters_split_over_both_nodes() -> None:
    """Parameters are gathered in FP8, gradients scattered; what a ring of two nodes of four sends out of a node is a quarter."""
    _needed()
    status, document = _plan(
        "--with",
        "ICI_MESH_SHAPE=[1,4,1]",
        "DCN_MESH_SHAPE=[1,2,1]",
        "ATTENTION=cudnn",
        "USE_FP8=True",
        *TINY,
    )
    assert status == 0, document
    found = document["result"]
    assert found["gemms"]["fp8"] == 2 * 4 * 3  # q, k and v are one product
    flows = {
        (flow["kind"], flow["role"], flow["dtype"]): flow for flow in found["traffic"]["flows"]
    }
    gathered = flows["all-gather", "parameters", "f8e4m3fn"]
    assert (
        gathered["bytes"] >= 2 * 12 * 256**2 * 7 / 8
    )  # forwards, of each layer; and what of it backwards needs again
    assert gathered["across"] == pytest.approx(gathered["bytes"] / 4)
    assert flows["reduce-scatter", "gradients", "bf16"]["bytes"] > 0
    assert not any(
        kind == "all-gather" and role == "parameters" and dtype == "f32"
        for kind, role, dtype in flows
    )
    # Not the position embedding's gradient, 16 rows of 128 x 256: upstream's einsum has XLA gather it.
    assert all(
        flow["bytes"] < 1e5
        for key, flow in flows.items()
        if key[:2] == ("all-gather", "activations")
    )
    assert 0 < found["memory"]["peak"] < 80e9


def test_refused_in_one_line() -> None:
    _needed()
    for words, complaint in (
        (("--with", "NUM_LAYRES=2"), "did you mean NUM_LAYERS?"),
        (
            ("--with", "ICI_MESH_SHAPE=[1,8,1]", "DCN_MESH_SHAPE=[1,2,1]"),
            "--fdl.ICI_MESH_SHAPE=[1,8,1]",
        ),
    ):
        status, document = _plan(*words)
        assert status == 2
        assert complaint in document["error"]["do"]
