"""The tensors of a LLaMA model: their names, their sizes, and how Pax stores them.

All converters read and write a model as Meta's tensors, under Meta's names without `.weight`. A
matrix is [outputs, inputs]. The rotary embedding rotates pairs of neighbouring features, (2i, 2i +
1), of a head. Pax rotates the same pairs, so Pax's arrays are these matrices transposed and split
into heads. Hugging Face's files are different: see `rosetta.convert.huggingface`.

An array is what Pax stores under one path. It has one of Meta's tensors, or those of q, k and v.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rosetta.convert.config_fields import ROTARY_BASE
from rosetta.core.errors import DIFFERS, INVALID, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Array = Any  # a NumPy array, which may be of ml_dtypes.bfloat16

EMBEDDING, NORM, OUTPUT = "tok_embeddings", "norm", "output"
# Limits far above any LLaMA. With them, a list of all tensors fits into memory.
_MOST_LAYERS = 10_000
_LARGEST_SIZE = 1 << 31
_QKV = ("attention.wq", "attention.wk", "attention.wv")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a LLaMA model.

    Attributes:
        layers: The number of layers.
        dim: The width of the residual stream.
        heads: The number of query heads.
        kv_heads: The number of key and value heads.
        head_dim: The features of a head.
        hidden: The width of the gated feed-forward layer.
        vocab: The number of token ids.
        epsilon: The epsilon of the RMS norms.
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    epsilon: float = 1e-5

    def make_fdl_settings(self) -> dict[str, Any]:
        """Return the hyper-parameters of Pax's experiment for this model.

        The names and values are those of `--fdl.NAME=VALUE`.
        """
        attention: dict[str, Any] = {"USE_MQA": False}
        if self.kv_heads != self.heads:
            attention = {"USE_MQA": True, "NUM_KV_HEADS": self.kv_heads}
        return {
            "NUM_LAYERS": self.layers,
            "MODEL_DIMS": self.dim,
            "NUM_HEADS": self.heads,
            "DIMS_PER_HEAD": self.head_dim,
            "HIDDEN_DIMS": self.hidden,
            "VOCAB_SIZE": self.vocab,
            "RMS_NORM_EPSILON": self.epsilon,
            **attention,
        }

    def check(self, where: str) -> ModelShape:
        """Check that a LLaMA can have these sizes, and return the shape itself.

        Args:
            where: The file or folder that has the sizes, for the error.

        Raises:
            UserError: No LLaMA has these sizes.
        """
        sizes = {name: value for name, value in vars(self).items() if name != "epsilon"}
        wrong = [
            f"{name} {value!r}"
            for name, value in sizes.items()
            if isinstance(value, bool) or not isinstance(value, int) or value < 1
        ]
        if wrong:
            raise UserError(
                f"no LLaMA has {', '.join(wrong)}",
                where,
                "name the folder of a LLaMA",
                kind=UNSUPPORTED,
            )
        for name, value in sizes.items():
            if value > (_MOST_LAYERS if name == "layers" else _LARGEST_SIZE):
                raise UserError(
                    f"no LLaMA has {name} {value}",
                    where,
                    "name the folder of a LLaMA",
                    kind=UNSUPPORTED,
                    value=name,
                )
        if not (math.isfinite(self.epsilon) and 0 < self.epsilon <= 1):
            raise UserError(
                (
                    f"the epsilon of the norms is {self.epsilon}, and a number above 0 and at "
                    "most 1 is expected"
                ),
                where,
                "download or copy it again",
                kind=INVALID,
            )
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise UserError(
                (
                    f"no LLaMA has {self.heads} query heads and {self.kv_heads} key heads of "
                    f"{self.head_dim} features"
                ),
                where,
                "name the folder of a LLaMA",
                kind=UNSUPPORTED,
            )
        return self


def list_layer_sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the size of each tensor of one layer, by its name within the layer."""
    query_width, key_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "attention.wq": (query_width, shape.dim),
        "attention.wk": (key_width, shape.dim),
        "attention.wv": (key_width, shape.dim),
        "attention.wo": (shape.dim, query_width),
        "feed_forward.w1": (shape.hidden, shape.dim),
        "feed_forward.w2": (shape.dim, shape.hidden),
        "feed_forward.w3": (shape.hidden, shape.dim),
        "attention_norm": (shape.dim,),
        "ffn_norm": (shape.dim,),
    }


