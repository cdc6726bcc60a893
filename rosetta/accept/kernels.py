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

from rosetta.accept import compiler_options, projection
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
# The fused kernels may round a few numbers to the other neighbour in FP8.
FUSED_LIMIT = 0.01
UNIT_NAMES = (
    "hidden features",
    "gradients",
    "transposed copy of the gradients",
    "transposed copy of the hidden features",
    "largest gradients",
    "largest hidden feature",
    "gradient of the bias",
)
# The tokens and hidden features of each unit of rosetta.nn.mlp_kernels.
UNIT_SIZES = {"GEGLU": (16384, 2816), "GELU": (8192, 8192)}
# Of the input, of the kernels of up to two parts, of the output gradient, of the kernel that
# follows, of the gradients, and of the hidden features.
UNIT_SCALES = (0.06, 0.003, 0.005, 1e-4, 0.004, 1e-3, 0.05)
# Gradients of queries, keys and values.
JOINED_PARTS, JOINED_SCALE = 3, 1e-4
JOINED_NAMES = ("joined gradients", "transposed copy", "largest gradients")


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
    options = compiler_options.resolve_options(setup, compiler_options.FP8_XLA)
    lowered = jax.jit(functools.partial(projection.compute_in_fp8, fp8)).lower(x, kernel, gradient)
    compiled = lowered.compile(compiler_options=dict(options))
    results = compiled(x, kernel, gradient)
    rounded_x = _round_to_fp8(x, "input", fp8.FORWARD_DTYPE)
    rounded_kernel = _round_to_fp8(kernel, "kernel", fp8.FORWARD_DTYPE)
    rounded_gradient = _round_to_fp8(gradient, "output_grad", fp8.BACKWARD_DTYPE)
    expected = (
        rounded_x @ rounded_kernel,
        rounded_gradient @ rounded_kernel.T,
        rounded_x.T @ rounded_gradient,
    )
    numbers, checks = compiler_options.check_fp8_products(setup, "fp8", compiled.as_text())
    errors = check_errors(projection.NAMES, results[:3], expected, FP8_LIMIT)
    return Measurement(numbers, (*errors, *checks))


def _round_to_fp8(array: Any, name: str, dtype: Any) -> Any:
    """Return an array as float32 numbers that its FP8 type has, times its scale."""
    scale = np.float32(projection.SCALES[name])
    largest = float(jnp.finfo(dtype).max)
    scaled = np.clip(np.asarray(array, np.float32) / scale, -largest, largest)
    return scaled.astype(dtype).astype(np.float32) * scale


def measure_fused_unit(setup: Setup, name: str) -> Measurement:
    """Compare the kernels of the elementwise part of an MLP in FP8 with the same in plain JAX.

    Args:
        setup: The machine and the sizes.
        name: The unit, a name in UNIT_SIZES.

    Raises:
        SkipCase: The GPU has no FP8, or Flax is not installed.
    """
    kernels = load_module("rosetta.nn.mlp_kernels", "flax")
    fp8 = load_module("rosetta.nn.fp8", "flax")
    # An older GPU would end the process: XLA's code generator has no error for it.
    if setup.on_gpu and not setup.supports(gpus.FP8):
        raise SkipCase(gpus.FP8.requirement)
    unit = getattr(kernels, name)
    rows, features = (32, 16) if setup.tiny else UNIT_SIZES[name]
    keys = jax.random.split(jax.random.key(0), 3)
    product = 1e4 * jax.random.normal(keys[0], (rows, unit.parts, features), jnp.bfloat16)
    gradient = 1e4 * jax.random.normal(keys[1], (rows, features), jnp.bfloat16)
    bias = jax.random.normal(keys[2], (features,), jnp.bfloat16)
    # Every eighth row is padding.
    vectors = (bias, jnp.sign(jnp.arange(rows) % 8).astype(jnp.bfloat16))[: unit.vectors]
    scales = _make_scales((*UNIT_SCALES[: unit.parts + 1], *UNIT_SCALES[3:]))
    interpret = not setup.on_gpu

    def compute_fused(product: Any, gradient: Any, *vectors: Any) -> Any:
        part_scales = (*scales[: unit.parts + 1], scales[-1])
        hidden = kernels.apply_unit(unit, product, vectors, part_scales, interpret=interpret)
        back, transposed, hidden_copy, amaxes, *bias_sums = kernels.differentiate_unit(
            unit, product, gradient, vectors, scales, interpret=interpret
        )
        largest = jnp.max(amaxes, axis=(0, 1))
        bias_gradients = [jnp.sum(sums, axis=0) for sums in bias_sums]
        return hidden, back, transposed, hidden_copy, largest[:-1], largest[-1], *bias_gradients

    compute_plain = functools.partial(_compute_plain_unit, fp8, scales)
    return _compare_ways(
        setup,
        UNIT_NAMES[: 6 + unit.has_bias],
        (compute_fused, compute_plain),
        (product, gradient, *vectors),
    )


