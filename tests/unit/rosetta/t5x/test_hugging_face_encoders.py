"""Converted BERTs and T5 encoders compute in rosetta what they compute in transformers.

transformers makes model folders of random weights. `rosetta convert` makes checkpoints of T5X from
them, and model folders again from these. ROSETTA_TEST_TORCH names the Python that has transformers.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "ml_dtypes", "tensorstore")

import jax
import jax.numpy as jnp
import numpy as np

from rosetta import cli
from rosetta.convert import weight_files
from rosetta.t5x import network
from rosetta.t5x.run import checkpoint_record
from tests.support import converted_t5, hugging_face_encoders
from tests.support.hugging_face_encoders import CASES, is_bert

pytestmark = pytest.mark.long

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")
TOLERANCE = 2e-5  # of the largest value
# What transformers calls what EncoderOnly returns: of the tokens, and of the row.
OUTPUTS: dict[str, tuple[str, str]] = {
    "pretraining": ("prediction_logits", "seq_relationship_logits"),
    "masked": ("logits", ""),
    "classes": ("", "logits"),
    "number": ("", "logits"),
    "plain": ("last_hidden_state", ""),
    "t5": ("last_hidden_state", ""),
    "t5_gated": ("last_hidden_state", ""),
    "umt5": ("last_hidden_state", ""),
}


def _run_transformers(action: str, root: Path) -> None:
    program = Path(hugging_face_encoders.__file__)
    done = subprocess.run(
        [PYTHON, str(program), action, str(root)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(root)},
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with a folder of each case: hf, converted to t5x, converted to back."""
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    folder = tmp_path_factory.mktemp("models")
    _run_transformers("write", folder)
    for name in CASES:
        model = "bert" if is_bert(name) else "t5"
        for source, out in (("hf", "t5x"), ("t5x", "back")):
            words = [model, str(folder / name / source), str(folder / name / out)]
            assert cli.main(["convert", *words]) == 0
    _run_transformers("read", folder)
    return folder


def _read(case: str, root: Path) -> tuple[Any, Any]:
    """Return the configuration, with the head that the record names, and the parameters."""
    folder = root / case / "t5x"
    config, params = converted_t5.read_checkpoint(folder)
    record = checkpoint_record.read_record(str(folder / "checkpoint_0"))
    assert record is not None
    head: dict[str, Any] = {}
    if is_bert(case):
        head = {"head": record.config["head"], "classes": int(record.config["classes"])}
        head["sentence_head"] = record.config["sentence_head"] == "True"
    config = dataclasses.replace(config, **head, scale_attn_logits=record.scale_attn_logits)
    return config, params


def _compute(config: Any, params: Any, tokens: Any) -> tuple[Any, Any]:
    module = network.EncoderOnly(config)
    types = hugging_face_encoders.make_types(tokens) if config.token_types else None
    apply = jax.jit(
        lambda tree: module.apply(
            {"params": tree}, jnp.asarray(tokens, jnp.int32), types, enable_dropout=False
        )
    )
    made: tuple[Any, Any] = apply(params)
    return made


def _measure_error(case: str, made: tuple[Any, Any], reference: Any) -> float:
    """Return the largest difference where no padding is, of the largest value."""
    errors: list[float] = []
    for name, output in zip(OUTPUTS[case], made, strict=True):
        if name:
            expected = reference[name]
            values = np.asarray(output)[..., : expected.shape[-1]]
            is_token: Any = np.ones((3, 1), bool)
            if expected.ndim == 3:
                is_token = (reference["tokens"] > 0)[..., None]
            difference = np.abs((values - expected) * is_token).max()
            errors.append(float(difference / np.abs(expected * is_token).max()))
    return max(errors)


@pytest.mark.parametrize("case", CASES)
def test_outputs(case: str, root: Path) -> None:
    reference = np.load(root / case / "hf.npz")
    config, params = _read(case, root)
    assert (
        _measure_error(case, _compute(config, params, reference["tokens"]), reference) < TOLERANCE
    )


@pytest.mark.parametrize("case", ["pretraining", "t5_gated"])
def test_outputs_with_all_switches(case: str, root: Path) -> None:
    reference = np.load(root / case / "hf.npz")
    config, params = _read(case, root)
    switches = {"fuse_qkv": True, "transpose_batch_sequence": True, "scan_layers": True}
    config = dataclasses.replace(config, **switches)
    assert (
        _measure_error(case, _compute(config, params, reference["tokens"]), reference) < TOLERANCE
    )


@pytest.mark.parametrize("case", CASES)
def test_weights_come_back_bit_for_bit(case: str, root: Path) -> None:
    first, last = (weight_files.open_tensors(root / case / name) for name in ("hf", "back"))
    assert len(last) >= len(first) - 2  # copies of the embedding and of its bias
    for name, tensor in last.items():
        if name in first:
            np.testing.assert_array_equal(np.asarray(tensor()), np.asarray(first[name]()))
    reference, back = (np.load(root / case / f"{name}.npz") for name in ("hf", "back"))
    for name in reference.files:  # PyTorch rounds otherwise if memory is aligned otherwise
        largest = np.abs(reference[name]).max()
        np.testing.assert_allclose(reference[name], back[name], rtol=0, atol=1e-6 * largest)


FAULTS: dict[str, dict[str, Any]] = {
    "activation": {"mlp_activations": ("gelu",)},
    "epsilon": {"norm_epsilon": 1e-2},
    "scale": {"scale_attn_logits": False},
    "types": {"token_types": 0},
    "positions": {"positions": "none"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, root: Path) -> None:
    reference = np.load(root / "pretraining" / "hf.npz")
    config, params = _read("pretraining", root)
    config = dataclasses.replace(config, **FAULTS[fault])
    made = _compute(config, params, reference["tokens"])
    assert _measure_error("pretraining", made, reference) > 10 * TOLERANCE