def list_tensor_sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the size of each tensor of the model, by its name, in the order of a conversion."""
    sizes: dict[str, tuple[int, ...]] = {EMBEDDING: (shape.vocab, shape.dim)}
    for layer in range(shape.layers):
        for name, size in list_layer_sizes(shape).items():
            sizes[f"layers.{layer}.{name}"] = size
    return sizes | {NORM: (shape.dim,), OUTPUT: (shape.vocab, shape.dim)}


def count_parameters(shape: ModelShape) -> int:
    """Return the number of parameters of the model."""
    return sum(math.prod(size) for size in list_tensor_sizes(shape).values())


def split_layer(name: str) -> tuple[int | None, str]:
    """Return the layer of a tensor, and the tensor's name within the layer.

    The layer is None for a tensor outside the layers, and the name is then the whole name.
    """
    if not name.startswith("layers."):
        return None, name
    _, layer, name_in_layer = name.split(".", 2)
    return int(layer), name_in_layer


# Pax's arrays outside the layers: their path in Pax's tree, and the tensors that they have.
TOP_ARRAYS = {
    "embedding_lookup.emb_var": (EMBEDDING,),
    "final_ln.scale": (NORM,),
    "softmax.logits_ffn.linear.w": (OUTPUT,),
}


def list_layer_arrays(shape: ModelShape) -> dict[str, tuple[str, ...]]:
    """Return Pax's arrays of one layer: their path within the layer, and the tensors they have."""
    attention: dict[str, tuple[str, ...]] = {"self_attention.combined_qkv.w": _QKV}
    if shape.kv_heads != shape.heads:
        attention = {
            f"self_attention.{pax_name}.w": (name,)
            for pax_name, name in zip(("query", "key", "value"), _QKV, strict=True)
        }
    return attention | {
        "self_attention.post.w": ("attention.wo",),
        "ff_layer.ffn_layer1_gate.linear.w": ("feed_forward.w1",),
        "ff_layer.ffn_layer1.linear.w": ("feed_forward.w3",),
        "ff_layer.ffn_layer2.linear.w": ("feed_forward.w2",),
        "layer_norm.scale": ("attention_norm",),
        "ff_layer.layer_norm.scale": ("ffn_norm",),
    }


def find_array(name: str, shape: ModelShape) -> tuple[str, tuple[str, ...]]:
    """Return Pax's array that has a tensor.

    Args:
        name: The name of the tensor within its layer, or of one outside the layers.
        shape: The sizes of the model.

    Returns:
        The path of the array within its layer or in the tree, and the tensors that it has.
    """
    arrays = TOP_ARRAYS | list_layer_arrays(shape)
    return next((path, names) for path, names in arrays.items() if name in names)


def _list_head_dimensions(path: str, shape: ModelShape) -> tuple[int, ...]:
    """Return the dimensions of the heads in an array of q, k or v.

    Pax has no dimension for a single key head.
    """
    number = shape.kv_heads if path.endswith(("key.w", "value.w")) else shape.heads
    if number == 1 and number != shape.heads:
        return (shape.head_dim,)
    return (number, shape.head_dim)


def pack_array(path: str, tensors: Sequence[Array], shape: ModelShape) -> Array:
    """Make Pax's array of tensors.

    Args:
        path: A path of TOP_ARRAYS or `list_layer_arrays`.
        tensors: The tensors of the array, in their order there.
        shape: The sizes of the model.
    """
    if path.endswith("linear.w"):
        return tensors[0].T
    if path.endswith("post.w"):
        return tensors[0].reshape(shape.dim, shape.heads, shape.head_dim)
    if path.startswith("self_attention."):
        head_dimensions = _list_head_dimensions(path, shape)
        matrices = [tensor.T.reshape(shape.dim, *head_dimensions) for tensor in tensors]
        return np.stack(matrices) if path.endswith("combined_qkv.w") else matrices[0]
    return tensors[0]


def unpack_array(path: str, array: Array, shape: ModelShape) -> tuple[Array, ...]:
    """Return the tensors of Pax's array: the inverse of `pack_array`."""
    if path.endswith("linear.w"):
        return (array.T,)
    if path.endswith("post.w"):
        return (array.reshape(shape.dim, -1),)
    if path.startswith("self_attention."):
        matrices = array if path.endswith("combined_qkv.w") else (array,)
        return tuple(matrix.reshape(shape.dim, -1).T for matrix in matrices)
    return (array,)


