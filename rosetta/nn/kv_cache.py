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
    module: nn.Module, key: Any, value: Any, relative: Any, *, prefill_lengths: Any = None
) -> tuple[Any, Any, Any, Mask | None]:
    """Add new keys and values to a module's cache, and return what the new queries attend to.

    The cache has `cached_key` and `cached_value`, [batch, heads, head_dim, length], and
    `cache_index`, the next position to fill: int32, a scalar, or [batch] after a prompt.
    The first call creates the cache, with the length of `key`, and adds nothing to it.

    Args:
        module: The Flax module that has the cache.
        key: The new keys [batch, new, heads, head_dim]; `new` is 1 unless a cache is created or
            filled with a prompt.
        value: The new values, in the shape of `key`.
        relative: The relative position bias [1, heads, length, length], or None.
        prefill_lengths: The number of tokens of each prompt, int32 [batch]; given only in the call
            that fills the cache with a prompt.

    Returns:
        The keys and the values [batch, length, heads, head_dim], the relative position bias of the
        new queries, and their mask. The mask is None if the new tokens attend to each other as they
        would without a cache: in the first call and in that with a prompt.

    Raises:
        ValueError: The cache exists, and there is more than one new token and no prompt.
    """
    has_cache = module.has_variable("cache", "cached_key")
    shape = (key.shape[0], key.shape[2], key.shape[3], key.shape[1])
    keys = module.variable("cache", "cached_key", jnp.zeros, shape, key.dtype)
    values = module.variable("cache", "cached_value", jnp.zeros, shape, value.dtype)
    index = module.variable("cache", "cache_index", lambda: jnp.array(0, jnp.int32))
    if not has_cache:
        return key, value, relative, None
    length = keys.value.shape[-1]
    if prefill_lengths is not None:
        keys.value, values.value = (jnp.moveaxis(new, 1, 3) for new in (key, value))
        index.value = prefill_lengths.astype(jnp.int32)
        return key, value, relative, None
    if key.shape[1] != 1:
        raise ValueError(f"decoding takes one token at a time, got {key.shape[1]}")
    position = jnp.reshape(index.value, (-1,))  # [1] or [batch]
    is_new = (jnp.arange(length)[None, :] == position[:, None])[:, None, None, :]
    keys.value = jnp.where(is_new, jnp.moveaxis(key, 1, 3), keys.value)
    values.value = jnp.where(is_new, jnp.moveaxis(value, 1, 3), values.value)
    index.value = index.value + 1
    if relative is not None:
        relative = jnp.moveaxis(jnp.take(relative[0], position, axis=1), 1, 0)[:, :, None, :]
    visible = (jnp.arange(length)[None, :] <= position[:, None])[:, None, None, :]
    return (
        jnp.moveaxis(keys.value, 3, 1),
        jnp.moveaxis(values.value, 3, 1),
        relative,
        Mask(visible=visible),
    )
