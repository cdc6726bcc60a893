"""Block-sparse attention in plain XLA: each block of queries gathers the blocks of keys it sees.

The time and the memory grow linearly with the length: a query has as many keys as its blocks. The
global blocks, of which there are a few, see all keys. `sparse_layout.make_token_mask` is the same
attention as a dense mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from rosetta.nn import sparse_layout
from rosetta.nn.attention import choose_mask_value

if TYPE_CHECKING:
    from rosetta.t5x.run.sparse_attention import SparseAttention


def find_relative_range(length: int, block: int) -> tuple[int, int]:
    """Return the range of the keys of a bias whose queries are one block: its length and start.

    The keys are the blocks at all distances from the block of queries, so that the bias of any
    block of queries and any block of keys is a part of it (see compute_block_sparse_attention).

    Args:
        length: The tokens of a row.
        block: The tokens of a block.
    """
    blocks = -(-length // block)
    return (2 * blocks - 1) * block, -(blocks - 1) * block


def compute_block_sparse_attention(
    query: Any,
    key: Any,
    value: Any,
    valid_keys: Any,
    settings: SparseAttention,
    relative: Any = None,
) -> Any:
    """Compute attention over the blocks of a layout.

    Args:
        query: [batch, length, heads, head_dim], already scaled.
        key: The shape of `query`.
        value: The shape of `query`.
        valid_keys: bool [batch, length], False at padding; None if there is no padding.
        settings: The layout.
        relative: The bias by relative position [1, heads, block, keys], where the keys are those of
            find_relative_range; None for none.

    Returns:
        The shape and type of `query`.
    """
    length = query.shape[1]
    blocks = -(-length // settings.block)
    missing = blocks * settings.block - length
    if valid_keys is None:
        valid_keys = jnp.ones(query.shape[:2], bool)
    valid_keys = jnp.pad(valid_keys, ((0, 0), (0, missing)))
    valid = jnp.transpose(valid_keys.reshape(-1, blocks, settings.block), (1, 0, 2))
    padding = ((0, 0), (0, missing), (0, 0), (0, 0))
    query, key, value = (
        _split_blocks(jnp.pad(x, padding), settings.block) for x in (query, key, value)
    )
    count = min(settings.num_global_blocks, blocks)
    tiles = None if relative is None else _split_tiles(relative[0], settings.block)
    parts = []
    if count:
        parts.append(_attend_to_all(query[:, :count], key, value, valid, tiles))
    if count < blocks:
        numbers, is_block = sparse_layout.list_key_blocks(settings, query.shape[0], blocks)
        bias = None if tiles is None else _gather_tiles(tiles, numbers, count)
        parts.append(_attend(query[:, count:], key, value, valid, numbers, is_block, bias))
    return _join_blocks(jnp.concatenate(parts, axis=1))[:, :length]


def _split_tiles(relative: Any, block: int) -> Any:
    """Return [heads, block, distances x block] as [heads, distances, block, block]."""
    heads = relative.shape[0]
    return jnp.transpose(relative.reshape(heads, block, -1, block), (0, 2, 1, 3))


def _gather_tiles(tiles: Any, numbers: Any, first_row: int) -> Any:
    """Return the bias of blocks of queries and keys, [heads, rows, width, block, block].

    Args:
        tiles: [heads, distances, block, block], of all distances between two blocks.
        numbers: int [heads, rows, width], the blocks of keys of each block of queries.
        first_row: The number of the first block of queries.
    """
    rows = first_row + jnp.arange(numbers.shape[1])
    distances = numbers - rows[None, :, None] + tiles.shape[1] // 2
    return jax.vmap(lambda tile, chosen: tile[chosen])(tiles, distances)


def _split_blocks(x: Any, block: int) -> Any:
    """Return [batch, length, heads, head_dim] as [heads, blocks, batch, block, head_dim]."""
    batch, _, heads, head_dim = x.shape
    return jnp.transpose(x.reshape(batch, -1, block, heads, head_dim), (3, 1, 0, 2, 4))


def _join_blocks(x: Any) -> Any:
    """Return [heads, blocks, batch, block, head_dim] as [batch, length, heads, head_dim]."""
    heads, _, batch, _, head_dim = x.shape
    return jnp.transpose(x, (2, 1, 3, 0, 4)).reshape(batch, -1, heads, head_dim)


def _attend_to_all(query: Any, key: Any, value: Any, valid: Any, tiles: Any) -> Any:
    """Return the attention of the first blocks of queries to all blocks of keys, see _attend."""
    heads, blocks = key.shape[:2]
    _, count, batch, block, head_dim = query.shape
    numbers = jnp.broadcast_to(jnp.arange(blocks), (heads, 1, blocks))
    merged = _merge_blocks(query)[:, None]
    bias = None
    if tiles is not None:
        bias = _gather_tiles(tiles, jnp.broadcast_to(numbers, (heads, count, blocks)), 0)
        # The queries of all blocks become one row.
        bias = jnp.transpose(bias, (0, 2, 1, 3, 4)).reshape(heads, 1, blocks, -1, block)
    attended = _attend(merged, key, value, valid, numbers, None, bias)[:, 0]
    split = attended.reshape(heads, batch, count, block, head_dim)
    return jnp.transpose(split, (0, 2, 1, 3, 4))


def _merge_blocks(x: Any) -> Any:
    """Return blocks [heads, blocks, batch, block, head_dim] as [heads, batch, tokens, head_dim]."""
    heads, blocks, batch, block, head_dim = x.shape
    return jnp.transpose(x, (0, 2, 1, 3, 4)).reshape(heads, batch, blocks * block, head_dim)


def _attend(
    query: Any, key: Any, value: Any, valid: Any, numbers: Any, is_block: Any, bias: Any
) -> Any:
    """Return the attention of blocks of queries to gathered blocks of keys.

    Args:
        query: [heads, rows, batch, queries, head_dim].
        key: [heads, blocks, batch, block, head_dim].
        value: The shape of `key`.
        valid: bool [blocks, batch, block].
        numbers: int [heads, rows, width], the blocks of keys of each row.
        is_block: bool of the same shape, or None if all are.
        bias: [heads, rows, width, queries, block], or None.

    Returns:
        The shape of `query`.
    """
    gather = jax.vmap(lambda blocks, chosen: blocks[chosen])
    keys, values = gather(key, numbers), gather(value, numbers)
    visible = valid[numbers]  # [heads, rows, width, batch, block]
    if is_block is not None:
        visible = visible & jnp.asarray(is_block)[..., None, None]
    logits = jnp.einsum("hrbqd,hrwbkd->hrbqwk", query, keys)
    if bias is not None:
        logits = logits + jnp.swapaxes(bias, 2, 3)[:, :, None]
    hidden = jnp.asarray(choose_mask_value(logits.dtype), logits.dtype)
    visible = jnp.transpose(visible, (0, 1, 3, 2, 4))[:, :, :, None]
    logits = jnp.where(visible, logits, hidden)
    shape = logits.shape
    weights = jax.nn.softmax(logits.reshape(*shape[:4], -1)).reshape(shape).astype(value.dtype)
    return jnp.einsum("hrbqwk,hrwbkd->hrbqd", weights, values)
