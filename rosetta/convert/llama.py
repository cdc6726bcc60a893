"""The tensors of a LLaMA model: their names, their shapes, and how Pax stores them.

All converters read and write a model as Meta's tensors, under Meta's names without `.weight`. A
matrix is [outputs, inputs]. The rotary embedding rotates pairs of neighbouring features, (2i, 2i +
1), of a head. Pax rotates the same pairs, so the order of the features is the same. Hugging Face's
files are different: see `rosetta.convert.huggingface`.

An array is what Pax stores under one path. It is made of one of Meta's tensors, or of those of q, k
and v. Pax stores most matrices as [inputs, outputs], and splits those of attention into heads: see
`pack_array`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rosetta.convert import rotary_embedding
from rosetta.core.errors import DIFFERS, INVALID, UNSUPPORTED, UserError
from rosetta.nn.rotary_positions import RotaryEmbedding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Array = Any  # a NumPy array, which may be of ml_dtypes.bfloat16

EMBEDDING, NORM, OUTPUT = "tok_embeddings", "norm", "output"
# Limits far above any LLaMA. With them, a list of all tensors fits into memory.
_MAX_LAYERS = 10_000
_MAX_SIZE = 1 << 31
_CHOOSE_LLAMA = "choose the folder of a complete LLaMA"
LLAMA2_EPSILON, LLAMA2_ROTARY = 1e-5, RotaryEmbedding()
_QKV = ("attention.wq", "attention.wk", "attention.wv")


@dataclass(frozen=True)
class ModelSizes:
    """The numbers that give the shapes of all tensors of a LLaMA model, and what else it computes.

    Attributes:
        layers: The number of layers.
        dim: The width of the residual stream.
        heads: The number of query heads.
        kv_heads: The number of key and value heads.
        head_dim: The features of a head.
        hidden: The width of the gated feed-forward layer.
        vocab: The number of token ids.
        epsilon: The epsilon of the RMS norms.
        rotary: The rotary embedding.
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    epsilon: float = LLAMA2_EPSILON
    rotary: RotaryEmbedding = LLAMA2_ROTARY

    def make_fdl_settings(self) -> dict[str, Any]:
        """Return the hyper-parameters of Pax's experiment for this model, as --fdl takes them."""
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
            **rotary_embedding.make_fdl_settings(self.rotary),
        }

    def check(self, where: str) -> ModelSizes:
        """Check that a LLaMA can have these sizes, and return them.

        Args:
            where: The file or folder that states the sizes, for the error.

        Raises:
            UserError: No LLaMA can have these sizes.
        """
        whole_numbers = {
            name: value for name, value in vars(self).items() if name not in {"epsilon", "rotary"}
        }
        invalid = [
            f"{name} {value!r}"
            for name, value in whole_numbers.items()
            if isinstance(value, bool) or not isinstance(value, int) or value < 1
        ]
        if invalid:
            raise UserError(
                f"not valid for a LLaMA: {', '.join(invalid)}",
                where,
                _CHOOSE_LLAMA,
                kind=UNSUPPORTED,
            )
        for name, value in whole_numbers.items():
            maximum = _MAX_LAYERS if name == "layers" else _MAX_SIZE
            if value > maximum:
                raise UserError(
                    f"not valid for a LLaMA: {name} {value} is above {maximum}",
                    where,
                    _CHOOSE_LLAMA,
                    kind=UNSUPPORTED,
                    value=name,
                )
        if not (math.isfinite(self.epsilon) and 0 < self.epsilon <= 1):
            raise UserError(
                f"{self.epsilon} is not a valid epsilon of the norms: it must be above 0 and at "
                "most 1",
                where,
                "download or copy the model again",
                kind=INVALID,
            )
        heads_are_grouped = self.heads % self.kv_heads == 0
        features_are_paired = self.head_dim % 2 == 0
        if not heads_are_grouped or not features_are_paired:
            raise UserError(
                f"not valid for a LLaMA: {self.heads} query heads and {self.kv_heads} key heads of "
                f"{self.head_dim} features",
                where,
                "choose a model whose query heads are a multiple of its key heads, and whose heads "
                "have an even number of features",
                kind=UNSUPPORTED,
            )
        return self


