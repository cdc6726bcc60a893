"""The key-value cache of T5X's decoders: keys and values of the tokens decoded so far.

It is in Flax's collection `cache`, under the names that T5X's decoding looks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from rosetta.nn.attention import Mask

if TYPE_CHECKING:
    from flax import linen as nn


def update_cache(
    module: nn.Module, key: Any, value: Any, position_bias: Any, *, prefill_lengths: Any = None
) -> tuple[Any, Any, Any, Mask | None]:
    """Add new keys and values to a module's cache, and return what the new queries attend to.

    The cache has `cached_key` and `cached_value`, [batch, heads, head_dim, length], and
    `cache_index`, the next position to fill. The index is int32: a scalar, or [batch] if the cache
    was filled with prompts.

    - The first call creates the cache with the length of `key`, and adds nothing to it.
    - A call with `prefill_lengths` replaces the whole cache.
    - Every other call writes one token at `cache_index`.

    Args:
        module: The Flax module that has the cache.
        key: The new keys [batch, new, heads, head_dim]. `new` is the length of the cache if the
            call creates it or fills it with prompts, else 1.
        value: The new values, in the shape of `key`.
        position_bias: The relative position bias [1, heads, length, length], or None.
        prefill_lengths: The number of tokens of each prompt, int32 [batch], in the call that fills
            the cache with prompts; else None.

    Returns:
        The keys and the values [batch, length, heads, head_dim], the relative position bias of the
        new queries, and their mask. The mask is None if the new tokens attend to each other as they
        would without a cache: in the first call, and in the call with prompts.

    Raises:
        ValueError: The cache exists, there are no prompts, and `new` is not 1.
    """
    cache_existed = module.has_variable("cache", "cached_key")
    shape = (key.shape[0], key.shape[2], key.shape[3], key.shape[1])
    keys = module.variable("cache", "cached_key", jnp.zeros, shape, key.dtype)
    values = module.variable("cache", "cached_value", jnp.zeros, shape, value.dtype)
    index = module.variable("cache", "cache_index", lambda: jnp.array(0, jnp.int32))
    if not cache_existed:
        return key, value, position_bias, None
    length = keys.value.shape[-1]
    if prefill_lengths is not None:
        keys.value, values.value = (jnp.moveaxis(new, 1, 3) for new in (key, value))
        index.value = prefill_lengths.astype(jnp.int32)
        return key, value, position_bias, None
    if key.shape[1] != 1:
        raise ValueError(f"decoding takes one token at a time, got {key.shape[1]}")
    position = jnp.reshape(index.value, (-1,))  # [1] or [batch]
    is_new = (jnp.arange(length)[None, :] == position[:, None])[:, None, None, :]
    keys.value = jnp.where(is_new, jnp.moveaxis(key, 1, 3), keys.value)
    values.value = jnp.where(is_new, jnp.moveaxis(value, 1, 3), values.value)
    index.value = index.value + 1
    if position_bias is not None:
        # [heads, queries, length], where queries is 1 or batch -> [queries, heads, 1, length].
        rows = jnp.take(position_bias[0], position, axis=1)
        position_bias = jnp.moveaxis(rows, 1, 0)[:, :, None, :]
    visible = (jnp.arange(length)[None, :] <= position[:, None])[:, None, None, :]
    return (
        jnp.moveaxis(keys.value, 3, 1),
        jnp.moveaxis(values.value, 3, 1),
        position_bias,
        Mask(visible=visible),
    )
