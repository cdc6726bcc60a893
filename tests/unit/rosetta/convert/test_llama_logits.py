"""Converted weights give in Pax the logits that the papers' formulas, and Hugging Face's LLaMA, give."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "paxml")

import numpy as np

from rosetta import cli
from rosetta.pax import configs
from tests.support import llama_weights, pax_logits

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")


def _logits(restore: Path, ids: Any, fdl: dict[str, Any], repeated: bool) -> Any:
    """Logits [batch, length, vocab] of our LLaMA with the weights that CHECKPOINT_RESTORE_PATH names."""
    settings = {**fdl, "USE_REPEATED_LAYER": repeated}
    model = pax_logits.Model(configs.SyntheticLLaMA7B, restore, settings, ids.shape[1])
    return model.compute_logits(ids, np.ones_like(ids))


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("which", llama_weights.MODELS)
def test_logits_match_the_formulas_of_the_papers(
    which: str, repeated: bool, tmp_path: Path
) -> None:
    shape = llama_weights.MODELS[which]
    tensors = llama_weights.make_weights(shape)
    at = llama_weights.write_meta_folder(tmp_path / "meta", shape, tensors)
    assert (
        cli.main(
            [
                "convert",
                "llama",
                str(at),
                str(tmp_path / "pax"),
                *(["--repeated"] if repeated else []),
            ]
        )
        == 0
    )
    ids = np.random.default_rng(3).integers(3, shape.vocab, (2, 16))
    expected = np.stack([llama_weights.compute_logits(shape, tensors, row) for row in ids])
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(
        _logits(tmp_path / "pax" / "checkpoints", ids, shape.make_fdl_settings(), repeated),
        expected,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("which", llama_weights.MODELS)
def test_logits_match_hugging_face(which: str, tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    shape = llama_weights.MODELS[which]
    program = Path(__file__).parents[3] / "support" / "hugging_face_llama.py"
    words = [PYTHON, str(program), str(tmp_path / "hf"), str(shape.kv_heads), str(shape.hidden)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(tmp_path / "hf" / "reference.npz")
    for layout in ("hf", "bin"):
        assert (
            cli.main(["convert", "llama", str(tmp_path / layout), str(tmp_path / f"pax-{layout}")])
            == 0
        )
        logits = _logits(
            tmp_path / f"pax-{layout}" / "checkpoints",
            found["ids"],
            shape.make_fdl_settings(),
            repeated=False,
        )
        assert np.abs(found["logits"]).max() > 1
        np.testing.assert_allclose(logits, found["logits"], rtol=1e-4, atol=1e-4)
    # And back: PyTorch reads what we write, bit for bit what it wrote.
    for layout in ("hf", "meta"):
        assert (
            cli.main(
                [
                    "convert",
                    "llama",
                    str(tmp_path / "pax-hf"),
                    str(tmp_path / f"back-{layout}"),
                    "--to",
                    layout,
                ]
            )
            == 0
        )
    words = [
        PYTHON,
        str(program),
        "compare",
        str(tmp_path / "hf"),
        str(tmp_path / "back-hf"),
        str(tmp_path / "back-meta"),
    ]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]}
    )
    assert done.returncode == 0, done.stderr[-2000:]
