"""Converted weights give in Pax the logits that the papers' formulas, and Hugging Face's LLaMA, give."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "paxml")

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from paxml import checkpoint_types, trainer_lib
from praxis import base_layer, py_utils

from rosetta import cli
from rosetta.pax import configs
from tests.support import llama_weights

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")


def _logits(restore: Path, ids: Any, fdl: dict[str, Any], repeated: bool) -> Any:
    """Logits [batch, length, vocab] of our LLaMA with the weights that CHECKPOINT_RESTORE_PATH names."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    experiment = configs.SyntheticLLaMA7B()
    settings = {
        "USE_REPEATED_LAYER": repeated,
        "FPROP_DTYPE": jnp.float32,
        "MAX_SEQ_LEN": ids.shape[1],
        "CHECKPOINT_RESTORE_PATH": str(restore),
        "ICI_MESH_SHAPE": [1, 1, 1],
    }
    for name, value in (fdl | settings).items():
        setattr(experiment, name, value)
    task = base_layer.instantiate(experiment.task())
    ids = jnp.asarray(ids, jnp.int32)
    whole = jnp.ones(ids.shape, jnp.float32)
    batch = py_utils.NestedMap(
        ids=ids,
        labels=ids,
        paddings=1 - whole,
        weights=whole,
        eval_sample_weights=whole[:, 0],
        segment_ids=whole.astype(jnp.int32),
        segment_pos=jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape),
    )
    metadata = trainer_lib.create_train_state_metadata(
        task, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
    )
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:1]).reshape(1, 1, 1), ("replica", "data", "mdl")
    )
    with mesh:
        kind = checkpoint_types.CheckpointType.GDA
        state, provenance = trainer_lib.initialize_model_state(
            task, jax.random.PRNGKey(0), batch, checkpoint_type=kind, do_init_checkpoint_rules=False
        )
        state, *_ = task.apply_init_checkpoint_rules(
            state, provenance, metadata.partition_specs, mesh, kind
        )
        made = task.model.apply(
            state.mdl_vars,
            batch,
            method=task.model.compute_predictions,
            rngs={"params": jax.random.PRNGKey(0), "random": jax.random.PRNGKey(0)},
        )
    return made.logits


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
