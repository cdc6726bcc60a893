"""Say whether a version of JAX can use the programs in its compilation cache.

The launcher and the selftest use this before they set a cache for a run on CPUs.
"""

from __future__ import annotations


def cache_works(jax: str) -> bool:
    """Return whether programs for CPUs run after JAX has read them from its compilation cache.

    With JAX 0.4.26 such a program ends with SIGSEGV.

    Args:
      jax: The version of JAX, for example "0.4.26".
    """
    return [int(part) for part in jax.split(".")[:2]] >= [0, 5]
