"""The same weights give the same logits in Hugging Face's T5, written by others in another framework."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from tests.support import small_t5

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")
MODELS: dict[str, dict[str, Any]] = {
    "t5_1_1": {},
    "t5_1_0": {"mlp_activations": ("relu",), "logits_via_embedding": True},
}


def _layer(side: str, index: int, cross: bool, gated: bool) -> dict[str, str]:
    """Where a layer's parameters are in Hugging Face's tree."""
    there, norm = (
        f"{side}.block.{index}.layer",
        "pre_attention_layer_norm" if side == "encoder" else "pre_self_attention_layer_norm",
    )
    names = {f"{norm}/scale": f"{there}.0.layer_norm.weight"}
    own = "attention" if side == "encoder" else "self_attention"
    names |= {
        f"{own}/{ours}/kernel": f"{there}.0.SelfAttention.{theirs}.weight"
        for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o"))
    }
    last = 1
    if cross:
        names["pre_cross_attention_layer_norm/scale"] = f"{there}.1.layer_norm.weight"
        names |= {
            f"encoder_decoder_attention/{ours}/kernel": f"{there}.1.EncDecAttention.{theirs}.weight"
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o"))
        }
        last = 2
    names["pre_mlp_layer_norm/scale"] = f"{there}.{last}.layer_norm.weight"
    products = {"wi_0": "wi_0", "wi_1": "wi_1", "wo": "wo"} if gated else {"wi": "wi", "wo": "wo"}
    return names | {
        f"mlp/{ours}/kernel": f"{there}.{last}.DenseReluDense.{theirs}.weight"
        for ours, theirs in products.items()
    }


def _parameters(weights: dict[str, Any], gated: bool, own_logits: bool) -> dict[str, Any]:
    flat: dict[str, Any] = {"token_embedder/embedding": weights["shared.weight"]}
    for side in ("encoder", "decoder"):
        flat[f"{side}/relpos_bias/rel_embedding"] = weights[
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ].T
        flat[f"{side}/{side}_norm/scale"] = weights[f"{side}.final_layer_norm.weight"]
        for index in range(2):
            for ours, theirs in _layer(side, index, side == "decoder", gated).items():
                flat[f"{side}/layers_{index}/{ours}"] = weights[theirs].T
    if own_logits:
        flat["decoder/logits_dense/kernel"] = weights["lm_head.weight"].T
    return dict(
        unflatten_dict({tuple(name.split("/")): jnp.asarray(value) for name, value in flat.items()})
    )


@pytest.mark.parametrize("which", MODELS)
def test_logits(which: str, tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    output = tmp_path / "reference.npz"
    program = Path(__file__).parents[3] / "support" / "hugging_face_t5.py"
    done = subprocess.run(
        [PYTHON, str(program), which, str(output)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(output)
    weights = {name[2:]: found[name] for name in found.files if name.startswith("w:")}
    settings = small_t5.make_config(**MODELS[which])
    params = _parameters(
        weights,
        gated=len(settings.mlp_activations) == 2,
        own_logits=not settings.logits_via_embedding,
    )
    given = {
        "encoder_input_tokens": jnp.asarray(found["inputs"]),
        "decoder_input_tokens": jnp.asarray(found["decoder"]),
        "decoder_target_tokens": jnp.asarray(found["targets"]),
    }
    for switches in ({}, {"fuse_qkv": True, "transpose_batch_sequence": True}):
        logits = small_t5.apply_network(
            small_t5.Transformer(small_t5.make_config(**MODELS[which], **switches)),
            {"params": params},
            given,
        )
        assert float(np.abs(found["logits"]).max()) > 1
        np.testing.assert_allclose(logits, found["logits"], atol=1e-4, rtol=1e-4)
