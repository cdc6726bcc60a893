"""Transformer Engine: its locked packages, and the wheel of its JAX bindings."""