def list_array_sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the size of each of Pax's arrays, by its path in TOP_ARRAYS or within one layer."""
    tensor_sizes = {**list_tensor_sizes(replace(shape, layers=1)), **list_layer_sizes(shape)}
    array_sizes = {}
    for path, names in {**TOP_ARRAYS, **list_layer_arrays(shape)}.items():
        # These tensors take no memory: their strides are zero.
        tensors = [np.broadcast_to(np.float32(0), tensor_sizes[name]) for name in names]
        array_sizes[path] = tuple(pack_array(path, tensors, shape).shape)
    return array_sizes


class Source(Protocol):
    """A model in the files of Meta, Hugging Face or Pax, which a converter reads.

    Attributes:
        shape: The sizes of the model.
    """

    shape: ModelShape

    def size(self, name: str) -> tuple[int, ...]:
        """Return the size of a tensor without reading it.

        Raises:
            UserError: The files do not have the tensor.
        """

    def read(self, name: str) -> Array:
        """Return a tensor, in the type that the files have."""

    def check_unused(self) -> None:
        """Check that the files have no tensor that would be left out and could matter.

        Raises:
            UserError: A tensor is neither the model's nor known to be harmless.
        """


def check_tensors(source: Source, where: str) -> None:
    """Check that a source has each tensor of its model, in the expected size, and no other.

    No tensor is read.

    Args:
        source: The source.
        where: The folder of the source, for the error.

    Raises:
        UserError: A tensor is missing, superfluous, or of another size. The error names it.
    """
    for name, expected in list_tensor_sizes(source.shape).items():
        _check_size(name, source.size(name), expected, where)
    source.check_unused()


def _check_size(name: str, size: tuple[int, ...], expected: tuple[int, ...], where: str) -> None:
    """Raise UserError if a tensor does not have the expected size."""
    if size != expected:
        raise UserError(
            f"{name} is {list(size)}, and {list(expected)} is expected",
            where,
            "use a complete copy of the model",
            kind=DIFFERS,
        )


def check_no_leftover(leftover: Iterable[str], where: str) -> None:
    """Check that no tensor would be left out: without it, the result would be another model.

    Args:
        leftover: The names of the tensors that the conversion does not use.
        where: The file or folder that has them, for the error.

    Raises:
        UserError: There is such a tensor.
    """
    names = sorted(leftover)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        advice = (
            "merge adapters into the weights and convert a plain LLaMA or LLaMA-2, with the "
            "number of layers that its configuration says"
        )
        raise UserError(
            f"has {names[0]!r}{more}, which a LLaMA with this configuration does not have",
            where,
            advice,
            kind=UNSUPPORTED,
            value=names[0],
        )


def read_tensors(source: Source, where: str) -> Iterator[tuple[str, Array]]:
    """Yield the name and value of each tensor, in the order of `list_tensor_sizes`.

    Args:
        source: The source.
        where: The folder of the source, for the error.

    Raises:
        UserError: A tensor is not of the expected size.
    """
    for name, expected in list_tensor_sizes(source.shape).items():
        tensor = source.read(name)
        _check_size(name, tuple(tensor.shape), expected, where)
        yield name, tensor


def compute_rotary_frequencies(head_dim: int) -> Array:
    """Return the frequencies of LLaMA-2's rotary embedding, float64 [head_dim / 2].

    Some checkpoints have them as a tensor, although the model computes them.
    """
    return 1.0 / ROTARY_BASE ** (np.arange(0, head_dim, 2) / head_dim)


def check_rotary(stored: Array, shape: ModelShape, name: str, where: str) -> None:
    """Check that stored rotary frequencies are LLaMA-2's; they may be rounded to bfloat16.

    Args:
        stored: The stored frequencies.
        shape: The sizes of the model.
        name: The name of the tensor, for the error.
        where: The file or folder that has it, for the error.

    Raises:
        UserError: The frequencies are others.
    """
    expected = compute_rotary_frequencies(shape.head_dim)
    if stored.shape != expected.shape or not np.allclose(
        stored.astype(np.float64), expected, rtol=1e-2, atol=0
    ):
        raise UserError(
            f"{name} has other rotary frequencies than LLaMA-2",
            where,
            "convert a LLaMA or LLaMA-2",
            kind=UNSUPPORTED,
            value=name,
        )