def list_layer_shapes(sizes: ModelSizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of one layer, by its name within the layer."""
    query_width, key_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return {
        "attention.wq": (query_width, sizes.dim),
        "attention.wk": (key_width, sizes.dim),
        "attention.wv": (key_width, sizes.dim),
        "attention.wo": (sizes.dim, query_width),
        "feed_forward.w1": (sizes.hidden, sizes.dim),
        "feed_forward.w2": (sizes.dim, sizes.hidden),
        "feed_forward.w3": (sizes.hidden, sizes.dim),
        "attention_norm": (sizes.dim,),
        "ffn_norm": (sizes.dim,),
    }


def list_tensor_shapes(sizes: ModelSizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the model, by its name, in the order of a conversion."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (sizes.vocab, sizes.dim)}
    for layer in range(sizes.layers):
        for name, shape in list_layer_shapes(sizes).items():
            shapes[f"layers.{layer}.{name}"] = shape
    return shapes | {NORM: (sizes.dim,), OUTPUT: (sizes.vocab, sizes.dim)}


def count_parameters(sizes: ModelSizes) -> int:
    """Return the number of parameters of the model."""
    return sum(math.prod(shape) for shape in list_tensor_shapes(sizes).values())


def split_tensor_name(name: str) -> tuple[int | None, str]:
    """Return the number of a tensor's layer, and the tensor's name within the layer.

    For a tensor outside the layers, these are None and the whole name.
    """
    if not name.startswith("layers."):
        return None, name
    _, layer, name_in_layer = name.split(".", 2)
    return int(layer), name_in_layer


# Pax's arrays outside the layers: path in Pax's tree -> the tensors of which the array is made.
TOP_ARRAYS = {
    "embedding_lookup.emb_var": (EMBEDDING,),
    "final_ln.scale": (NORM,),
    "softmax.logits_ffn.linear.w": (OUTPUT,),
}


def list_layer_arrays(sizes: ModelSizes) -> dict[str, tuple[str, ...]]:
    """Return Pax's arrays of one layer: path within the layer -> the tensors that it is made of."""
    attention: dict[str, tuple[str, ...]] = {"self_attention.combined_qkv.w": _QKV}
    if sizes.kv_heads != sizes.heads:
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


def find_array(name: str, sizes: ModelSizes) -> tuple[str, tuple[str, ...]]:
    """Return the array of Pax that contains a tensor.

    Args:
        name: The name of the tensor: within its layer, or the whole name outside the layers.
        sizes: The sizes of the model.

    Returns:
        The path of the array (within its layer, or in the whole tree outside the layers), and the
        names of the tensors of which the array is made.
    """
    arrays = TOP_ARRAYS | list_layer_arrays(sizes)
    return next((path, names) for path, names in arrays.items() if name in names)


def _list_head_dimensions(path: str, sizes: ModelSizes) -> tuple[int, ...]:
    """Return the shape of an input's row in an array of q, k or v: (heads, head_dim).

    It is (head_dim,) if all query heads share one key head: Pax has no dimension for that head.
    """
    head_count = sizes.kv_heads if path.endswith(("key.w", "value.w")) else sizes.heads
    if head_count == 1 and sizes.heads != 1:
        return (sizes.head_dim,)
    return (head_count, sizes.head_dim)


def pack_array(path: str, tensors: Sequence[Array], sizes: ModelSizes) -> Array:
    """Convert Meta's tensors into the array that Pax stores.

    Args:
        path: The path of the array, a key of TOP_ARRAYS or `list_layer_arrays`.
        tensors: The tensors of which the array is made, in the order of the value of that key.
        sizes: The sizes of the model.
    """
    if path.endswith("linear.w"):
        return tensors[0].T
    if path.endswith("post.w"):
        return tensors[0].reshape(sizes.dim, sizes.heads, sizes.head_dim)
    if path.startswith("self_attention."):
        head_dimensions = _list_head_dimensions(path, sizes)
        matrices = [tensor.T.reshape(sizes.dim, *head_dimensions) for tensor in tensors]
        return np.stack(matrices) if path.endswith("combined_qkv.w") else matrices[0]
    return tensors[0]


def unpack_array(path: str, array: Array, sizes: ModelSizes) -> tuple[Array, ...]:
    """Convert an array of Pax into Meta's tensors: the inverse of `pack_array`."""
    if path.endswith("linear.w"):
        return (array.T,)
    if path.endswith("post.w"):
        return (array.reshape(sizes.dim, -1),)
    if path.startswith("self_attention."):
        matrices = array if path.endswith("combined_qkv.w") else (array,)
        return tuple(matrix.reshape(sizes.dim, -1).T for matrix in matrices)
    return (array,)


def list_array_shapes(sizes: ModelSizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of Pax's arrays, by its path in TOP_ARRAYS or within one layer."""
    tensor_shapes = {**list_tensor_shapes(replace(sizes, layers=1)), **list_layer_shapes(sizes)}
    array_shapes = {}
    for path, names in {**TOP_ARRAYS, **list_layer_arrays(sizes)}.items():
        # These tensors take no memory: their strides are zero.
        tensors = [np.broadcast_to(np.float32(0), tensor_shapes[name]) for name in names]
        array_shapes[path] = tuple(pack_array(path, tensors, sizes).shape)
    return array_shapes


class Source(Protocol):
    """A model to convert, in the files of Meta, Hugging Face or Pax.

    Tensors have Meta's names and Meta's order of rows, whatever the files have.

    Attributes:
        sizes: The sizes of the model.
    """

    sizes: ModelSizes

    def find_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it.

        Raises:
            UserError: The files do not have the tensor.
        """

    def read(self, name: str) -> Array:
        """Return a tensor, with the number type of the files."""

    def check_unused(self) -> None:
        """Check that a conversion leaves out only tensors that are known to be harmless.

        Raises:
            UserError: The files have a tensor that is not the model's and may change its results.
        """


def check_tensors(source: Source, where: str) -> None:
    """Check that a source has each tensor of its model, in the expected shape, and no other.

    No tensor is read.

    Args:
        source: The source.
        where: The folder of the source, for the error.

    Raises:
        UserError: A tensor is missing, is not the model's, or has another shape. The error names
            the tensor.
    """
    for name, expected in list_tensor_shapes(source.sizes).items():
        _check_shape(name, source.find_shape(name), expected, where)
    source.check_unused()


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...], where: str) -> None:
    """Raise UserError if a tensor does not have the expected shape."""
    if shape != expected:
        raise UserError(
            f"{name} has the shape {list(shape)}, and {list(expected)} is expected",
            where,
            "use a complete copy of the model",
            kind=DIFFERS,
        )


def check_no_leftover(leftover: Iterable[str], where: str) -> None:
    """Check that a conversion uses all tensors, because without one it would make another model.

    Args:
        leftover: The names of the tensors that the conversion does not use.
        where: The file or folder that contains them, for the error.

    Raises:
        UserError: There is such a tensor.
    """
    names = sorted(leftover)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        advice = (
            "merge adapters into the weights and convert a plain LLaMA, with the number of layers "
            "that its configuration says"
        )
        raise UserError(
            f"a LLaMA with this configuration does not have the tensor {names[0]!r}{more}",
            where,
            advice,
            kind=UNSUPPORTED,
            value=names[0],
        )


def read_tensors(source: Source, where: str) -> Iterator[tuple[str, Array]]:
    """Yield the name and value of each tensor, in the order of `list_tensor_shapes`.

    Args:
        source: The source.
        where: The folder of the source, for the error.

    Raises:
        UserError: A tensor is not of the expected shape.
    """
    for name, expected in list_tensor_shapes(source.sizes).items():
        tensor = source.read(name)
        _check_shape(name, tuple(tensor.shape), expected, where)
        yield name, tensor


def check_rotary(stored: Array, sizes: ModelSizes, name: str, where: str) -> None:
    """Check that stored rotary frequencies are the model's; they may be rounded to bfloat16.

    The model computes them. Some checkpoints store them as a tensor, too.

    Args:
        stored: The stored frequencies.
        sizes: The sizes of the model.
        name: The name of the tensor, for the error.
        where: The file or folder that contains the tensor, for the error.

    Raises:
        UserError: The frequencies are not those of the configuration.
    """
    expected = sizes.rotary.compute_frequencies(sizes.head_dim)
    if stored.shape != expected.shape or not np.allclose(
        stored.astype(np.float64), expected, rtol=1e-2, atol=0
    ):
        raise UserError(
            f"{name} has other rotary frequencies than the configuration gives",
            where,
            "download or copy the model again",
            kind=DIFFERS,
            value=name,
        )
