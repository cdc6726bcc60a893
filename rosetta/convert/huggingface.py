"""Read LLaMA and Mistral models as Hugging Face has them, and write LLaMA models.

A Mistral is a LLaMA whose attention may be limited to a window of the last tokens. For texts that
fit into the window, both compute the same.

A model is a folder with config.json and the weights, in safetensors or pytorch_model.bin, in one
file or several.

Hugging Face's rotary embedding rotates the first half of a head's features with the second half.
LLaMA's rotates neighbours. The rows of q and k are permuted from one to the other, as in
transformers' models/llama/convert_llama_weights_to_hf.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import config_fields, json_documents, rotary_embedding, weight_files
from rosetta.convert.dtype_conversion import view_as_bits
from rosetta.convert.llama import (
    EMBEDDING,
    NORM,
    OUTPUT,
    ModelSizes,
    check_no_leftover,
    check_rotary,
    list_tensor_shapes,
    split_tensor_name,
)
from rosetta.convert.tokenizer_copy import ID_FIELDS
from rosetta.core.errors import CONFLICT, INVALID, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from rosetta.convert import torch_file

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
# The values of fields that config.json lacks, by `model_type`.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": None, "sliding_window": None},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
}
# Buffers that older versions of transformers saved. The model computes them again.
_ROTARY_BUFFER = re.compile(
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|original_inv_freq)"
)


def to_hf_name(name: str) -> str:
    """Return Hugging Face's name of one of Meta's tensors."""
    layer, name_in_layer = split_tensor_name(name)
    if layer is None:
        return f"{_TOP_NAMES[name]}.weight"
    return f"model.layers.{layer}.{_LAYER_NAMES[name_in_layer]}.weight"


def _count_rotated_heads(name: str, sizes: ModelSizes) -> int:
    """Return the number of heads in a tensor that the rotary embedding rotates; 0 for others."""
    if name.endswith("attention.wq"):
        return sizes.heads
    if name.endswith("attention.wk"):
        return sizes.kv_heads
    return 0


def permute_to_halves(tensor: Any, heads: int) -> Any:
    """Permute the rows from Meta's order to Hugging Face's.

    Args:
        tensor: [heads x head_dim, inputs]; the rows of a head are pairs of neighbours.
        heads: The number of heads.

    Returns:
        The shape of `tensor`; the rows of a head are the first elements of all pairs, then the
        second ones.
    """
    return tensor.reshape(heads, -1, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def permute_to_pairs(tensor: Any, heads: int) -> Any:
    """Permute the rows from Hugging Face's order to Meta's: the inverse of `permute_to_halves`."""
    return tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


@dataclass(frozen=True)
class _Config:
    """What a config.json says.

    Attributes:
        sizes: The sizes of the model.
        ties_embedding: Whether the embedding is also the kernel of the logits.
        copied_fields: The fields that another config.json of the model needs too.
        window: The number of last tokens that attention sees, or None for all.
    """

    sizes: ModelSizes
    ties_embedding: bool
    copied_fields: dict[str, Any]
    window: int | None


def _read_config(folder: Path) -> _Config:
    """Read and check config.json."""
    path = folder / "config.json"
    config = json_documents.read_document(path)
    config_fields.check_hf_fields(config, str(path))
    epsilon = config_fields.read_epsilon(config, "rms_norm_eps", str(path))
    rotary = rotary_embedding.parse_hf_fields(config, str(path))
    defaults = _DEFAULTS[config["model_type"]]
    window = _read_window({**defaults, **config}, str(path))
    try:
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads", defaults["num_key_value_heads"])
        head_dim = config.get("head_dim")
        sizes = ModelSizes(
            layers=config["num_hidden_layers"],
            dim=config["hidden_size"],
            heads=heads,
            kv_heads=heads if kv_heads is None else kv_heads,
            head_dim=config["hidden_size"] // heads if head_dim is None else head_dim,
            hidden=config["intermediate_size"],
            vocab=config["vocab_size"],
            epsilon=epsilon,
            rotary=rotary,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise UserError(
            f"a field that describes a LLaMA is missing or not valid ({error})",
            str(path),
            "download or copy it again",
            kind=INVALID,
        ) from None
    copied_fields = {
        name: config[name]
        for name in sorted(config_fields.HF_COPIED_FIELDS)
        if config.get(name) is not None
    }
    if window is not None:
        longest = copied_fields.get("max_position_embeddings", window)
        copied_fields["max_position_embeddings"] = min(longest, window)
    ties_embedding = bool(config.get("tie_word_embeddings"))
    return _Config(sizes.check(str(path)), ties_embedding, copied_fields, window)


def _read_window(config: Mapping[str, Any], where: str) -> int | None:
    """Return the number of last tokens that attention sees, or None for all.

    Args:
        config: The fields of config.json, and the defaults of the fields that it lacks.
        where: The path of the file, for the error.

    Raises:
        UserError: The number is not valid, or the model is a LLaMA, which has no window.
    """
    window = config["sliding_window"]
    if window is None:
        return None
    if config["model_type"] != "mistral":
        raise UserError(
            f"'sliding_window' is {config_fields.shorten_value(window)}, and a LLaMA has null",
            where,
            "convert a LLaMA or a Mistral",
            kind=UNSUPPORTED,
            value="sliding_window",
        )
    if type(window) is not int or window < 1:
        raise UserError(
            f"'sliding_window' is {config_fields.shorten_value(window)}, and a whole number above "
            "0 is expected",
            where,
            "download or copy it again",
            kind=INVALID,
            value="sliding_window",
        )
    return window


class Source:
    """A model of Hugging Face; see `rosetta.convert.llama.Source`.

    Attributes:
        sizes: The sizes of the model.
        extra: The fields of config.json that another config.json of the model needs too.
        notes: Lines for the user.
    """

    def __init__(self, folder: Path) -> None:
        """Read everything but the values of the tensors.

        Args:
            folder: The folder of the model.

        Raises:
            UserError: The folder is not a complete LLaMA, or has more than one model.
        """
        self.folder = folder
        config = _read_config(folder)
        self.sizes, self.extra = config.sizes, config.copied_fields
        self.notes = []
        if config.window is not None:
            self.notes.append(
                f"the model's attention sees the last {config.window:,} tokens: the result is the "
                "same for texts of at most so many tokens, and not for longer ones"
            )
        self._ties_embedding = config.ties_embedding
        self._tensors = weight_files.open_tensors(folder)

    def _find_tensor(self, name: str) -> torch_file.StoredTensor:
        """Return a tensor by Meta's name, without its values."""
        hf_name = to_hf_name(EMBEDDING if name == OUTPUT and self._ties_embedding else name)
        return weight_files.find_tensor(self._tensors, hf_name, self.folder)

    def find_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor by Meta's name.

        Raises:
            UserError: The model does not have the tensor.
        """
        return self._find_tensor(name).shape

    def check_unused(self) -> None:
        """Check the tensors that the conversion leaves out.

        Raises:
            UserError: A tensor is not one of a LLaMA, or contradicts config.json.
        """
        leftover = self._tensors.keys() - {
            to_hf_name(name) for name in list_tensor_shapes(self.sizes)
        }
        for name in sorted(filter(_ROTARY_BUFFER.fullmatch, leftover)):
            check_rotary(self._tensors[name](), self.sizes, name, str(self.folder))
            leftover.discard(name)
        check_no_leftover(leftover, str(self.folder))
        self._check_tied_output()

    def _check_tied_output(self) -> None:
        """Raise UserError if config.json ties the embedding and the logits, but they differ."""
        output_name, embedding_name = to_hf_name(OUTPUT), to_hf_name(EMBEDDING)
        if not self._ties_embedding or output_name not in self._tensors:
            return
        embedding, output = self._tensors[embedding_name], self._tensors[output_name]
        if (
            embedding.shape != output.shape
            or embedding.dtype != output.dtype
            or not np.array_equal(view_as_bits(embedding()), view_as_bits(output()))
        ):
            raise UserError(
                f"'tie_word_embeddings' is true, and {output_name} differs from {embedding_name}",
                str(self.folder),
                "set 'tie_word_embeddings' to false in config.json, or remove the tensor",
                kind=CONFLICT,
            )

    def read(self, name: str) -> Any:
        """Return a tensor by Meta's name, with the rows in Meta's order.

        Raises:
            UserError: The tensor is missing or damaged.
        """
        heads, tensor = _count_rotated_heads(name, self.sizes), self._find_tensor(name)()
        return permute_to_pairs(tensor, heads) if heads else tensor


def write_model(
    folder: Path,
    sizes: ModelSizes,
    tensors: Iterable[tuple[str, Any]],
    dtype: Any,
    extra: dict[str, Any] | None = None,
) -> None:
    """Write a model of Hugging Face, with the weights in safetensors.

    Args:
        folder: The folder to write into.
        sizes: The sizes of the model.
        tensors: The name and value of each tensor, in the order of `list_tensor_shapes` and in
            `dtype`.
        dtype: The type of the numbers.
        extra: More fields of config.json, which take precedence.
    """
    shapes = {to_hf_name(name): shape for name, shape in list_tensor_shapes(sizes).items()}
    weight_files.write_tensors(folder, shapes, _permute_tensors(sizes, tensors), dtype)
    config = _make_config(sizes, dtype, extra or {})
    json_documents.write_document(folder / "config.json", config)
    generation_config = {name: config[name] for name in ID_FIELDS if config.get(name) is not None}
    json_documents.write_document(folder / "generation_config.json", generation_config)


def _permute_tensors(sizes: ModelSizes, tensors: Iterable[tuple[str, Any]]) -> Iterator[Any]:
    """Yield tensors with their rows in Hugging Face's order."""
    for name, tensor in tensors:
        heads = _count_rotated_heads(name, sizes)
        yield permute_to_halves(tensor, heads) if heads else tensor


def _make_config(sizes: ModelSizes, dtype: Any, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of config.json; those of `extra` take precedence."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": sizes.dim,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "vocab_size": sizes.vocab,
        "rms_norm_eps": sizes.epsilon,
        **rotary_embedding.make_hf_fields(sizes.rotary),
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype.name,
        **extra,
    }
