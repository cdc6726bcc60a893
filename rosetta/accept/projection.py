"""A projection to measure: its arrays, and its product forward and backward in FP8.

Flax has to be installed, because rosetta.nn.fp8 needs it.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp

NAMES = ("output", "gradient of the input", "gradient of the kernel")
# Scales with which normal numbers fit into FP8, and not all of them into its largest values.
SCALES = {"input": 0.01, "kernel": 0.02, "output_grad": 0.001}


def make_arrays(rows: int, depth: int, columns: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return random arrays.

    Returns:
        The input, bfloat16 [rows, depth], the kernel, float32 [depth, columns], and the gradient of
        the output, bfloat16 [rows, columns].
    """
    keys = jax.random.split(jax.random.key(seed), 3)
    return (
        jax.random.normal(keys[0], (rows, depth), jnp.bfloat16),
        jax.random.normal(keys[1], (depth, columns), jnp.float32),
        jax.random.normal(keys[2], (rows, columns), jnp.bfloat16),
    )


def compute_in_fp8(module: Any, x: Any, kernel: Any, gradient: Any) -> tuple[Any, ...]:
    """Return the output, the gradients of input and kernel, and the observed FP8 state.

    Args:
        module: What computes it: rosetta.nn.fp8 or rosetta.nn.transformer_engine.
        x: The input.
        kernel: The kernel.
        gradient: The gradient of the output.
    """
    length = importlib.import_module("rosetta.nn.fp8").HISTORY_LENGTH
    state = {f"{name}_scale": jnp.full((1,), scale) for name, scale in SCALES.items()}
    state |= {f"{name}_amax_history": jnp.zeros((length,)) for name in SCALES}
    output, backward = jax.vjp(
        lambda x, kernel, state: module.multiply_kernels(x, [kernel], [state], jnp.bfloat16)[0],
        x,
        kernel,
        state,
    )
    return output, *backward(gradient)
