"""Which blocks of keys each block of queries attends to in block-sparse attention.

Source: Zaheer et al. 2020 (BigBird), arXiv:2007.14062, section 2.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from rosetta.t5x.run.sparse_attention import SparseAttention


@functools.lru_cache(maxsize=16)
def make_layout(settings: SparseAttention, heads: int, blocks: int) -> np.ndarray[Any, Any]:
    """Return which blocks see which, bool [heads, blocks of queries, blocks of keys].

    Args:
        settings: The settings.
        heads: The attention heads.
        blocks: The blocks of a row.

    Raises:
        UserError: The settings are of another number of heads.
    """
    if settings.num_heads not in (0, heads):
        raise UserError(
            f"num_heads is {settings.num_heads}, and the network has {heads}",
            "sparse_attention",
            "leave it out, or give the number of heads of the network",
            kind=CONFLICT,
            value=settings.num_heads,
        )
    rng = np.random.RandomState(settings.seed)
    numbers = np.arange(blocks)
    distance = np.abs(numbers[:, None] - numbers[None, :])
    layout: np.ndarray[Any, Any] = np.zeros((heads, blocks, blocks), bool)
    layout[:] = distance <= settings.num_sliding_window_blocks // 2
    random_count = min(settings.num_random_blocks, blocks)
    for head in range(heads if settings.different_layout_per_head else 1):
        for row in range(blocks):
            layout[head, row, rng.permutation(blocks)[:random_count]] = True
    if not settings.different_layout_per_head:
        layout[:] = layout[:1]
    layout[:, : settings.num_global_blocks] = True
    layout[:, :, : settings.num_global_blocks] = True
    return layout


def make_token_mask(settings: SparseAttention, heads: int, length: int) -> np.ndarray[Any, Any]:
    """Return which tokens see which, bool [heads, length, length]: the layout as a dense mask."""
    layout = make_layout(settings, heads, -(-length // settings.block))
    mask = layout.repeat(settings.block, axis=1).repeat(settings.block, axis=2)
    return mask[:, :length, :length]


def list_key_blocks(
    settings: SparseAttention, heads: int, blocks: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the blocks of keys of each block of queries that is not global.

    Returns:
        The numbers of the blocks, int32 [heads, blocks - global blocks, most blocks], filled up
        with 0, and whether an entry is the number of a block, bool of the same shape.
    """
    layout = make_layout(settings, heads, blocks)[:, settings.num_global_blocks :]
    width = int(layout.sum(axis=-1).max(initial=0))
    order = np.argsort(~layout, axis=-1, kind="stable")[..., :width]
    is_block = np.take_along_axis(layout, order, axis=-1)
    return np.where(is_block, order, 0).astype(np.int32), is_block
