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


def _compute_forward(hidden: Any, kernel: Any, dtype: str) -> tuple[Any, Any]:
    """Return the logits, and the factors for the backward pass."""
    logits = jnp.dot(hidden.astype(dtype), kernel.astype(dtype), preferred_element_type=jnp.float32)
    return logits, (hidden, kernel)


def _compute_backward(dtype: str, residuals: tuple[Any, Any], gradient: Any) -> tuple[Any, Any]:
    """Return the gradients of `hidden` and `kernel`, in their types."""
    hidden, kernel = residuals
    narrow_gradient, batch_axes = gradient.astype(dtype), tuple(range(hidden.ndim - 1))
    hidden_gradient = jnp.dot(
        narrow_gradient, kernel.astype(dtype).T, preferred_element_type=jnp.float32
    )
    kernel_gradient = jnp.tensordot(
        hidden.astype(dtype),
        narrow_gradient,
        (batch_axes, batch_axes),
        preferred_element_type=jnp.float32,
    )
    return hidden_gradient.astype(hidden.dtype), kernel_gradient.astype(kernel.dtype)


compute_logits.defvjp(_compute_forward, _compute_backward)
