"""The row `kernels`: functions of rosetta.nn whose backward pass is written by hand, beside plain
references.

KERNELS has a line for each function. A new kernel of rosetta.nn gets a line there.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.accept import projection
from rosetta.accept.numerics import check_errors, describe_timings
from rosetta.accept.records import Measurement, SkipCase
from rosetta.accept.setup import Case, Setup, load_module, make_case
from rosetta.bench import device_timing
from rosetta.core import gpus
from rosetta.nn.loss import LossSettings, chunked_cross_entropy

_TURNS = 5
# The largest errors. Products of FP8 are rounded to bfloat16; the loss is in float32.
FP8_LIMIT, LOSS_LIMIT = 0.01, 1e-4
Z_LOSS = 1e-4


def list_cases(setup: Setup) -> list[Case]:
    """Return a case for each function."""
    return [make_case(name, functools.partial(measure, setup)) for name, measure in KERNELS.items()]


def measure_chunked_loss(setup: Setup) -> Measurement:
    """Compare the loss in slices of the vocabulary with the loss from all logits."""
    tokens, features, vocabulary = (16, 8, 40) if setup.tiny else (4096, 1024, 32128)
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = (
        jax.random.normal(keys[0], (tokens, features)),
        jax.random.normal(keys[1], (features, vocabulary)) * features**-0.5,
    )
    targets = jax.random.randint(keys[2], (tokens,), 0, vocabulary)
    derivatives = _make_loss_derivatives(vocabulary, targets)
    with jax.default_matmul_precision("highest"):
        losses = {name: jax.jit(way)(*arrays) for name, way in derivatives.items()}
    (loss, gradients), (expected, expected_gradients) = losses["chunked"], losses["whole"]
    checks = check_errors(
        ("loss", "gradient of the hidden vectors", "gradient of the kernel"),
        (loss, *gradients),
        (expected, *expected_gradients),
        LOSS_LIMIT,
    )
    functions = {
        name: device_timing.DeviceFunction(way, [arrays], turn_seconds=setup.turn_seconds)
        for name, way in derivatives.items()
    }
    timings = device_timing.time_functions(functions, _TURNS)
    return Measurement(describe_timings(timings), checks)


def _make_loss_derivatives(vocabulary: int, targets: Any) -> dict[str, Any]:
    """Return the functions of hidden vectors and kernel that return the loss and its gradients."""
    settings = LossSettings(vocabulary, chunks=8, z_loss=Z_LOSS)

    def compute_chunked(hidden: Any, kernel: Any) -> Any:
        return jnp.sum(chunked_cross_entropy(hidden, kernel, targets, settings)[0])

    def compute_whole(hidden: Any, kernel: Any) -> Any:
        logits = hidden @ kernel
        normalizer = jax.nn.logsumexp(logits, axis=-1)
        target = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        return jnp.sum(normalizer - target + Z_LOSS * jnp.square(normalizer))

    return {
        "chunked": jax.value_and_grad(compute_chunked, (0, 1)),
        "whole": jax.value_and_grad(compute_whole, (0, 1)),
    }


def measure_fp8_projection(setup: Setup) -> Measurement:
    """Compare an FP8 projection, forward and backward, with NumPy's product of rounded factors.

    Raises:
        SkipCase: The GPU has no FP8, or Flax is not installed.
    """
    fp8 = load_module("rosetta.nn.fp8", "flax")
    if setup.on_gpu and not setup.supports(gpus.FP8):
        raise SkipCase(gpus.FP8.requirement)
    x, kernel, gradient = projection.make_arrays(
        *((16, 32, 16) if setup.tiny else (2048, 1024, 1024))
    )
    results = jax.jit(functools.partial(projection.compute_in_fp8, fp8))(x, kernel, gradient)
    rounded_x = _round_to_fp8(x, "input", fp8.FORWARD_DTYPE)
    rounded_kernel = _round_to_fp8(kernel, "kernel", fp8.FORWARD_DTYPE)
    rounded_gradient = _round_to_fp8(gradient, "output_grad", fp8.BACKWARD_DTYPE)
    expected = (
        rounded_x @ rounded_kernel,
        rounded_gradient @ rounded_kernel.T,
        rounded_x.T @ rounded_gradient,
    )
    return Measurement((), check_errors(projection.NAMES, results[:3], expected, FP8_LIMIT))


def _round_to_fp8(array: Any, name: str, dtype: Any) -> Any:
    """Return an array as float32 numbers that its FP8 type has, times its scale."""
    scale = np.float32(projection.SCALES[name])
    largest = float(jnp.finfo(dtype).max)
    scaled = np.clip(np.asarray(array, np.float32) / scale, -largest, largest)
    return scaled.astype(dtype).astype(np.float32) * scale


KERNELS: dict[str, Any] = {
    "fp8-projection": measure_fp8_projection,
    "chunked-loss": measure_chunked_loss,
}
