"""Converted GPT-2 and GPT-NeoX weights compute in Pax what they compute in transformers.

transformers makes model folders of random weights. `rosetta convert gpt` makes checkpoints of Pax
from them, and model folders again from these. ROSETTA_TEST_TORCH names the Python that has
transformers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "paxml", "tensorstore")

import jax.numpy as jnp
import numpy as np

import rosetta
from rosetta import cli
from rosetta.convert import gpt, huggingface_gpt
from rosetta.pax import configs
from tests.support import hugging_face_causal, pax_logits

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.long

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")
TOLERANCE = 2e-5  # of the largest logit
CASES = hugging_face_causal.GPT_CASES
_REPEATED = ("gpt2-odd", "neox-wide")


def _list_pax_options(architecture: gpt.Architecture) -> list[str]:
    """Return the options that say what a checkpoint of Pax lacks."""
    words = ["--activation", architecture.activation]
    if architecture.layout == gpt.GPT_NEOX:
        words += ["--rotary-fraction", str(architecture.rotary_fraction)]
        words += ["--rope-theta", str(architecture.rotary_base)]
        words += ["--positions", str(architecture.positions)]
    if architecture.parallel_residual:
        words.append("--parallel-residual")
    return words


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
        assert cli.main(["convert", "gpt", str(out / "hf"), str(out / "pax"), *words]) == 0
        words = _list_pax_options(huggingface_gpt.HuggingFaceGPT(out / "hf").architecture)
        assert cli.main(["convert", "gpt", str(out / "pax"), str(out / "back"), *words]) == 0
    hugging_face_causal.run_transformers(PYTHON, "read", folder, *CASES)
    return folder


def _open_model(root: Path, case: str, **changes: Any) -> pax_logits.Model:
    architecture = huggingface_gpt.HuggingFaceGPT(root / case / "hf").architecture
    settings = {**architecture.make_fdl_settings(), "USE_REPEATED_LAYER": case in _REPEATED}
    return pax_logits.Model(
        configs.Synthetic126M,
        root / case / "pax" / "checkpoints",
        {**settings, **changes},
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
    assert set(after) == set(before)
    for name, bits in before.items():
        np.testing.assert_array_equal(after[name], bits, err_msg=name)
    reference, back = (np.load(root / case / f"{name}.npz") for name in ("hf", "back"))
    assert pax_logits.measure_error(back["logits"], reference) < TOLERANCE
    np.testing.assert_array_equal(back["answers"], reference["answers"])


def _swap_queries_and_keys(path: str, value: Any) -> Any:
    return value[jnp.array([1, 0, 2])] if path.endswith("combined_qkv.w") else value


def _add_to_scales(path: str, value: Any) -> Any:
    """Store the scales of norms as Hugging Face does, without the 1 that Praxis adds."""
    return value + 1 if path.endswith("layer_norm.scale") else value


def _shift_positions(path: str, value: Any) -> Any:
    return jnp.roll(value, 1, axis=0) if path.endswith("position_emb.emb_var") else value


def _order_as_gpt2(path: str, value: Any) -> Any:
    """Read queries, keys and values as GPT-2 has them, not head by head."""
    if not path.endswith("combined_qkv.w"):
        return value
    stacked = value.ndim == 5
    arrays = [
        jnp.asarray(array).transpose(2, 0, 3, 1).reshape(array.shape)
        for array in (value if stacked else [value])
    ]
    return jnp.stack(arrays) if stacked else arrays[0]


@pytest.mark.parametrize(
    ("case", "change", "settings"),
    [
        ("gpt2-wide", _swap_queries_and_keys, {}),
        ("gpt2-deep", _add_to_scales, {}),
        ("gpt2-odd", _shift_positions, {}),
        ("gpt2-wide", None, {"LAYERNORM_EPSILON": 1e-3}),
        ("neox-wide", _order_as_gpt2, {}),
        ("neox-wide", None, {"PARALLEL_RESIDUAL": False}),
        ("neox-deep", None, {"ROTARY_FRACTION": 1.0}),
        ("neox-deep", None, {"ROPE_THETA": 10_000}),
    ],
)
def test_a_fault_is_seen(
    case: str, change: Callable[[str, Any], Any] | None, settings: dict[str, Any], root: Path
) -> None:
    model = _open_model(root, case, **settings)
    if change is not None:
        model.change_variables(change)
    assert _measure(root, case, model) > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("case", "activation"),
    [("gpt2-wide", "ExactGELU"), ("gpt2-deep", "GELU"), ("neox-wide", "GELU")],
)
def test_another_gelu_is_seen(case: str, activation: str, root: Path) -> None:
    model = _open_model(root, case, ACTIVATION_CLS=activation)
    assert _measure(root, case, model) > 2 * TOLERANCE


_TRAINED_SIZES = {
    "NUM_LAYERS": 2,
    "NUM_HEADS": 4,
    "DIMS_PER_HEAD": 16,
    "MODEL_DIMS": 64,
    "HIDDEN_DIMS": 176,
    "VOCAB_SIZE": 264,
}


def _train(folder: Path) -> None:
    """Train a GPT on the documentation for 20 steps in float32, as a user does."""
    docs = Path(rosetta.__file__).parents[1] / "docs" / "how-to"
    words = {
        "CONFIG": "Pile126M",
        "DATA": f"text:{docs}/*.md",
        "VOCAB_PATH": "byte",
        "MAX_STEPS": 20,
        "LOG_DIR": folder,
        "NUM_GPUS": 1,
        "PREC": "float32",
        "ICI_MESH_SHAPE": "[1,1,1]",
        "PERCORE_BATCH_SIZE": 4,
        "MAX_SEQ_LEN": hugging_face_causal.LENGTH,
        "LEARNING_RATE": "3e-3",
        "fdl.LR_COS_WARMUP": 2,
        "fdl.DCN_MESH_SHAPE": "[1,1,1]",
        **{f"fdl.{name}": value for name, value in _TRAINED_SIZES.items()},
    }
    command = [sys.executable, "-m", "rosetta", "pax", "train"]
    done = subprocess.run(
        command + [f"{name}={value}" for name, value in words.items()],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def _compute_loss(logits: Any, ids: Any) -> float:
    """Return the mean loss of the tokens of rows, of which the first one is not predicted."""
    logits = logits[:, :-1].astype(np.float64)
    largest = logits.max(-1, keepdims=True)
    log_sums = np.log(np.exp(logits - largest).sum(-1)) + largest[..., 0]
    chosen = np.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
    return float((log_sums - chosen).mean())


def test_a_trained_model_has_the_same_loss(tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    _train(tmp_path / "run")
    assert cli.main(["convert", "gpt", str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    held_out = (Path(rosetta.__file__).parents[1] / "README.md").read_bytes()
    rows, length = 8, hugging_face_causal.LENGTH
    ids = np.frombuffer(held_out[: rows * length], np.uint8).reshape(rows, length).astype(int) + 3
    np.savez(tmp_path / "rows.npz", ids=ids)
    hugging_face_causal.run_transformers(PYTHON, "score", tmp_path)
    checkpoints = tmp_path / "run" / "checkpoints"
    model = pax_logits.Model(configs.Synthetic126M, checkpoints, _TRAINED_SIZES, length)
    loss = _compute_loss(model.compute_logits(ids, np.ones_like(ids)), ids)
    assert loss < np.log(264) - 0.5  # the model has learned something
    assert loss == pytest.approx(float(np.load(tmp_path / "loss.npy")), abs=1e-4)
