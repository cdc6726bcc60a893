"""rosetta: train T5X and Paxml models on current versions of JAX and on current GPUs."""

from __future__ import annotations
