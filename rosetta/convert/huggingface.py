"""LLaMA's weights as Hugging Face has them: config.json, and safetensors (or pytorch_model.bin) in
one file or several.

Its rotary embedding turns the two halves of a head where LLaMA's turns neighbours, so the rows of q
and k are permuted (transformers, models/llama/convert_llama_weights_to_hf.py).
"""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import config_fields, output_folder, safetensors, torch_file
from rosetta.convert.config_fields import ROTARY_BASE
from rosetta.convert.dtype_conversion import view_as_bits
from rosetta.convert.llama import (
    EMBEDDING,
    NORM,
    OUTPUT,
    ModelShape,
    check_no_leftover,
    check_rotary,
    list_tensor_sizes,
)
from rosetta.core.errors import CONFLICT, DAMAGED, INVALID, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LARGEST_FILE = 5 * 10**9  # of one file, as Hugging Face's own
_TOP_NAMES = {EMBEDDING: "model.embed_tokens", NORM: "model.norm", OUTPUT: "lm_head"}
_LAYER_NAMES = {
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


# Buffers that older versions of transformers saved; the model computes them again.
_ROTARY_BUFFER = re.compile(
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|original_inv_freq)"
)


def to_hf_name(name: str) -> str:
    """Return Hugging Face's name of one of Meta's tensors."""
    if name in _TOP_NAMES:
        return f"{_TOP_NAMES[name]}.weight"
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_LAYER_NAMES[rest]}.weight"


def _count_rotated_heads(name: str, shape: ModelShape) -> int:
    """Return how many heads a tensor's rows hold that the rotary embedding turns, 0 for none."""
    return (
        shape.heads
        if name.endswith("attention.wq")
        else shape.kv_heads
        if name.endswith("attention.wk")
        else 0
    )


