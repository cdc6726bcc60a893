"""Converted weights compute in rosetta what they compute in transformers, for every family of T5.

transformers makes model folders of random weights. `rosetta convert t5` makes checkpoints of T5X
from them, and model folders again from these. ROSETTA_TEST_TORCH names the Python that has
transformers.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "ml_dtypes", "tensorstore")

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from rosetta import cli
from rosetta.convert import weight_files
from tests.support import converted_t5, hugging_face_t5

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.long

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")
TOLERANCE = 2e-5  # of the largest logit
ALL_SWITCHES: dict[str, Any] = {
    "fuse_qkv": True,
    "transpose_batch_sequence": True,
    "scan_layers": True,
}


def _run_transformers(action: str, root: Path) -> None:
    program = Path(hugging_face_t5.__file__)
    done = subprocess.run(
        [PYTHON, str(program), action, str(root)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(root)},
    )
    assert done.returncode == 0, done.stderr[-2000:]


def _convert(source: Path, out: Path, layout: str) -> None:
    assert cli.main(["convert", "t5", str(source), str(out), "--to", layout]) == 0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with a folder of each case: hf, converted to t5x, converted to back."""
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    folder = tmp_path_factory.mktemp("models")
    _run_transformers("write", folder)
    for name in hugging_face_t5.CASES:
        _convert(folder / name / "hf", folder / name / "t5x", "t5x")
        _convert(folder / name / "t5x", folder / name / "back", "hf")
    _run_transformers("read", folder)
    return folder


def _measure_error(logits: Any, reference: Any) -> float:
    """Return the largest difference of two logits where no padding is, of the largest logit."""
    is_token = (reference["targets"] > 0)[..., None]
    largest = np.abs(reference["logits"]).max()
    return float(np.abs((logits - reference["logits"]) * is_token).max() / largest)


@pytest.mark.parametrize("case", hugging_face_t5.CASES)
def test_logits_and_greedy_tokens(case: str, root: Path) -> None:
    reference = np.load(root / case / "hf.npz")
    config, params = converted_t5.read_checkpoint(root / case / "t5x")
    assert (
        _measure_error(converted_t5.compute_logits(config, params, reference), reference)
        < TOLERANCE
    )
    np.testing.assert_array_equal(
        converted_t5.decode_greedily(config, params, reference), reference["answers"]
    )


@pytest.mark.parametrize("case", ["t5_1_0-odd", "ul2-wide", "umt5-deep"])
def test_logits_with_all_switches(case: str, root: Path) -> None:
    reference = np.load(root / case / "hf.npz")
    config, params = converted_t5.read_checkpoint(root / case / "t5x")
    config = dataclasses.replace(config, **ALL_SWITCHES)
    assert (
        _measure_error(converted_t5.compute_logits(config, params, reference), reference)
        < TOLERANCE
    )


def _read_bits(folder: Path) -> dict[str, Any]:
    """Return the tensors of a model folder, float32, as their bits."""
    tensors = weight_files.open_tensors(folder)
    return {name: np.asarray(tensor()).view(np.uint32) for name, tensor in tensors.items()}


@pytest.mark.parametrize("case", hugging_face_t5.CASES)
def test_a_round_trip_changes_no_bit_and_no_answer(case: str, root: Path) -> None:
    before, after = (_read_bits(root / case / name) for name in ("hf", "back"))
    assert set(after) in ({*before}, {*before, "lm_head.weight"})
    for name, bits in before.items():
        np.testing.assert_array_equal(after[name], bits, err_msg=name)
    reference, back = (np.load(root / case / f"{name}.npz") for name in ("hf", "back"))
    assert _measure_error(back["logits"], reference) < TOLERANCE
    np.testing.assert_array_equal(back["answers"], reference["answers"])


def _change_leaves(tree: Any, change: Callable[[tuple[str, ...], Any], Any]) -> Any:
    """Return a tree with the leaves that a function makes from their names and values."""
    flat = flatten_dict(tree)
    return unflatten_dict({path: change(path, leaf) for path, leaf in flat.items()})


def _swap_gate(params: Any) -> Any:
    flat = flatten_dict(params)
    other = {"wi_0": "wi_1", "wi_1": "wi_0"}
    return unflatten_dict(
        {tuple(other.get(part, part) for part in path): leaf for path, leaf in flat.items()}
    )


def _shift_bias(params: Any) -> Any:
    def shift(path: tuple[str, ...], leaf: Any) -> Any:
        return jnp.roll(leaf, 1, axis=1) if path[-1] == "rel_embedding" else leaf

    return _change_leaves(params, shift)


def _separate_output(params: Any) -> Any:
    """Make the embedding a kernel of its own, which is not scaled."""
    kernel = {"kernel": params["token_embedder"]["embedding"].T}
    return {**params, "decoder": {**params["decoder"], "logits_dense": kernel}}


@pytest.mark.parametrize(
    ("case", "change", "fields"),
    [
        ("t5_1_1-wide", _swap_gate, {}),
        ("ul2-odd", _swap_gate, {}),
        ("t5_1_0-odd", _separate_output, {"logits_via_embedding": False}),
        ("umt5-deep", _separate_output, {"logits_via_embedding": False}),
        ("t5_1_0-wide", _shift_bias, {}),
        ("umt5-odd", _shift_bias, {}),
    ],
)
def test_a_fault_in_the_weights_is_seen(
    case: str, change: Callable[[Any], Any], fields: dict[str, Any], root: Path
) -> None:
    reference = np.load(root / case / "hf.npz")
    config, params = converted_t5.read_checkpoint(root / case / "t5x")
    config = dataclasses.replace(config, **fields)
    logits = converted_t5.compute_logits(config, change(params), reference)
    assert _measure_error(logits, reference) > 10 * TOLERANCE


@pytest.mark.parametrize("case", ["t5_1_1-odd", "mt5-wide", "umt5-wide"])
def test_another_gelu_is_seen(case: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn, "gelu", functools.partial(nn.gelu, approximate=False))
    reference = np.load(root / case / "hf.npz")
    config, params = converted_t5.read_checkpoint(root / case / "t5x")
    logits = converted_t5.compute_logits(config, params, reference)
    assert _measure_error(logits, reference) > 2 * TOLERANCE
