"""LLaMA's weights as Hugging Face has them: config.json, and safetensors (or pytorch_model.bin) in one file or several.

Its rotary embedding turns the two halves of a head where LLaMA's turns neighbours, so the rows of q and k are permuted
(transformers, models/llama/convert_llama_weights_to_hf.py).
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from rosetta.convert import files, safetensors, torchfile
from rosetta.convert.llama import EMBEDDING, NORM, OUTPUT, Shape, sizes
from rosetta.convert.meta import ROTARY_BASE
from rosetta.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FILE_BYTES = 5 * 10**9  # of one file, as Hugging Face's own
_TOP = {EMBEDDING: "model.embed_tokens", NORM: "model.norm", OUTPUT: "lm_head"}
_LAYER = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def named(name: str) -> str:
    """Return Hugging Face's name of one of Meta's tensors."""
    if name in _TOP:
        return f"{_TOP[name]}.weight"
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_LAYER[rest]}.weight"


def _rotated(name: str, shape: Shape) -> int:
    """Return how many heads a tensor's rows hold that the rotary embedding turns, 0 for none."""
    return shape.heads if name.endswith("attention.wq") else shape.kv_heads if name.endswith("attention.wk") else 0


def halves(tensor: Any, heads: int) -> Any:
    """Permute rows [heads x (pair, 2)] to [heads x (2, pair)]."""
    return tensor.reshape(heads, -1, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def pairs(tensor: Any, heads: int) -> Any:
    """Undo `halves`."""
    return tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def _config(folder: Path) -> tuple[Shape, bool]:
    """Return the sizes, and whether the embedding makes the logits too."""
    path = folder / "config.json"
    config = files.document(path)
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind, base = rotary.get("rope_type", rotary.get("type", "default")), config.get("rope_theta", rotary.get("rope_theta", ROTARY_BASE))
    odd = (
        f"the model is {config.get('model_type')!r}" if config.get("model_type") != "llama"
        else f"its rotary embedding is another than LLaMA-2's ({kind}, base {base})" if kind != "default" or float(base) != ROTARY_BASE
        else "its projections have biases" if config.get("attention_bias") or config.get("mlp_bias")
        else ""
    )  # fmt: skip
    if odd:
        raise UserError(odd, str(path), "convert a LLaMA or LLaMA-2")
    try:
        heads = config["num_attention_heads"]
        shape = Shape(
            config["num_hidden_layers"], config["hidden_size"], heads, config.get("num_key_value_heads") or heads, config.get("head_dim") or config["hidden_size"] // heads,
            config["intermediate_size"], config["vocab_size"], float(config["rms_norm_eps"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as problem:
        raise UserError(f"it lacks what makes a LLaMA ({problem})", str(path), "download or copy it again") from None
    return shape.checked(str(path)), bool(config.get("tie_word_embeddings"))


class Source:
    """A folder of Hugging Face's.

    Attributes:
      shape: the model's sizes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shape, self.tied = _config(folder)
        self.held: dict[str, torchfile.Tensor] = {}
        for stem, suffix, read in (("model", "safetensors", safetensors.read), ("pytorch_model", "bin", torchfile.read)):
            index = folder / f"{stem}.{suffix}.index.json"
            if index.exists():
                names = sorted(set(files.document(index).get("weight_map", {}).values()))
            else:
                names = [f"{stem}.{suffix}"] if (folder / f"{stem}.{suffix}").exists() else []
            for name in names:
                self.held |= read(files.beside(folder, name))
            if names:
                return
        raise UserError("there are no weights in it: neither safetensors nor pytorch_model.bin", str(folder), "download or copy it again")

    def read(self, name: str) -> Any:
        """Return a tensor with rotary pairs side by side."""
        held = self.held.get(named(EMBEDDING if name == OUTPUT and self.tied else name))
        if held is None:
            raise UserError(f"{named(name)} is in none of its files", str(self.folder), "download or copy it again")
        heads = _rotated(name, self.shape)
        tensor = held()
        if heads and tensor.shape != sizes(self.shape)[name]:
            raise UserError(f"{named(name)} is {list(tensor.shape)}, where {list(sizes(self.shape)[name])} is expected", str(self.folder), "use a whole copy of the model")
        return pairs(tensor, heads) if heads else tensor


def _files(shape: Shape, width: int) -> list[list[str]]:
    """Return which tensors go into which file."""
    found: list[list[str]] = [[]]
    room = FILE_BYTES
    for name, size in sizes(shape).items():
        needed = math.prod(size) * width
        if needed > room and found[-1]:
            found.append([])
            room = FILE_BYTES
        found[-1].append(name)
        room -= needed
    return found


def write(folder: Path, shape: Shape, tensors: Iterable[tuple[str, Any]], dtype: Any, *, positions: int = 4096) -> None:
    """Write a folder of Hugging Face's. `tensors`: in the order of `sizes`, in `dtype`; `positions`: the longest row it is to be used for."""
    groups, all_sizes, source = _files(shape, dtype.itemsize), sizes(shape), iter(tensors)
    index: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = "model.safetensors" if len(groups) == 1 else f"model-{number:05}-of-{len(groups):05}.safetensors"
        with contextlib.closing(safetensors.Writer(folder / file, {named(name): all_sizes[name] for name in group}, dtype)) as writer:
            for name in group:
                tensor = next(source)[1]
                heads = _rotated(name, shape)
                writer.add(named(name), halves(tensor, heads) if heads else tensor)
                index[named(name)] = file
    if len(groups) > 1:
        total = sum(math.prod(size) for size in all_sizes.values()) * dtype.itemsize
        files.write_document(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    files.write_document(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
        "hidden_size": shape.dim, "intermediate_size": shape.hidden, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "vocab_size": shape.vocab, "rms_norm_eps": shape.epsilon,
        "rope_theta": ROTARY_BASE, "max_position_embeddings": positions, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "torch_dtype": dtype.name,
    })  # fmt: skip
