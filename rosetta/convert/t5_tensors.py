"""The tensors of a T5: their names and shapes in Hugging Face's files and in a checkpoint of T5X.

Hugging Face stores a matrix as [outputs, inputs] and T5X as [inputs, outputs]. The embedding and
the norms are the same in both. Hugging Face has the biases of relative positions as [buckets,
heads], T5X as [heads, buckets].

A conversion reads and writes blocks of rows in Hugging Face's layout, so that a part of a large
tensor is in memory at a time. Such rows are columns of T5X's matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rosetta.convert.dtype_conversion import DTYPES
from rosetta.convert.t5_config import BUCKETS
from rosetta.core.errors import DIFFERS, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rosetta.convert.t5_config import Architecture
    from rosetta.t5x.run.checkpoint_record import Record

EMBEDDING, OUTPUT = "shared.weight", "lm_head.weight"
# The relative bias of the cross-attention, which the files of T5 1.0 have. No version reads it.
UNUSED_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
# Copies of the embedding, which older files have.
EMBEDDING_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_BLOCK_VALUES = 32 << 20  # the values of a tensor that are in memory at once
_PROJECTIONS = {"q": "query", "k": "key", "v": "value", "o": "out"}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a T5.

    Attributes:
        name: The name in Hugging Face's files.
        array: The name in a checkpoint of T5X, below `target/`.
        shape: The shape in Hugging Face's files.
        is_transposed: Whether T5X stores the transposed matrix.
        is_query: Whether the tensor is the query kernel of an attention.
    """

    name: str
    array: str
    shape: tuple[int, ...]
    is_transposed: bool = True
    is_query: bool = False

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape in a checkpoint of T5X."""
        return self.shape[::-1] if self.is_transposed else self.shape

    def split_rows(self, alignment: int = 1) -> Iterator[slice]:
        """Yield slices of the rows, each for a block of limited size.

        Args:
            alignment: The number of which each slice has a multiple of rows, if such a slice is
                not much larger than the others.
        """
        row_count = self.shape[0]
        row_values = math.prod(self.shape[1:])
        step = max(1, _BLOCK_VALUES // row_values)
        if alignment <= 2 * step:
            step = max(step // alignment, 1) * alignment
        for start in range(0, row_count, step):
            yield slice(start, min(start + step, row_count))


class Model(Protocol):
    """A model to convert, in the files of Hugging Face or of T5X.

    Attributes:
        architecture: The architecture.
        dtype: The type of the numbers, the widest if there are several.
        dropped: Lines that name what the files have and a conversion leaves out.
        notes: Further lines for the user.
        record: The record of a checkpoint of T5X; None without one.
        is_scaled: Whether the files belong to a network that divides attention logits by
            sqrt(head_dim). The query kernels are then read divided by that number.
        fold_difference: The largest relative difference that rounding has made so far, where the
            query kernels were divided.
        scratch_bytes: The bytes of disk that reading takes for a while.
    """

    architecture: Any
    dtype: np.dtype[Any]
    dropped: list[str]
    notes: list[str]
    record: Record | None
    is_scaled: bool
    fold_difference: float
    scratch_bytes: int

    def list_tensors(self, architecture: Any) -> list[Tensor]:
        """Return the tensors of a model of this kind, in the order of a conversion."""

    def find_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of a tensor in Hugging Face's layout, without reading it.

        Raises:
            UserError: The files do not have the tensor.
        """

    def find_alignment(self, tensor: Tensor) -> int:
        """Return the number of rows that the files store, and read, together."""

    def read(self, tensor: Tensor, rows: slice) -> np.ndarray[Any, Any]:
        """Return rows of a tensor in Hugging Face's layout, in the type of the files."""


def list_tensors(architecture: Architecture) -> list[Tensor]:
    """Return the tensors of a T5, in the order of a conversion."""
    width = architecture.emb_dim
    tensors = [
        Tensor(
            EMBEDDING,
            "token_embedder/embedding",
            (architecture.vocab_size, width),
            is_transposed=False,
        )
    ]
    for stack, layer_count in (
        ("encoder", architecture.num_encoder_layers),
        ("decoder", architecture.num_decoder_layers),
    ):
        if not layer_count:
            continue  # the encoder alone
        for layer in range(layer_count):
            tensors += _list_layer(architecture, stack, layer)
        tensors.append(
            _make_norm(f"{stack}.final_layer_norm", f"{stack}/{stack}_norm", architecture)
        )
    if not architecture.logits_via_embedding and architecture.num_decoder_layers:
        shape = (architecture.vocab_size, width)
        tensors.append(Tensor(OUTPUT, "decoder/logits_dense/kernel", shape))
    return tensors


def _make_norm(name: str, array: str, architecture: Architecture) -> Tensor:
    """Return the scale of a norm."""
    return Tensor(f"{name}.weight", f"{array}/scale", (architecture.emb_dim,), is_transposed=False)


