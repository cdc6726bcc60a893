"""The keys and values of tokens decoded so far, in flax's `cache` collection under the names that
T5X's decoding looks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from rosetta.nn.attention import Mask

if TYPE_CHECKING:
    from flax import linen as nn


def update_cache(
    module: nn.Module, key: Any, value: Any, relative: Any, *, prefill_lengths: Any = None
) -> tuple[Any, Any, Any, Mask | None]:
    """Bring new keys and values into the module's cache; return what the new queries attend to.

    Shapes: key and value [batch, new, heads, depth]; relative [1, heads, length, length] or None.
    The cache holds `cached_key` and `cached_value`, [batch, heads, depth, length], and
    `cache_index`, the next place to fill: a scalar, or [batch] after a prompt of `prefill_lengths`
    int32 [batch] tokens was put in. The first call, without a cache, makes it as long as `key` and
    changes nothing.

    Returns:
      key and value [batch, length, heads, depth], the relative bias of the new queries, and their
      mask; the mask is None where the new tokens attend to each other as without a cache (the first
      call, and a prompt).
    """
    there = module.has_variable("cache", "cached_key")
    shape = (key.shape[0], key.shape[2], key.shape[3], key.shape[1])
    keys = module.variable("cache", "cached_key", jnp.zeros, shape, key.dtype)
    values = module.variable("cache", "cached_value", jnp.zeros, shape, value.dtype)
    index = module.variable("cache", "cache_index", lambda: jnp.array(0, jnp.int32))
    if not there:
        return key, value, relative, None
    length = keys.value.shape[-1]
    if prefill_lengths is not None:
        keys.value, values.value = (jnp.moveaxis(new, 1, 3) for new in (key, value))
        index.value = prefill_lengths.astype(jnp.int32)
        return key, value, relative, None
    if key.shape[1] != 1:
        raise ValueError(f"decoding takes one token at a time, got {key.shape[1]}")
    at = jnp.reshape(index.value, (-1,))  # [1] or [batch]
    here = (jnp.arange(length)[None, :] == at[:, None])[:, None, None, :]
    keys.value = jnp.where(here, jnp.moveaxis(key, 1, 3), keys.value)
    values.value = jnp.where(here, jnp.moveaxis(value, 1, 3), values.value)
    index.value = index.value + 1
    if relative is not None:
        relative = jnp.moveaxis(jnp.take(relative[0], at, axis=1), 1, 0)[:, :, None, :]
    seen = (jnp.arange(length)[None, :] <= at[:, None])[:, None, None, :]
    return (
        jnp.moveaxis(keys.value, 3, 1),
        jnp.moveaxis(values.value, 3, 1),
        relative,
        Mask(visible=seen),
    )
