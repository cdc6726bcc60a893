"""Check on the devices that all numbers of a tree of arrays are finite."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def all_finite(tree: Any) -> Any:
    """Return whether all floating-point numbers of a tree of arrays are finite.

    Leaves of other types, such as random keys, are left out.

    Returns:
      bool [].
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