def _list_layer(architecture: Architecture, stack: str, layer: int) -> list[Tensor]:
    """Return the tensors of one layer.

    Args:
        architecture: The architecture.
        stack: "encoder" or "decoder".
        layer: The number of the layer.
    """
    block, arrays = f"{stack}.block.{layer}.layer", f"{stack}/layers_{layer}"
    has_encoder_attention = stack == "decoder"
    attention = "self_attention" if has_encoder_attention else "attention"
    tensors = _list_attention(architecture, f"{block}.0.SelfAttention", f"{arrays}/{attention}")
    if architecture.relative_bias == "layer" or layer == 0:
        owner = arrays if architecture.relative_bias == "layer" else stack
        tensors.append(
            Tensor(
                f"{block}.0.SelfAttention.relative_attention_bias.weight",
                f"{owner}/relpos_bias/rel_embedding",
                (BUCKETS, architecture.num_heads),
            )
        )
    norm = f"{arrays}/pre_{attention}_layer_norm"
    tensors.append(_make_norm(f"{block}.0.layer_norm", norm, architecture))
    mlp = 1
    if has_encoder_attention:
        mlp = 2
        tensors += _list_attention(
            architecture, f"{block}.1.EncDecAttention", f"{arrays}/encoder_decoder_attention"
        )
        norm = f"{arrays}/pre_cross_attention_layer_norm"
        tensors.append(_make_norm(f"{block}.1.layer_norm", norm, architecture))
    shape = (architecture.mlp_dim, architecture.emb_dim)
    for name in ("wi_0", "wi_1") if architecture.is_gated else ("wi",):
        tensors.append(
            Tensor(
                f"{block}.{mlp}.DenseReluDense.{name}.weight", f"{arrays}/mlp/{name}/kernel", shape
            )
        )
    tensors.append(
        Tensor(f"{block}.{mlp}.DenseReluDense.wo.weight", f"{arrays}/mlp/wo/kernel", shape[::-1])
    )
    norm = f"{arrays}/pre_mlp_layer_norm"
    return [*tensors, _make_norm(f"{block}.{mlp}.layer_norm", norm, architecture)]


def _list_attention(architecture: Architecture, module: str, array: str) -> list[Tensor]:
    """Return the four kernels of an attention.

    Args:
        architecture: The architecture.
        module: The name of the attention in Hugging Face's files.
        array: The name in a checkpoint of T5X.
    """
    shape = (architecture.num_heads * architecture.head_dim, architecture.emb_dim)
    return [
        Tensor(
            f"{module}.{name}.weight",
            f"{array}/{array_name}/kernel",
            shape[::-1] if name == "o" else shape,
            is_query=name == "q",
        )
        for name, array_name in _PROJECTIONS.items()
    ]


def count_parameters(architecture: Architecture) -> int:
    """Return the number of parameters of a T5."""
    return sum(math.prod(tensor.shape) for tensor in list_tensors(architecture))


def check_shapes(model: Model, where: str) -> None:
    """Check that a model has each tensor in the expected shape. No tensor is read.

    Args:
        model: The model.
        where: The folder of the model, for the error.

    Raises:
        UserError: A tensor is missing, or has another shape.
    """
    for tensor in model.list_tensors(model.architecture):
        shape = model.find_shape(tensor)
        if shape != tensor.shape:
            raise UserError(
                f"{tensor.name} has the shape {list(shape)}, and {list(tensor.shape)} is expected",
                where,
                "use a complete copy of the model",
                kind=DIFFERS,
                value=tensor.name,
            )


def check_no_leftover(leftover: Iterable[str], where: str) -> None:
    """Check that a conversion uses all tensors, because without one it would make another model.

    Args:
        leftover: The names of the tensors that the conversion does not use.
        where: The folder that contains them, for the error.

    Raises:
        UserError: There is such a tensor.
    """
    names = sorted(leftover)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise UserError(
            f"a model of these sizes does not have {names[0]!r}{more}",
            where,
            "convert a plain model without adapters or further outputs, with the number of layers "
            "that its configuration says",
            kind=UNSUPPORTED,
            value=names[0],
        )


def find_common_dtype(dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the type that holds the values of all types: the only one, or float32."""
    distinct = set(dtypes)
    return distinct.pop() if len(distinct) == 1 else DTYPES["float32"]


def read_padded(model: Model, tensor: Tensor, rows: slice) -> np.ndarray[Any, Any]:
    """Return rows of a tensor; those beyond the model's own are zero.

    Args:
        model: The model.
        tensor: A tensor of the model to write, which may have more or fewer rows.
        rows: The rows, a slice of numbers.
    """
    own_rows = model.find_shape(tensor)[0]
    block = model.read(tensor, slice(min(rows.start, own_rows), min(rows.stop, own_rows)))
    missing = rows.stop - rows.start - len(block)
    if not missing:
        return block
    zeros = np.zeros((missing, *block.shape[1:]), block.dtype)
    padded: np.ndarray[Any, Any] = np.concatenate([block, zeros])
    return padded
