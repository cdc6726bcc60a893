"""What T5X and Pax models share: projections, attention, norms, losses, FP8.

Needs jax and flax, and neither of the frameworks.
"""
