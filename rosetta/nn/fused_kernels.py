"""Several kernels as one, for one matrix product instead of several.

Kernels of one width are stacked on a dimension of their own, [inputs, parts, outputs]. In memory
that is the same as side by side, and as one matrix it is the same to a GEMM; but where tensor
parallelism splits the outputs, every device keeps its share of every part. Side by side, [inputs,
parts x outputs], the parts would lie across the devices, and each use of one would move it between
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Sequence


def join_parts(parts: Sequence[Any]) -> Any:
    """Return arrays [..., outputs] as one: itself where there is one, [..., parts, outputs] where
    they are equally wide, else side by side.
    """
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[-1] for part in parts}) == 1:
        return jnp.stack(parts, axis=-2)
    return jnp.concatenate(parts, axis=-1)


def split_parts(whole: Any, widths: Sequence[int]) -> list[Any]:
    """Undo `join` of arrays of these widths."""
    if len(widths) == 1:
        return [whole]
    if len(set(widths)) == 1:
        return [
            lax.index_in_dim(whole, index, axis=whole.ndim - 2, keepdims=False)
            for index in range(len(widths))
        ]
    ends = [sum(widths[: index + 1]) for index in range(len(widths))]
    return [
        lax.slice_in_dim(whole, end - width, end, axis=whole.ndim - 1)
        for end, width in zip(ends, widths, strict=True)
    ]
