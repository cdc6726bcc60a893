"""rosetta: T5X and Paxml on today's JAX and today's GPUs."""

from __future__ import annotations
