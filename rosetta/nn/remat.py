"""Rematerialisation policies: what a layer's forward pass keeps for the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from rosetta.nn.attention import ATTENTION_OUTPUT
from rosetta.nn.dense import PROJECTION_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable


def make_policy(name: str) -> Callable[..., bool]:
    """Return the policy for jax.checkpoint.

    Args:
        name: "full" keeps the inputs of a layer only. "minimal" also keeps the outputs of
            projections and of attention. The backward pass then recomputes what needs no product
            with a weight: norms, activations, dropout and casts. Without fused attention it also
            recomputes the product of queries and keys, which is too large to keep.
    """
    if name == "full":
        return jax.checkpoint_policies.nothing_saveable  # type: ignore[no-any-return]
    is_named_output = jax.checkpoint_policies.save_only_these_names(
        PROJECTION_OUTPUT, ATTENTION_OUTPUT
    )

    def is_kept(primitive: Any, *avals: Any, **parameters: Any) -> Any:
        return _is_fused_attention(primitive) or is_named_output(primitive, *avals, **parameters)

    return is_kept


def keep_products_and_attention(primitive: Any, *avals: Any, **parameters: Any) -> Any:
    """Return whether a layer keeps the output of a primitive, as a policy for jax.checkpoint.

    It keeps the products with weights, and what cuDNN's attention returns. JAX's own policy
    `checkpoint_dots_with_no_batch_dims` keeps the products only, and the backward pass then runs
    cuDNN's forward kernel again.
    """
    return _is_fused_attention(
        primitive
    ) or jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims(primitive, *avals, **parameters)


def _is_fused_attention(primitive: Any) -> bool:
    """Return whether a primitive is the forward kernel of cuDNN's attention.

    The kernel returns the output, and the statistics of the softmax that its backward kernel reads.
    """
    return "dot_product_attention_fwd" in primitive.name
