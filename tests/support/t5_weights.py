"""Small T5 models in Hugging Face's files, with random weights.

The names of the tensors are written down here anew, so that a wrong name is noticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rosetta.convert import safetensors

# Attention is never as wide as the model: heads x d_kv is not d_model.
SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "d_model": 24,
    "num_heads": 4,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "t5_1_0": {"model_type": "t5", "feed_forward_proj": "relu", "tie_word_embeddings": True},
    "t5_1_1": {
        "model_type": "t5",
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
    "mt5": {
        "model_type": "mt5",
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "vocab_size": 130,
    },
    "byt5": {
        "model_type": "t5",
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "num_layers": 6,
    },
    "umt5": {
        "model_type": "umt5",
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
    "ul2": {
        "model_type": "t5",
        "feed_forward_proj": "gated-silu",
        "tie_word_embeddings": False,
        "num_heads": 2,
        "d_kv": 256,
    },
    "odd": {
        "model_type": "t5",
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": True,
        "vocab_size": 101,
    },
}


def make_config(family: str) -> dict[str, Any]:
    return SIZES | FAMILIES[family]


def make_weights(config: dict[str, Any], dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Every tensor of the model; each has values of its own."""
    rng = np.random.default_rng(7)
    model, joined = config["d_model"], config["num_heads"] * config["d_kv"]
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (config["vocab_size"], model)}
    for stack, layers in (
        ("encoder", config["num_layers"]),
        ("decoder", config["num_decoder_layers"]),
    ):
        for layer in range(layers):
            block = f"{stack}.block.{layer}.layer"
            attentions = ["0.SelfAttention"] + ["1.EncDecAttention"] * (stack == "decoder")
            for attention in attentions:
                for name in "qkv":
                    shapes[f"{block}.{attention}.{name}.weight"] = (joined, model)
                shapes[f"{block}.{attention}.o.weight"] = (model, joined)
            if layer == 0 or config["model_type"] == "umt5":
                shapes[f"{block}.0.SelfAttention.relative_attention_bias.weight"] = (
                    32,
                    config["num_heads"],
                )
            last = len(attentions)
            gated = config["feed_forward_proj"].startswith("gated")
            for name in ("wi_0", "wi_1") if gated else ("wi",):
                shapes[f"{block}.{last}.DenseReluDense.{name}.weight"] = (config["d_ff"], model)
            shapes[f"{block}.{last}.DenseReluDense.wo.weight"] = (model, config["d_ff"])
            for part in range(last + 1):
                shapes[f"{block}.{part}.layer_norm.weight"] = (model,)
        shapes[f"{stack}.final_layer_norm.weight"] = (model,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], model)
    return {
        name: rng.standard_normal(shape).astype(np.float32).astype(dtype)
        for name, shape in shapes.items()
    }


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    dtype = next(iter(tensors.values())).dtype
    writer = safetensors.Writer(path, {name: a.shape for name, a in tensors.items()}, dtype)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()


def write_folder(
    folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray], *, files: int = 1
) -> Path:
    """Write the model, in one file or in several with an index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if files == 1:
        write_tensors(folder / "model.safetensors", tensors)
        return folder
    weight_map: dict[str, str] = {}
    for number in range(files):
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = dict(list(tensors.items())[number::files])
        write_tensors(folder / name, part)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of the safetensors files in a folder."""
    tensors_by_name: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, stored in safetensors.read_tensors(path).items():
            assert name not in tensors_by_name
            tensors_by_name[name] = np.array(stored())
    return tensors_by_name
