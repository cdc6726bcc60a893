"""Converted LLaMA and Mistral weights compute in Pax what they compute in transformers.

transformers makes model folders of random weights. `rosetta convert llama` makes checkpoints of Pax
from them, and model folders again from these. ROSETTA_TEST_TORCH names the Python that has
transformers.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "paxml", "tensorstore")

import jax.numpy as jnp
import numpy as np

from rosetta import cli
from rosetta.convert import huggingface
from rosetta.pax import configs
from tests.support import hugging_face_causal, pax_logits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.long

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")
TOLERANCE = 2e-5  # of the largest logit
CASES = hugging_face_causal.LLAMA_CASES
_REPEATED = ("llama2-deep", "llama3-wide", "mistral-odd")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with a folder of each case: hf, converted to pax, converted to back."""
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    folder = tmp_path_factory.mktemp("models")
    hugging_face_causal.run_transformers(PYTHON, "write", folder, *CASES)
    for name in CASES:
        out = folder / name
        words = ["--repeated"] if name in _REPEATED else []
        assert cli.main(["convert", "llama", str(out / "hf"), str(out / "pax"), *words]) == 0
        rotary = huggingface.Source(out / "hf").sizes.rotary
        words = ["--to", "hf", "--dtype", "float32", "--rope-theta", str(rotary.base)]
        if rotary.scaling:
            words += ["--rope-scaling", "8,1,4,64"]
        assert cli.main(["convert", "llama", str(out / "pax"), str(out / "back"), *words]) == 0
    hugging_face_causal.run_transformers(PYTHON, "read", folder, *CASES)
    return folder


def _open_model(root: Path, case: str, **changes: Any) -> pax_logits.Model:
    settings = huggingface.Source(root / case / "hf").sizes.make_fdl_settings()
    settings |= {"USE_REPEATED_LAYER": case in _REPEATED, **changes}
    return pax_logits.Model(
        configs.SyntheticLLaMA7B,
        root / case / "pax" / "checkpoints",
        settings,
        hugging_face_causal.LENGTH,
    )


def _measure(root: Path, case: str, model: pax_logits.Model) -> float:
    reference = np.load(root / case / "hf.npz")
    logits = model.compute_logits(reference["ids"], reference["mask"])
    return pax_logits.measure_error(logits, reference)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_tokens(case: str, root: Path) -> None:
    model = _open_model(root, case)
    assert _measure(root, case, model) < TOLERANCE
    reference = np.load(root / case / "hf.npz")
    prompts = reference["ids"][:, : hugging_face_causal.PROMPT_LENGTH]
    answers = model.decode_greedily(prompts, hugging_face_causal.GREEDY_TOKENS)
    np.testing.assert_array_equal(answers, reference["answers"])
    assert len(np.unique(answers)) > 3


@pytest.mark.parametrize("case", CASES)
def test_a_round_trip_changes_no_bit_and_no_answer(case: str, root: Path) -> None:
    before, after = (pax_logits.read_bits(root / case / name) for name in ("hf", "back"))
    assert set(after) == {*before, "lm_head.weight"}
    for name, bits in before.items():
        np.testing.assert_array_equal(after[name], bits, err_msg=name)
    reference, back = (np.load(root / case / f"{name}.npz") for name in ("hf", "back"))
    assert pax_logits.measure_error(back["logits"], reference) < TOLERANCE
    np.testing.assert_array_equal(back["answers"], reference["answers"])


def test_the_folder_has_all_documents(root: Path) -> None:
    folder = root / "llama3-odd" / "back"
    ids = json.loads((folder / "generation_config.json").read_text())
    assert ids == {"bos_token_id": 1, "eos_token_id": 2}
    card = (folder / "README.md").read_text()
    assert "checkpoint_00000000" in card
    assert "text-generation" in card


def _swap_queries_and_keys(path: str, value: Any) -> Any:
    return value[jnp.array([1, 0, 2])] if path.endswith("combined_qkv.w") else value


def _shift_scales(path: str, value: Any) -> Any:
    return value - 1 if path.endswith("layer_norm.scale") else value


def _halve_heads(path: str, value: Any) -> Any:
    """Order the features of keys as Hugging Face does."""
    if not path.endswith("key.w"):
        return value
    return jnp.concatenate([value[..., ::2], value[..., 1::2]], axis=-1)


@pytest.mark.parametrize(
    ("case", "change", "settings"),
    [
        ("llama2-wide", _swap_queries_and_keys, {}),
        ("llama2-odd", _shift_scales, {}),
        ("mistral-wide", _halve_heads, {}),
        ("llama3-wide", None, {"ROPE_SCALING": None}),
        ("llama3-odd", None, {"ROPE_THETA": 10_000}),
        ("mistral-deep", None, {"ROPE_THETA": 10_000}),
        ("llama2-deep", None, {"RMS_NORM_EPSILON": 1e-3}),
    ],
)
def test_a_fault_is_seen(
    case: str, change: Callable[[str, Any], Any] | None, settings: dict[str, Any], root: Path
) -> None:
    model = _open_model(root, case, **settings)
    if change is not None:
        model.change_variables(change)
    assert _measure(root, case, model) > 10 * TOLERANCE
