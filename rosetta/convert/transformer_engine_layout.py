"""Name the arrays of a T5X checkpoint that was trained with Transformer Engine as T5X's own.

NVIDIA's fork of T5X made each layer a `TransformerLayer` of Transformer Engine. That layer has the
same weights under other names: a norm is part of the projection after it, and projections of the
same input are one array. This distribution trains with Transformer Engine in T5X's own layout, so
no checkpoint of its runs needs this module.

Sources: NVIDIA/JAX-Toolbox, .github/container/patches/t5x/mirror-patch-t5x_te_in_contrib_noindent
(t5x/te_helper.py), and rosetta/utils/ckpt_converters/te_pax_t5x_ckpt_converter.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rosetta.convert.stored_array import StoredArray
from rosetta.core.errors import DAMAGED, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

# A name is that of a layer, and one of the names below. The layer may be one of the optimizer's
# moments.
_LAYER_NAME = re.compile(r"(.*(?:encoder|decoder)/layers_\d+)/(.*)")
# The arrays that have only another name, within a layer.
_RENAMED = {
    "attention/query/scale": "pre_attention_layer_norm/scale",
    "attention/qkv/scale": "pre_attention_layer_norm/scale",
    "self_attention/query/scale": "pre_self_attention_layer_norm/scale",
    "self_attention/qkv/scale": "pre_self_attention_layer_norm/scale",
    "encoder_decoder_attention/query/scale": "pre_cross_attention_layer_norm/scale",
    "mlp/scale": "pre_mlp_layer_norm/scale",
    "mlp/wo_kernel": "mlp/wo/kernel",
}
# The arrays that are several of T5X's, stacked in the second dimension.
_STACKED = {
    "attention/qkv/kernel": ("query", "key", "value"),
    "self_attention/qkv/kernel": ("query", "key", "value"),
    "encoder_decoder_attention/kv/kernel": ("key", "value"),
}
_STACK_AXIS = 1
_MLP_KERNEL = "mlp/wi_kernel"  # [inputs, activations, outputs]


class _StackPart(StoredArray):
    """One of the arrays that are stacked in another one."""

    def __init__(self, stack: StoredArray, index: int) -> None:
        """Make the array without reading it.

        Args:
            stack: The array that has this one.
            index: The position in the second dimension.
        """
        super().__init__(
            stack.where,
            _remove_axis(stack.shape),
            stack.dtype,
            _remove_axis(stack.chunk_shape),
        )
        self._stack, self._index = stack, index

    @property
    def largest_read(self) -> int:
        """The bytes of memory that reading a single value takes: those of the stack's block."""
        return self._stack.largest_read

    def _read_block(self, block: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        index = slice(self._index, self._index + 1)
        values = self._stack.read((*block[:_STACK_AXIS], index, *block[_STACK_AXIS:]))
        part: np.ndarray[Any, Any] = values.squeeze(_STACK_AXIS)
        return part


def _remove_axis(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the dimension of the stack."""
    return (*shape[:_STACK_AXIS], *shape[_STACK_AXIS + 1 :])


def is_used(names: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint with these names has layers of Transformer Engine."""
    for name in names:
        match = _LAYER_NAME.fullmatch(name)
        if match and (match[2] in _RENAMED or match[2] in _STACKED or match[2] == _MLP_KERNEL):
            return True
    return False


def rename_arrays(arrays: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Return the arrays of a checkpoint by the names that T5X's own network has for them.

    Args:
        arrays: The arrays by name. Those that are not of a layer of Transformer Engine stay.

    Raises:
        UserError: A stacked array has another shape than it needs, or an array is there twice.
    """
    renamed: dict[str, StoredArray] = {}
    for name, array in arrays.items():
        for own_name, own_array in _split_array(name, array):
            if own_name in renamed:
                raise UserError(
                    f"the array {own_name} is there twice: in T5X's and in Transformer Engine's "
                    "layout",
                    array.where,
                    "name a checkpoint that one run has written",
                    kind=DAMAGED,
                    value=own_name,
                )
            renamed[own_name] = own_array
    return renamed


def _split_array(name: str, array: StoredArray) -> list[tuple[str, StoredArray]]:
    """Return T5X's names for what an array has, and the arrays that they name.

    Args:
        name: The name of the array in the checkpoint.
        array: The array.

    Raises:
        UserError: The array is a stack, and its shape does not fit.
    """
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        return [(name, array)]
    layer, name_in_layer = match.groups()
    if name_in_layer in _RENAMED:
        return [(f"{layer}/{_RENAMED[name_in_layer]}", array)]
    parts = _STACKED.get(name_in_layer, ())
    if name_in_layer == _MLP_KERNEL:
        count = array.shape[_STACK_AXIS] if len(array.shape) == 3 else 0
        parts = ("wi",) if count == 1 else tuple(f"wi_{index}" for index in range(count))
    elif not parts:
        return [(name, array)]
    if array.shape[_STACK_AXIS : _STACK_AXIS + 1] != (len(parts),) or len(array.shape) != 3:
        raise UserError(
            f"{name} has the shape {array.shape}, which is not that of a stack of kernels",
            array.where,
            "name a complete checkpoint of NVIDIA's T5X",
            kind=DAMAGED,
            value=name,
        )
    module = name_in_layer.split("/")[0]
    return [
        (f"{layer}/{module}/{part}/kernel", _StackPart(array, index))
        for index, part in enumerate(parts)
    ]
