"""What every fused attention asks of a call, and the lengths that it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

if TYPE_CHECKING:
    from rosetta.nn.attention import Mask


def find_fused_problem(*, dtype: Any, mask: Mask) -> str:
    """Say why none can do a call, or nothing if one may."""
    if jnp.dtype(dtype) not in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)):
        return f"activations in {jnp.dtype(dtype).name}"
    if mask.query_segments is not None:
        return "packed examples"
    if mask.visible is not None:
        return "a mask that is neither padding nor causal"
    return ""


def count_valid_positions(valid: Any, batch: int, length: int) -> Any:
    """Return int32 [batch]: how many of bool [batch, length] are valid, which is a row's length
    where padding is at its end; all for None.
    """
    return (
        jnp.full((batch,), length, jnp.int32)
        if valid is None
        else jnp.sum(valid, axis=-1, dtype=jnp.int32)
    )
