"""A small LLaMA of random weights: its tensors, in anybody's layout, and its logits by NumPy, written from the papers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from rosetta.convert import torch_file
from rosetta.convert.llama import ModelSizes, list_tensor_shapes

MODELS = {
    "heads": ModelSizes(layers=2, dim=32, heads=4, kv_heads=4, head_dim=8, hidden=48, vocab=96),
    "groups": ModelSizes(layers=2, dim=32, heads=4, kv_heads=2, head_dim=8, hidden=88, vocab=96),
}


def make_weights(sizes: ModelSizes, dtype: Any = ml_dtypes.bfloat16) -> dict[str, Any]:
    """Random tensors by Meta's names."""
    rng = np.random.default_rng(0)
    return {
        name: (
            rng.normal(size=shape) * (0.3 if len(shape) > 1 else 0.1) + (len(shape) == 1)
        ).astype(dtype)
        for name, shape in list_tensor_shapes(sizes).items()
    }


def write_meta_folder(
    folder: Path, sizes: ModelSizes, tensors: dict[str, Any], **params: Any
) -> Path:
    """Write a folder as Meta has it, in one part."""
    folder.mkdir()
    (folder / "params.json").write_text(
        json.dumps(
            {
                "dim": sizes.dim,
                "n_layers": sizes.layers,
                "n_heads": sizes.heads,
                "n_kv_heads": sizes.kv_heads,
                "norm_eps": 1e-5,
                "vocab_size": -1,
            }
            | params
        )
    )
    dtype = next(iter(tensors.values())).dtype
    with contextlib.closing(
        torch_file.Writer(
            folder / "consolidated.00.pth",
            {f"{name}.weight": tensor.shape for name, tensor in tensors.items()},
            dtype,
        )
    ) as writer:
        for name, tensor in tensors.items():
            writer.add(f"{name}.weight", tensor)
    return folder


def _apply_rms_norm(x: Any, scale: Any, epsilon: float) -> Any:
    """Zhang and Sennrich 2019, arXiv:1910.07467."""
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * scale


def _apply_rotary_embedding(x: Any) -> Any:
    """Su et al. 2021, arXiv:2104.09864: neighbours as complex numbers, turned by position; x [length, heads, depth]."""
    length, _, depth = x.shape
    angles = np.outer(np.arange(length), 10_000.0 ** (-np.arange(0, depth, 2) / depth))
    made = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None]
    return np.stack([made.real, made.imag], -1).reshape(x.shape)


def compute_logits(sizes: ModelSizes, tensors: dict[str, Any], ids: Any) -> Any:
    """Logits [length, vocab] of one row of ids, in float64."""
    held = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    x, length = held["tok_embeddings"][ids], len(ids)
    for layer in range(sizes.layers):
        of = {
            name.split(".", 2)[2]: tensor
            for name, tensor in held.items()
            if name.startswith(f"layers.{layer}.")
        }
        y = _apply_rms_norm(x, of["attention_norm"], sizes.epsilon)
        q, k, v = (
            (y @ of[f"attention.w{which}"].T).reshape(length, -1, sizes.head_dim) for which in "qkv"
        )
        k, v = (
            np.repeat(each, sizes.heads // sizes.kv_heads, 1)
            for each in (_apply_rotary_embedding(k), v)
        )
        scores = np.einsum("qhd,khd->hqk", _apply_rotary_embedding(q), k) / np.sqrt(sizes.head_dim)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", shares, v).reshape(length, -1) @ of["attention.wo"].T
        y = _apply_rms_norm(x, of["ffn_norm"], sizes.epsilon)
        gate = y @ of["feed_forward.w1"].T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * (y @ of["feed_forward.w3"].T)) @ of["feed_forward.w2"].T
        )
    return _apply_rms_norm(x, held["norm"], sizes.epsilon) @ held["output"].T
