"""What T5X and Pax models share: projections, attention, norms, losses, FP8.

Needs jax and flax, and neither of the frameworks.
"""

OLDEST_WITH_FP8 = (
    8,
    9,
)  # the oldest compute capability with FP8 matrix products: Ada; Hopper is 9.0
