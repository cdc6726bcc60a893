"""Limits that the fused attentions of cuDNN and of Transformer Engine share, and the lengths that
both take for padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

if TYPE_CHECKING:
    from rosetta.nn.attention import Mask


def find_fused_problem(*, dtype: Any, mask: Mask) -> str:
    """Return why no fused attention can compute a call; empty if one may be able to."""
    if jnp.dtype(dtype) not in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)):
        return f"activations in {jnp.dtype(dtype).name}"
    if mask.query_segments is not None:
        return "packed examples"
    if mask.visible is not None:
        return "a mask that is neither padding nor causal"
    return ""


def count_valid_positions(valid: Any, batch: int, length: int) -> Any:
    """Return how many positions of each row are valid: the row's length, if padding is at its end.

    Args:
        valid: bool [batch, length], False at padding; None if every position is valid.
        batch: The number of rows.
        length: The number of positions in a row.

    Returns:
        int32 [batch].
    """
    if valid is None:
        return jnp.full((batch,), length, jnp.int32)
    return jnp.sum(valid, axis=-1, dtype=jnp.int32)
