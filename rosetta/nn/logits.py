"""The last product, of hidden vectors with the vocabulary's kernel, whose factors may be narrow
while its sums stay float32.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def compute_logits(hidden: Any, kernel: Any, dtype: str) -> Any:
    """Return float32 [..., vocabulary] of hidden [..., features] and kernel [features, vocabulary].

    The factors of all three products, this one and those for both gradients, are in `dtype`.
    Without this rule the logits' float32 gradient would make both backward products float32, and
    the kernel's gradient would be rounded to `dtype` after its sum.
    """
    return _compute_forward(hidden, kernel, dtype)[0]


def _compute_forward(hidden: Any, kernel: Any, dtype: str) -> tuple[Any, Any]:
    logits = jnp.dot(hidden.astype(dtype), kernel.astype(dtype), preferred_element_type=jnp.float32)
    return logits, (hidden, kernel)


def _compute_backward(dtype: str, kept: Any, given: Any) -> tuple[Any, Any]:
    hidden, kernel = kept
    narrow, leading = given.astype(dtype), tuple(range(hidden.ndim - 1))
    of_hidden = jnp.dot(narrow, kernel.astype(dtype).T, preferred_element_type=jnp.float32)
    of_kernel = jnp.tensordot(
        hidden.astype(dtype), narrow, (leading, leading), preferred_element_type=jnp.float32
    )
    return of_hidden.astype(hidden.dtype), of_kernel.astype(kernel.dtype)


compute_logits.defvjp(_compute_forward, _compute_backward)