def measure_joined_gradients(setup: Setup) -> Measurement:
    """Compare the kernel that joins gradients in FP8 with the same in plain JAX.

    Raises:
        SkipCase: The GPU has no FP8, or Flax is not installed.
    """
    kernels = load_module("rosetta.nn.gradient_kernels", "flax")
    fp8 = load_module("rosetta.nn.fp8", "flax")
    # An older GPU would end the process: XLA's code generator has no error for it.
    if setup.on_gpu and not setup.supports(gpus.FP8):
        raise SkipCase(gpus.FP8.requirement)
    shape = (2, 32, 16) if setup.tiny else (32, 512, 1024)
    keys = jax.random.split(jax.random.key(0), JOINED_PARTS)
    gradients = tuple(jax.random.normal(key, shape, jnp.bfloat16) for key in keys)
    (scale,) = _make_scales((JOINED_SCALE,))

    def compute_fused(*gradients: Any) -> Any:
        result, transposed, amaxes = kernels.join_gradients(
            gradients, scale, length_first=True, interpret=not setup.on_gpu
        )
        return result, transposed, jnp.max(amaxes, axis=(0, 1))

    def compute_plain(*gradients: Any) -> Any:
        joined = jnp.stack(gradients)
        quantised = fp8.quantise_tensor(joined, scale, fp8.BACKWARD_DTYPE)
        largest = jnp.max(jnp.abs(joined), axis=(1, 2, 3))
        return quantised.transpose(2, 1, 0, 3), quantised.transpose(0, 3, 1, 2), largest

    return _compare_ways(setup, JOINED_NAMES, (compute_fused, compute_plain), gradients)


def _compare_ways(
    setup: Setup, names: tuple[str, ...], ways: tuple[Any, Any], arrays: tuple[Any, ...]
) -> Measurement:
    """Compare kernels with the same in plain JAX, and time both.

    Args:
        setup: The machine and the sizes.
        names: What the results are.
        ways: The function with the kernels, and the function in plain JAX.
        arrays: The arguments of both.
    """
    functions = {
        name: device_timing.DeviceFunction(way, [arrays], turn_seconds=setup.turn_seconds)
        for name, way in zip(("fused kernels", "XLA's kernels"), ways, strict=True)
    }
    results, references = (
        [jnp.asarray(array, jnp.float32) for array in function.compiled([arrays])[0]]
        for function in functions.values()
    )
    checks = check_errors(names, results, references, FUSED_LIMIT)
    return Measurement(describe_timings(device_timing.time_functions(functions, _TURNS)), checks)


def _make_scales(scales: tuple[float, ...]) -> list[Any]:
    """Return scales as arrays of one element."""
    return [jnp.full((1,), scale, jnp.float32) for scale in scales]


def _compute_plain_unit(
    fp8: Any, scales: list[Any], product: Any, gradient: Any, *vectors: Any
) -> tuple[Any, ...]:
    """Return what UNIT_NAMES names, computed in float32 by XLA's own kernels."""
    input_scale, *kernel_scales, gradient_scale, kernel_scale, back_scale, hidden_scale = scales
    parts = jnp.moveaxis(product.astype(jnp.float32), 1, 0) * input_scale
    parts *= jnp.stack(kernel_scales)[:, None]
    vectors = tuple(vector.astype(jnp.float32) for vector in vectors)

    def compute_hidden(parts: Any, *bias: Any) -> Any:
        if len(parts) == 2:
            return jax.nn.gelu(parts[0]) * parts[1]
        return jax.nn.gelu(parts[0] + bias[0]) * vectors[1][:, None]

    hidden, backward = jax.vjp(compute_hidden, parts, *vectors[:1])
    back, *bias_gradients = backward(gradient.astype(jnp.float32) * gradient_scale * kernel_scale)
    quantised = fp8.quantise_tensor(hidden, hidden_scale, fp8.FORWARD_DTYPE)
    quantised_back = fp8.quantise_tensor(back, back_scale, fp8.BACKWARD_DTYPE)
    return (
        quantised,
        jnp.moveaxis(quantised_back, 0, 1),
        quantised_back.transpose(0, 2, 1),
        quantised.T,
        jnp.max(jnp.abs(back), axis=(1, 2)),
        jnp.max(jnp.abs(hidden)),
        *bias_gradients,
    )


KERNELS: dict[str, Any] = {
    "fp8-projection": measure_fp8_projection,
    "fused-geglu": functools.partial(measure_fused_unit, name="GEGLU"),
    "fused-gelu": functools.partial(measure_fused_unit, name="GELU"),
    "joined-gradients": measure_joined_gradients,
    "chunked-loss": measure_chunked_loss,
}
