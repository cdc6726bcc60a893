"""Read and write LLaMA models as checkpoints of Paxml; see `rosetta.convert.pax_checkpoint`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from rosetta.convert import pax_checkpoint
from rosetta.convert.llama import (
    LLAMA2_EPSILON,
    LLAMA2_ROTARY,
    TOP_ARRAYS,
    ModelSizes,
    check_no_leftover,
    find_array,
    list_array_shapes,
    list_layer_arrays,
    list_tensor_shapes,
    pack_array,
    split_tensor_name,
    unpack_array,
)
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.pax.run import model_record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rosetta.nn.rotary_positions import RotaryEmbedding

_EXPERIMENT = "rosetta.pax.configs.LLaMA7B"  # whose class computes all of these models
# Pax's experiments for LLaMA-2, by dim, layers, kv_heads and hidden.
_EXPERIMENTS = {
    (4096, 32, 32, 11008): "LLaMA7B",
    (5120, 40, 40, 13824): "LLaMA13B",
    (8192, 80, 8, 28672): "LLaMA70B",
}


class _ArrayPlace(NamedTuple):
    """The array that has a tensor.

    Attributes:
        path: The path within the layer, or in the model.
        layer: The layer of the tensor; None outside the layers.
        position: Which of the tensors in the array it is.
    """

    path: str
    layer: int | None
    position: int


class Source:
    """A checkpoint of Paxml; see `rosetta.convert.llama.Source`.

    Attributes:
        sizes: The sizes of the model.
        adapted: The number of arrays that have a LoRA adapter, which is added to them.
        dropped: What a conversion leaves out.
        name: The name of the checkpoint.
    """

    def __init__(
        self,
        path: Path,
        epsilon: float = LLAMA2_EPSILON,
        rotary: RotaryEmbedding = LLAMA2_ROTARY,
    ) -> None:
        """Read everything but the values of the arrays.

        Args:
            path: The folder of a run or of a checkpoint.
            epsilon: The epsilon of the RMS norms, which checkpoints do not have.
            rotary: The rotary embedding, which checkpoints do not have.

        Raises:
            UserError: The folder has no checkpoint of a LLaMA.
        """
        self._checkpoint = pax_checkpoint.Checkpoint(path)
        self.name = self._checkpoint.folder.parent.name
        self.adapted = self._checkpoint.adapted
        self.dropped = self._checkpoint.describe_dropped()
        where = self._checkpoint.where
        try:
            sizes = dataclasses.replace(self._infer_sizes(), epsilon=epsilon, rotary=rotary)
            self.sizes = sizes.check(where)
        except (KeyError, ValueError, IndexError):
            raise UserError(
                "not a checkpoint of a LLaMA of Pax's",
                where,
                "name a checkpoint that was saved without OCDBT",
                kind=UNSUPPORTED,
            ) from None
        self._shapes = list_array_shapes(self.sizes)
        # The last array that was unpacked: q, k and v come from one.
        self._unpacked: tuple[str, tuple[Any, ...]] = ("", ())

    def _infer_sizes(self) -> ModelSizes:
        """Return the sizes of the model from those of the arrays.

        Raises:
            KeyError, ValueError, IndexError: The arrays are not those of a LLaMA.
        """
        find_shape = self._checkpoint.find_shape
        vocab, dim = self._checkpoint.shapes["embedding_lookup.emb_var"]
        combined = find_shape("self_attention.combined_qkv.w")
        if combined:
            heads, head_dim = combined[2:]
            kv_heads = heads
        else:
            heads, head_dim = find_shape("self_attention.query.w")[1:]
            key_shape = find_shape("self_attention.key.w")
            kv_heads = key_shape[1] if len(key_shape) > 2 else 1
        return ModelSizes(
            layers=self._checkpoint.layer_count,
            dim=dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            hidden=find_shape("ff_layer.ffn_layer1_gate.linear.w")[1],
            vocab=vocab,
        )

    def _find_place(self, name: str) -> _ArrayPlace:
        """Return the array that has a tensor."""
        layer, name_in_layer = split_tensor_name(name)
        path, names = find_array(name_in_layer, self.sizes)
        return _ArrayPlace(path, layer, names.index(name_in_layer))

    def find_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor by Meta's name.

        Raises:
            UserError: The checkpoint does not have the tensor, or its array has another shape than
                the model needs or lacks a chunk.
        """
        place = self._find_place(name)
        self._checkpoint.check_array(place.path, place.layer, self._shapes[place.path])
        return list_tensor_shapes(self.sizes)[name]

    def check_unused(self) -> None:
        """Check the arrays that the conversion leaves out.

        The states of the optimizer and of FP8 are left out: they are not weights.

        Raises:
            UserError: An array is not one of a LLaMA, nor of a LoRA adapter of one.
        """
        unused = self._checkpoint.list_unused(
            TOP_ARRAYS, list_layer_arrays(self.sizes), self.sizes.layers
        )
        check_no_leftover(unused, self._checkpoint.where)

    def read(self, name: str) -> Any:
        """Return a tensor by Meta's name.

        Raises:
            UserError: The array of the tensor is missing or damaged.
        """
        place = self._find_place(name)
        key = self._checkpoint.make_full_path(place.path, place.layer) + f" {place.layer}"
        if self._unpacked[0] != key:
            array = self._checkpoint.read(place.path, place.layer)
            self._unpacked = key, unpack_array(place.path, array, self.sizes)
        return self._unpacked[1][place.position]


def write_checkpoint(
    folder: Path, sizes: ModelSizes, tensors: Iterable[tuple[str, Any]], *, repeated: bool = False
) -> None:
    """Write a checkpoint and the record of its model; see `rosetta.convert.pax_checkpoint.Writer`.

    Args:
        folder: The folder to write into.
        sizes: The sizes of the model.
        tensors: The name and value of each tensor, in the order of `list_tensor_shapes` and in
            float32.
        repeated: Stack the layers, as USE_REPEATED_LAYER needs them.
    """
    shapes = list_array_shapes(sizes)
    writer = pax_checkpoint.Writer(folder, shapes, sizes.layers, repeated=repeated)
    # The tensors of an array wait for the others of the array, for example q for k and v.
    waiting: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors:
        layer, name_in_layer = split_tensor_name(name)
        path, names = find_array(name_in_layer, sizes)
        own_tensors = waiting.setdefault(path, {})
        own_tensors[name_in_layer] = tensor
        if len(own_tensors) == len(names):
            del waiting[path]
            ordered = [own_tensors[own_name] for own_name in names]
            writer.write(path, layer, pack_array(path, ordered, sizes))
    writer.finish()
    record = model_record.ModelRecord(_EXPERIMENT, sizes.make_fdl_settings())
    model_record.write_record(str(folder), record)


def describe_experiment(sizes: ModelSizes) -> str:
    """Return how to choose the experiment of Pax that fits a checkpoint.

    It is the name of a known experiment, or the `--fdl` options for any other.
    """
    name = _EXPERIMENTS.get((sizes.dim, sizes.layers, sizes.kv_heads, sizes.hidden))
    has_known_values = (
        sizes.vocab == 32000
        and math.isclose(sizes.epsilon, LLAMA2_EPSILON)
        and sizes.rotary == LLAMA2_ROTARY
    )
    if name and has_known_values:
        return f"the experiment is {name}"
    return f"give the experiment {pax_checkpoint.format_options(sizes.make_fdl_settings())}"
