"""The logits of T5X's networks: the product of hidden vectors with the vocabulary's kernel.

The factors may be narrow (bfloat16), and the sums stay float32.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def compute_logits(hidden: Any, kernel: Any, dtype: str) -> Any:
    """Compute the logits with factors in `dtype` and sums in float32.

    The two products of the backward pass also have factors in `dtype`. JAX's own derivative would
    compute both in float32, because the gradient of the logits is float32. It would also round the
    gradient of the kernel to `dtype` after the sum.

    Args:
        hidden: [..., features].
        kernel: [features, vocabulary].
        dtype: The type of the factors of all three products.

    Returns:
        float32 [..., vocabulary].
    """
    return _compute_forward(hidden, kernel, dtype)[0]


def multiply_factors(left: Any, right: Any, axes: Any, dtype: Any) -> Any:
    """Return the float32 product of two arrays, rounded to `dtype`, over axes as in tensordot.

    XLA's CPU backend fails on some products with narrow factors and a float32 result. It also
    skips a rounding that a cast undoes. There, `reduce_precision` rounds the factors, and the
    product is one of float32, which has the same terms.
    """

    def multiply_narrow(left: Any, right: Any) -> Any:
        return jnp.tensordot(
            left.astype(dtype), right.astype(dtype), axes, preferred_element_type=jnp.float32
        )

    def multiply_rounded(left: Any, right: Any) -> Any:
        return jnp.tensordot(_round(left, dtype), _round(right, dtype), axes)

    if jnp.dtype(dtype) == jnp.float32:
        return multiply_narrow(left, right)
    return jax.lax.platform_dependent(left, right, cpu=multiply_rounded, default=multiply_narrow)


def _round(array: Any, dtype: str) -> Any:
    """Return an array in float32 with the values that it has in `dtype`."""
    info = jnp.finfo(dtype)
    return jax.lax.reduce_precision(array.astype(jnp.float32), info.nexp, info.nmant)


def _compute_forward(hidden: Any, kernel: Any, dtype: str) -> tuple[Any, Any]:
    """Return the logits, and the factors for the backward pass."""
    return multiply_factors(hidden, kernel, 1, dtype), (hidden, kernel)


def _compute_backward(dtype: str, residuals: tuple[Any, Any], gradient: Any) -> tuple[Any, Any]:
    """Return the gradients of `hidden` and `kernel`, in their types."""
    hidden, kernel = residuals
    batch_axes = tuple(range(hidden.ndim - 1))
    hidden_gradient = multiply_factors(gradient, kernel.T, 1, dtype)
    kernel_gradient = multiply_factors(hidden, gradient, (batch_axes, batch_axes), dtype)
    return hidden_gradient.astype(hidden.dtype), kernel_gradient.astype(kernel.dtype)


compute_logits.defvjp(_compute_forward, _compute_backward)
