"""Whether programs that JAX kept in its compilation cache can be used again."""

from __future__ import annotations


def cache_works(jax: str) -> bool:
    """Say whether programs for the CPU that this jax took from its compilation cache run: jax
    0.4.26's end in SIGSEGV.
    """
    return [int(part) for part in jax.split(".")[:2]] >= [0, 5]
