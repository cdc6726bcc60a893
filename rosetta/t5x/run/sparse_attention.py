"""The settings of block-sparse attention, which DeepSpeed has as `sparse_attention` in JSON.

The form is that of BigBird: a window around each block, blocks that all see and that see all, and
random blocks. `rosetta.nn.sparse_layout` makes the layout.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHERE = "sparse_attention"


@dataclass(frozen=True)
class SparseAttention:
    """The layout of block-sparse attention.

    Attributes:
        num_heads: The attention heads; 0 for those of the network.
        block: The tokens of a block.
        different_layout_per_head: Whether each head has random blocks of its own.
        num_sliding_window_blocks: The blocks of the window, the own block in its middle.
        num_global_blocks: The first blocks, which see all blocks and which all blocks see.
        num_random_blocks: The random blocks of each block of queries.
        seed: The seed of the random blocks.
    """

    num_heads: int = 0
    block: int = 16
    different_layout_per_head: bool = False
    num_sliding_window_blocks: int = 3
    num_global_blocks: int = 1
    num_random_blocks: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (
            ("num_heads", 0),
            ("block", 1),
            ("num_sliding_window_blocks", 1),
            ("num_global_blocks", 0),
            ("num_random_blocks", 0),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < minimum:
                raise UserError(
                    f"{name} is {value!r}",
                    _WHERE,
                    f"give a whole number of at least {minimum}",
                    kind=INVALID,
                    value=value,
                )


def parse_sparse_attention(settings: Mapping[str, Any] | SparseAttention) -> SparseAttention:
    """Return the layout that the fields of a JSON object describe.

    Raises:
        UserError: A field is not known, or not valid.
    """
    if isinstance(settings, SparseAttention):
        return settings
    known = [field.name for field in fields(SparseAttention)]
    for name in settings:
        if name not in known:
            raise UserError(
                f"{name!r} is not a field of BigBird's attention",
                _WHERE,
                f"give some of: {', '.join(known)}",
                kind=UNKNOWN,
                value=name,
            )
    return SparseAttention(**settings)
