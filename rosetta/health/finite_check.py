"""Whether all numbers of a tree of arrays are finite, on the devices that hold them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def all_finite(tree: Any) -> Any:
    """Return it as bool [].

    Leaves that hold no floating-point numbers, as keys do, have none that are not.
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
