"""Parts of neural networks that the T5X and Pax models share: attention, FP8, losses and others.

They need JAX and Flax, but neither T5X nor Pax.
"""