def permute_to_halves(tensor: Any, heads: int) -> Any:
    """Permute rows [heads x (pair, 2)] to [heads x (2, pair)]."""
    return tensor.reshape(heads, -1, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def permute_to_pairs(tensor: Any, heads: int) -> Any:
    """Undo `halves`."""
    return tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def _read_config(folder: Path) -> tuple[ModelShape, bool, dict[str, Any]]:
    """Return the sizes, whether the embedding makes the logits too, and the fields that another
    config.json keeps.
    """
    path = folder / "config.json"
    config = output_folder.read_document(path)
    config_fields.check_hf_fields(config, str(path))
    epsilon = config_fields.read_epsilon(config, "rms_norm_eps", str(path))
    try:
        heads = config["num_attention_heads"]
        kv_heads, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
        shape = ModelShape(
            config["num_hidden_layers"],
            config["hidden_size"],
            heads,
            heads if kv_heads is None else kv_heads,
            config["hidden_size"] // heads if head_dim is None else head_dim,
            config["intermediate_size"],
            config["vocab_size"],
            epsilon,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as problem:
        raise UserError(
            f"it lacks what makes a LLaMA ({problem})",
            str(path),
            "download or copy it again",
            kind=INVALID,
        ) from None
    extra = {
        name: config[name]
        for name in sorted(config_fields.HF_COPIED_FIELDS)
        if config.get(name) is not None
    }
    return shape.check(str(path)), bool(config.get("tie_word_embeddings")), extra


class Source:
    """A folder of Hugging Face's.

    Attributes:
      shape: the model's sizes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shape, self.tied, self.extra = _read_config(folder)
        self.held: dict[str, torch_file.StoredTensor] = {}
        adapter = folder / "adapter_config.json"
        if adapter.exists():
            raise UserError(
                "an adapter (LoRA) lies beside the weights, and it is not merged into them",
                str(adapter),
                "merge it first, or move its files away to convert the model without it",
                kind=UNSUPPORTED,
            )
        kinds = [
            next(iter(sorted(folder.glob(pattern))), None)
            for pattern in ("model*.safetensors", "pytorch_model*.bin")
        ]
        if kinds[0] and kinds[1]:
            what = (
                f"it holds weights twice, {kinds[0].name!r} and {kinds[1].name!r}, which may differ"
            )
            raise UserError(what, str(folder), "move the files of one kind away", kind=CONFLICT)
        for stem, suffix, read in (
            ("model", "safetensors", safetensors.read_tensors),
            ("pytorch_model", "bin", torch_file.read_tensors),
        ):
            names = self._weight_files(stem, suffix)
            for name in names:
                tensors = read(output_folder.find_listed_file(folder, name))
                twice = sorted(self.held.keys() & tensors.keys())
                if twice:
                    raise UserError(
                        f"{twice[0]!r} is in {name} and in another file",
                        str(folder),
                        "download or copy it again",
                        kind=CONFLICT,
                        value=twice[0],
                    )
                self.held |= tensors
            if names:
                return
        raise UserError(
            "there are no weights in it: neither safetensors nor pytorch_model.bin",
            str(folder),
            "download or copy it again",
            kind=MISSING,
        )

    def _weight_files(self, stem: str, suffix: str) -> list[str]:
        """Return the names of the files of weights of one kind, none where there are none.

        Raises:
          UserError: the index is damaged, or does not name each file of that kind.
        """
        index, single = (
            self.folder / f"{stem}.{suffix}.index.json",
            self.folder / f"{stem}.{suffix}",
        )
        if not index.exists():
            names = {single.name} if single.exists() else set()
        else:
            weights = output_folder.read_document(index).get("weight_map")
            if not isinstance(weights, dict) or not all(
                isinstance(name, str) for name in weights.values()
            ):
                raise UserError(
                    "its 'weight_map' does not give the file of each tensor",
                    str(index),
                    "download or copy it again",
                    kind=DAMAGED,
                )
            names = set(weights.values())
        odd = sorted({path.name for path in self.folder.glob(f"{stem}*.{suffix}")} - names)
        if odd and (names or index.exists()):
            raise UserError(
                f"{odd[0]} lies there, and the model does not name it",
                str(self.folder),
                "move it away, or download or copy the model again",
                kind=CONFLICT,
                value=odd[0],
            )
        return sorted(names)

    def _of(self, name: str) -> torch_file.StoredTensor:
        theirs = to_hf_name(EMBEDDING if name == OUTPUT and self.tied else name)
        held = self.held.get(theirs)
        if held is None:
            raise UserError(
                f"{theirs} is in none of its files",
                str(self.folder),
                "download or copy it again",
                kind=MISSING,
                value=theirs,
            )
        return held

    def size(self, name: str) -> tuple[int, ...]:
        """Return the size of a tensor."""
        return self._of(name).size

    def check_unused(self) -> None:
        """Raise UserError for a tensor that a LLaMA does not have."""
        leftover = self.held.keys() - {to_hf_name(name) for name in list_tensor_sizes(self.shape)}
        for name in sorted(filter(_ROTARY_BUFFER.fullmatch, leftover)):
            check_rotary(self.held[name](), self.shape, name, str(self.folder))
            leftover.discard(name)
        check_no_leftover(leftover, str(self.folder))
        output, embedding = to_hf_name(OUTPUT), to_hf_name(EMBEDDING)
        if self.tied and output in self.held:
            ours, theirs = self.held[embedding], self.held[output]
            if (
                ours.size != theirs.size
                or ours.dtype != theirs.dtype
                or not np.array_equal(view_as_bits(ours()), view_as_bits(theirs()))
            ):
                raise UserError(
                    f"'tie_word_embeddings' is true, and {output} differs from {embedding}",
                    str(self.folder),
                    "set 'tie_word_embeddings' to false in config.json, or remove the tensor",
                    kind=CONFLICT,
                )

    def read(self, name: str) -> Any:
        """Return a tensor with rotary pairs side by side."""
        heads, tensor = _count_rotated_heads(name, self.shape), self._of(name)()
        return permute_to_pairs(tensor, heads) if heads else tensor


def _assign_files(shape: ModelShape, width: int) -> list[list[str]]:
    """Return which tensors go into which file."""
    found: list[list[str]] = [[]]
    room = LARGEST_FILE
    for name, size in list_tensor_sizes(shape).items():
        needed = math.prod(size) * width
        if needed > room and found[-1]:
            found.append([])
            room = LARGEST_FILE
        found[-1].append(name)
        room -= needed
    return found


def write_model(
    folder: Path,
    shape: ModelShape,
    tensors: Iterable[tuple[str, Any]],
    dtype: Any,
    extra: dict[str, Any] | None = None,
) -> None:
    """Write a folder of Hugging Face's.

    `tensors`: in the order of `sizes`, in `dtype`; `extra`: fields of config.json that the source
    has, too.
    """
    groups, all_sizes, source = (
        _assign_files(shape, dtype.itemsize),
        list_tensor_sizes(shape),
        iter(tensors),
    )
    index: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = (
            "model.safetensors"
            if len(groups) == 1
            else f"model-{number:05}-of-{len(groups):05}.safetensors"
        )
        with contextlib.closing(
            safetensors.Writer(
                folder / file, {to_hf_name(name): all_sizes[name] for name in group}, dtype
            )
        ) as writer:
            for name in group:
                tensor = next(source)[1]
                heads = _count_rotated_heads(name, shape)
                writer.add(to_hf_name(name), permute_to_halves(tensor, heads) if heads else tensor)
                index[to_hf_name(name)] = file
    if len(groups) > 1:
        total = sum(math.prod(size) for size in all_sizes.values()) * dtype.itemsize
        output_folder.write_document(
            folder / "model.safetensors.index.json",
            {"metadata": {"total_size": total}, "weight_map": index},
        )
    output_folder.write_document(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": shape.dim,
            "intermediate_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "vocab_size": shape.vocab,
            "rms_norm_eps": shape.epsilon,
            "rope_theta": ROTARY_BASE,
            "max_position_embeddings": 4096,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": dtype.name,
            **(extra or {}),
        },
    )
