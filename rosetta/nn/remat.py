"""What the forward pass keeps for the backward pass, and what is computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from rosetta.nn.attention import ATTENTION_OUTPUT
from rosetta.nn.dense import PROJECTION_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable


def make_policy(name: str) -> Callable[..., bool]:
    """Return jax.checkpoint's policy for "minimal" or "full".

    "minimal" keeps the outputs of projections and of attention, so that only what costs no matrix
    product is computed again: norms, activations, dropout, casts; and, where attention is not
    fused, queries times keys, whose result is too large to keep. "full" keeps the inputs of a layer
    alone.
    """
    if name == "full":
        return jax.checkpoint_policies.nothing_saveable  # type: ignore[no-any-return]
    named = jax.checkpoint_policies.save_only_these_names(PROJECTION_OUTPUT, ATTENTION_OUTPUT)

    def keep(primitive: Any, *avals: Any, **parameters: Any) -> Any:
        # The forward of cuDNN's attention: its output and the softmax statistics its backward
        # wants.
        return "dot_product_attention_fwd" in primitive.name or named(
            primitive, *avals, **parameters
        )

    return keep
