"""Join several kernels into one, so that one matrix product takes the place of several.

Kernels of the same width are stacked along a dimension of their own: [inputs, parts, outputs]. In
memory, and for a GEMM, that is the same as kernels side by side: [inputs, parts x outputs]. It
differs if tensor parallelism splits the outputs. Stacked, every device keeps its share of every
part. Side by side, a part would lie on some of the devices, and each use of it would move data
between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Sequence


def join_parts(parts: Sequence[Any]) -> Any:
    """Join arrays [..., outputs] that differ at most in the last dimension.

    Returns:
        [..., parts, outputs] if the widths are equal, else [..., sum of the widths]. A single part
        is returned as it is.
    """
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[-1] for part in parts}) == 1:
        return jnp.stack(parts, axis=-2)
    return jnp.concatenate(parts, axis=-1)


def split_parts(joined: Any, widths: Sequence[int]) -> list[Any]:
    """Split what `join_parts` joined from arrays of these widths, or a product with it."""
    if len(widths) == 1:
        return [joined]
    if len(set(widths)) == 1:
        return [
            lax.index_in_dim(joined, index, axis=joined.ndim - 2, keepdims=False)
            for index in range(len(widths))
        ]
    ends = [sum(widths[: index + 1]) for index in range(len(widths))]
    return [
        lax.slice_in_dim(joined, end - width, end, axis=joined.ndim - 1)
        for end, width in zip(ends, widths, strict=True)
    ]
