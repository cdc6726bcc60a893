"""Read a T5 in a checkpoint of T5X, with separate or with stacked layers.

Layouts of an array of layer N, for example the query kernel of the encoder's self-attention:

    encoder/layers_N/attention/query/kernel   [inputs, heads x head_dim]: rosetta's, and that of
        T5X's network `t5`. Its network `scalable_t5` has [inputs, heads, head_dim].
    encoder/encoder/attention/query/kernel    [inputs, layers, heads, head_dim]: `scalable_t5` with
        scan_layers, whose layers are stacked along the second dimension
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import t5x_checkpoint
from rosetta.convert.dtype_conversion import DTYPES
from rosetta.convert.layer_file import LayerFile
from rosetta.convert.t5_config import Architecture, check_record, parse_activations
from rosetta.convert.t5_tensors import (
    Tensor,
    check_no_leftover,
    check_shapes,
    find_common_dtype,
    list_tensors,
)
from rosetta.core.errors import MISSING, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_decimal
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.convert.stored_array import StoredArray

_TARGET = "target/"
_ADAPTER = re.compile(r"(.+)/lora_[ab]")
_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/(.+)")
# Bytes of a block in the file, above which a line says that reading takes so much memory.
_LARGE_BLOCK = 512 << 20
_STACK_AXIS = 1  # of stacked layers
_STACK = re.compile(r"(encoder|decoder)/\1/.+")
_SMALL_STACK = 1 << 20  # bytes of a stack that is decoded again for each layer


class T5XModel:
    """A T5 of a checkpoint of T5X; see `rosetta.convert.t5_tensors.Model`.

    If the model divides attention logits by sqrt(head_dim), the query kernels are read divided by
    it: transformers' T5 has no such division, and the queries are all that it changes. The kernels
    are read with their LoRA adapters merged: W + alpha / rank x A B.

    Attributes:
        source: The checkpoint.
    """

    def __init__(
        self, path: Path, activations: tuple[str, ...] | None = None, *, encoder_only: bool = False
    ) -> None:
        """Read everything but the values of the arrays.

        Args:
            path: A folder checkpoint_N, or a folder of them, of which the newest counts.
            activations: The activations of the MLP; None for those of the record, or those of T5.
            encoder_only: Whether to leave out the decoder.

        Raises:
            UserError: The checkpoint is not complete, or not that of a T5 with an encoder.
        """
        self.source = t5x_checkpoint.Source(path)
        self.where = str(self.source.folder)
        self.record = checkpoint_record.require_record(
            self.where, "the scale of its attention logits"
        )
        self.is_scaled = bool(self.record and self.record.scale_attn_logits)
        self.fold_difference = 0.0
        self.scratch_bytes = 0
        self._layer_files: dict[int, LayerFile] = {}  # by the id of the array
        self.dropped: list[str] = []
        self.notes: list[str] = []
        self._arrays = {
            name.removeprefix(_TARGET): array
            for name, array in self.source.arrays.items()
            if name.startswith(_TARGET)
        }
        self._adapters = {
            name: self._arrays.pop(name) for name in list(self._arrays) if _ADAPTER.fullmatch(name)
        }
        self._adapter_scale = self._find_adapter_scale()
        self._drop_heads()
        if encoder_only:
            self._drop("the decoder", "decoder/")
        self.architecture = self._find_architecture(activations)
        self._check_dtypes()
        self.dtype = find_common_dtype(array.dtype for array in self._arrays.values())
        check_shapes(self, self.where)
        self._check_unused()
        self._note_large_blocks()
        if self.source.is_transformer_engine:
            self.notes.append(
                "the layers are those of Transformer Engine in NVIDIA's T5X: read as T5X's own"
            )

    def _find_adapter_scale(self) -> float:
        """Return the factor alpha / rank of the LoRA adapters; 0 without adapters.

        Raises:
            UserError: The record, which has the factor, is missing.
        """
        if not self._adapters:
            return 0.0
        lora = self.record.lora if self.record else None
        if lora is None:
            raise UserError(
                f"{checkpoint_record.RECORD_FILE} is missing, and the strength of the LoRA "
                "adapters can't be known without it",
                self.where,
                "copy the file from the folder of the run that wrote the checkpoint",
                kind=MISSING,
            )
        count = len({_ADAPTER.sub(r"\1", name) for name in self._adapters})
        self.notes.append(
            f"the LoRA adapters of {count} kernels (rank {lora['rank']}, alpha "
            f"{lora['alpha']:g}) are merged into the kernels"
        )
        return float(lora["alpha"] / lora["rank"])

    def _drop(self, label: str, *prefixes: str) -> None:
        """Leave out the arrays whose names have a prefix."""
        names = [name for name in self._arrays if name.startswith(prefixes)]
        for name in names:
            del self._arrays[name]
        if names:
            self.dropped.append(f"{label} ({len(names)} arrays)")

    def _drop_heads(self) -> None:
        """Leave out the heads of an encoder alone, which T5EncoderModel does not have.

        Raises:
            UserError: The encoder is a BERT.
        """
        if "encoder/embedding_norm/scale" in self._arrays:
            raise UserError(
                "the model is a BERT, not a T5",
                self.where,
                "type rosetta convert bert",
                kind=UNSUPPORTED,
            )
        self._drop("the head of the encoder", "masked_head/", "row_head/")

    def _check_dtypes(self) -> None:
        """Raise UserError if an array has a type that a conversion would have to round."""
        for name, array in self._arrays.items():
            if array.dtype not in DTYPES.values():
                raise UserError(
                    f"{name} has values of the type {array.dtype.name}",
                    self.where,
                    f"name a checkpoint with parameters of {', '.join(DTYPES)}",
                    kind=UNSUPPORTED,
                    value=name,
                )

    @property
    def is_native(self) -> bool:
        """Whether the arrays have the names and shapes that rosetta's networks have."""
        return not (self.source.is_transformer_engine or self._adapters) and all(
            tensor.array in self._arrays and self._arrays[tensor.array].shape == tensor.array_shape
            for tensor in list_tensors(self.architecture)
        )

    def _find_architecture(self, activations: tuple[str, ...] | None) -> Architecture:
        """Return the architecture, by the shapes of the arrays and the record.

        Raises:
            UserError: The model is not a T5 with an encoder and a decoder.
        """
        if not any(name.startswith("encoder/") for name in self._arrays):
            raise UserError(
                "the model has no encoder, and transformers has no decoder-only T5",
                self.where,
                "convert an encoder-decoder model",
                kind=UNSUPPORTED,
            )
        vocab_size, emb_dim = self._find_shape("token_embedder/embedding", 2)
        has_stack_bias = "encoder/relpos_bias/rel_embedding" in self._arrays
        bias = "encoder" if has_stack_bias else "encoder/layers_0"
        num_heads, _ = self._find_shape(f"{bias}/relpos_bias/rel_embedding", 2)
        _, joined = self._find_shape("encoder/layers_0/attention/query/kernel", 2)
        is_gated = self._locate("encoder/layers_0/mlp/wi_0/kernel") is not None
        mlp = "wi_0" if is_gated else "wi"
        _, mlp_dim = self._find_shape(f"encoder/layers_0/mlp/{mlp}/kernel", 2)
        if joined % num_heads:
            raise UserError(
                f"{joined} features of the queries do not divide over {num_heads} heads",
                self.where,
                "name a checkpoint of a T5",
                kind=UNSUPPORTED,
            )
        architecture = Architecture(
            vocab_size,
            emb_dim,
            num_heads,
            joined // num_heads,
            mlp_dim,
            self._count_layers("encoder"),
            self._count_layers("decoder"),
            activations or self._find_activations(is_gated=is_gated),
            logits_via_embedding="decoder/logits_dense/kernel" not in self._arrays,
            relative_bias="stack" if has_stack_bias else "layer",
            **self._read_dropout_rate(),
        ).check(self.where)
        if architecture.is_gated != is_gated:
            raise UserError(
                f"the MLP has {mlp!r}, which does not fit {','.join(architecture.mlp_activations)}",
                "--activations",
                "give two names for a gated MLP, one for another",
                kind=UNSUPPORTED,
            )
        if self.record:
            recorded = self.record.config
            if not architecture.num_decoder_layers:
                of_decoder = ("num_decoder_layers", "logits_via_embedding")
                recorded = {name: text for name, text in recorded.items() if name not in of_decoder}
            check_record(recorded, architecture, self.where)
        return architecture

    def _find_activations(self, *, is_gated: bool) -> tuple[str, ...]:
        """Return the activations of the record, or those of T5, which a line names."""
        recorded = self.record.config.get("mlp_activations") if self.record else None
        if recorded:
            return parse_activations(recorded, self.where)
        activations = ("gelu", "linear") if is_gated else ("relu",)
        self.notes.append(
            f"the checkpoint does not name its activations: taken as {','.join(activations)}, "
            "which all public T5 but UL2 have (--activations sets others)"
        )
        return activations

    def _read_dropout_rate(self) -> dict[str, float]:
        """Return the keyword of the dropout rate, if the record has it."""
        recorded = self.record.config.get("dropout_rate", "") if self.record else ""
        rate = parse_decimal(recorded)
        return {} if rate is None else {"dropout_rate": rate}

    def _count_layers(self, stack: str) -> int:
        """Return the number of layers of the encoder or the decoder."""
        numbers = {
            int(match[2])
            for name in self._arrays
            if (match := _LAYER.fullmatch(name)) and match[1] == stack
        }
        stacked = self._arrays.get(f"{stack}/{stack}/pre_mlp_layer_norm/scale")
        if stacked is not None and not numbers and len(stacked.shape) == 2:
            return stacked.shape[_STACK_AXIS]
        return max(numbers, default=-1) + 1

    def _locate(self, name: str) -> tuple[StoredArray, int | None] | None:
        """Return the array that has rosetta's array `name`, and the layer in it if it is stacked.

        The layer is None for an array of one layer. The result is None if there is no such array.
        """
        if name in self._arrays:
            return self._arrays[name], None
        match = _LAYER.fullmatch(name)
        if match:
            stacked = self._arrays.get(f"{match[1]}/{match[1]}/{match[3]}")
            if stacked is not None and len(stacked.shape) > _STACK_AXIS:
                layer = int(match[2])
                return (stacked, layer) if layer < stacked.shape[_STACK_AXIS] else None
        return None

    def _find_shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the shape of rosetta's array `name`, with the heads and their features joined.

        Args:
            name: The name, below `target/`.
            rank: The number of dimensions that the array must have.

        Raises:
            UserError: The checkpoint has no such array, or the array has other dimensions.
        """
        located = self._locate(name)
        if located is None:
            raise UserError(
                f"the checkpoint has no array {name!r}",
                self.where,
                "name a complete checkpoint of T5X's networks t5 or scalable_t5",
                kind=MISSING,
                value=name,
            )
        array, layer = located
        shape = list(array.shape)
        if layer is not None:
            del shape[_STACK_AXIS]
        if len(shape) == 3 and rank == 2:
            joins_first = name.endswith("/out/kernel")
            first, second, third = shape
            shape = [first * second, third] if joins_first else [first, second * third]
        if len(shape) != rank:
            raise UserError(
                f"{name} has the shape {list(array.shape)}, and {rank} dimensions are expected",
                self.where,
                "name a checkpoint of T5X's networks t5 or scalable_t5",
                kind=UNSUPPORTED,
                value=name,
            )
        return tuple(shape)

    def _check_unused(self) -> None:
        """Name the arrays that the conversion leaves out.

        Raises:
            UserError: An array is not one of a T5.
        """
        used = set()
        for tensor in list_tensors(self.architecture):
            located = self._locate(tensor.array)
            if located is not None:
                used.add(id(located[0]))
        check_no_leftover(
            (name for name, array in self._arrays.items() if id(array) not in used), self.where
        )
        others = [name for name in self.source.arrays if not name.startswith(_TARGET)]
        for prefix, label in (
            ("state/", "the state of the optimizer"),
            ("flax_mutables/", "FP8 state and other variables"),
        ):
            names = [name for name in others if name.startswith(prefix)]
            count = len(set(names) - {t5x_checkpoint.STEP})
            if count:
                self.dropped.append(f"{label} ({count} arrays)")
            others = [name for name in others if name not in set(names)]
        check_no_leftover(others, self.where)

    def _note_large_blocks(self) -> None:
        """Add a line for the array whose blocks in the files are the largest, if they are large."""
        name, array = max(self._arrays.items(), key=lambda item: item[1].largest_read)
        if array.largest_read > _LARGE_BLOCK:
            self.notes.append(
                f"{name} is stored in blocks of {array.largest_read / 1e6:,.0f} MB, each of which "
                "has to be in memory at once"
            )

    def list_tensors(self, architecture: Architecture) -> list[Tensor]:
        """Return the tensors of a T5."""
        return list_tensors(architecture)

    def find_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of a tensor in Hugging Face's layout, without reading it.

        Raises:
            UserError: The checkpoint does not have the tensor.
        """
        shape = self._find_shape(tensor.array, len(tensor.shape))
        return shape[::-1] if tensor.is_transposed else shape

    def decode_into(self, scratch: Path) -> None:
        """Decode the arrays of stacked layers once, into files of a folder.

        Args:
            scratch: The folder. It has to stay while the model is read.
        """
        for name, array in self._arrays.items():
            is_stacked = _STACK.fullmatch(name) and len(array.shape) > _STACK_AXIS
            size = math.prod(array.shape) * array.dtype.itemsize
            if is_stacked and array.chunk_shape[_STACK_AXIS] > 1 and size > _SMALL_STACK:
                path = scratch / f"{len(self._layer_files)}.bin"
                self._layer_files[id(array)] = LayerFile(array, _STACK_AXIS, path)
                self.scratch_bytes += size

    def find_alignment(self, tensor: Tensor) -> int:
        """Return the number of rows that the checkpoint stores, and reads, together."""
        located = self._locate(tensor.array)
        if located is None or id(located[0]) in self._layer_files:
            return 1
        return located[0].chunk_shape[-1 if tensor.is_transposed else 0]

    def read(self, tensor: Tensor, rows: slice) -> np.ndarray[Any, Any]:
        """Return rows of a tensor in Hugging Face's layout.

        The type is that of the checkpoint, or float32 for a query kernel that is divided.
        """
        located = self._locate(tensor.array)
        if located is None:
            raise ValueError(f"{tensor.array} was not checked")
        array, layer = located
        layer_file = self._layer_files.get(id(array))
        if layer is None or layer_file is None:
            block = _read_rows(array, layer, tensor, rows)
        else:
            block = _read_rows(layer_file.open_layer(layer), None, tensor, rows)
            if layer + 1 == array.shape[_STACK_AXIS] and rows.stop == tensor.shape[0]:
                layer_file.remove()
        owner = tensor.array.rpartition("/")[0]
        if f"{owner}/lora_a" in self._adapters and tensor.is_transposed:
            block = self._merge_adapter(owner, block, rows)
        if tensor.is_query and self.is_scaled:
            return self._fold_scale(block)
        return block

    def _merge_adapter(
        self, owner: str, block: np.ndarray[Any, Any], rows: slice
    ) -> np.ndarray[Any, Any]:
        """Return rows of a kernel, [outputs, inputs], with the adapter added, in float32.

        Args:
            owner: The module of the kernel.
            block: The rows.
            rows: Which rows they are.
        """
        first: Any = self._adapters[f"{owner}/lora_a"].read().astype(np.float64)
        second: Any = self._adapters[f"{owner}/lora_b"].read((slice(None), rows)).astype(np.float64)
        merged: np.ndarray[Any, Any] = block + self._adapter_scale * (first @ second).T
        return merged.astype(np.float32)

    def _fold_scale(self, kernel: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a query kernel divided by sqrt(head_dim) in float32; note the rounding."""
        scale = np.sqrt(np.float32(self.architecture.head_dim))
        folded: np.ndarray[Any, Any] = kernel.astype(np.float32) / scale
        exact = kernel.astype(np.float64) / math.sqrt(self.architecture.head_dim)
        difference = np.abs(folded - exact)
        nonzero = exact != 0
        if nonzero.any():
            relative = float((difference[nonzero] / np.abs(exact[nonzero])).max())
            self.fold_difference = max(self.fold_difference, relative)
        return folded


def _read_rows(
    array: StoredArray, layer: int | None, tensor: Tensor, rows: slice
) -> np.ndarray[Any, Any]:
    """Return rows of a tensor in Hugging Face's layout.

    Args:
        array: The array that has the tensor.
        layer: The layer in a stacked array; None for an array of one layer.
        tensor: The tensor.
        rows: The rows, a slice of numbers.
    """
    selection = [slice(None)] * len(array.shape)
    if layer is not None:
        selection[_STACK_AXIS] = slice(layer, layer + 1)
    rank = len(array.shape) - (layer is not None)
    has_split_heads = rank > len(tensor.shape)
    if not has_split_heads:
        selection[-1 if tensor.is_transposed else 0] = rows
    block = array.read(tuple(selection))
    if layer is not None:
        block = block.squeeze(_STACK_AXIS)
    if has_split_heads:
        block = block.reshape(tensor.array_shape)
    if tensor.is_transposed:
        block = block.T
    return block[rows] if has_split_heads else block
