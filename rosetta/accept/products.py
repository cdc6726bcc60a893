"""The row `products`: the rates of matrix products in bfloat16 and in FP8.

A product is computed alone. A projection also has what FP8 costs: casts, largest values, and the
scales of the results.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from rosetta.accept import compiler_options, projection
from rosetta.accept.numerics import compute_error, describe_rate
from rosetta.accept.records import Check, Measurement, Number
from rosetta.accept.setup import Case, Setup, load_module, make_case
from rosetta.bench import device_timing
from rosetta.core import gpus

if TYPE_CHECKING:
    from collections.abc import Mapping

ERROR_LIMIT = 0.01
_TURNS = 5
# A program computes products on different arrays until it has this many operations.
_PROGRAM_FLOPS = 1e12
_MOST_ARRAYS = 6
# Columns of the result that are compared with the reference.
_COMPARED = 64
FPROP = (jnp.float8_e4m3fn, jnp.float8_e4m3fn)
# The precision that presets know.
PRECISIONS = {"bf16": compiler_options.BF16, "fp8": compiler_options.FP8_XLA}
GRADIENT = (jnp.float8_e5m2, jnp.float8_e4m3fn)


@dataclass(frozen=True)
class Product:
    """A product [rows, depth] x [depth, columns].

    Attributes:
        name: The name of the case.
        rows: Rows of the left factor.
        depth: The depth, K.
        columns: Columns of the right factor.
        types: The types of the factors in FP8.
    """

    name: str
    rows: int
    depth: int
    columns: int
    types: tuple[Any, Any] = FPROP

    @property
    def flops(self) -> float:
        """The operations of the product."""
        return 2.0 * self.rows * self.depth * self.columns


# T5-large with 32 sequences of 512 tokens has 16,384 rows, and so has GPT 5B with 8 of 2,048.
PRODUCTS = (
    Product("t5-mlp-in, K=1024", 16384, 1024, 5632),
    Product("t5-qkv, K=1024", 16384, 1024, 3072),
    Product("t5-output, K=1024", 16384, 1024, 1024),
    Product("t5-mlp-out, K=2816", 16384, 2816, 1024),
    Product("t5-mlp-in dgrad, K=5632", 16384, 5632, 1024, GRADIENT),
    Product("t5-mlp-in wgrad, K=16384", 1024, 16384, 5632, (GRADIENT[1], GRADIENT[0])),
    Product("gpt-5b-qkv, K=4096", 16384, 4096, 12288),
    Product("gpt-5b-mlp-out, K=16384", 16384, 16384, 4096),
)
PROJECTIONS = (
    Product("t5-mlp-in, whole projection", 16384, 1024, 5632),
    Product("t5-output, whole projection", 16384, 1024, 1024),
    Product("gpt-5b-mlp-in, whole projection", 16384, 4096, 16384),
)


def shrink_product(product: Product) -> Product:
    """Return the product with few rows, columns and depth."""
    return Product(product.name, 16, 32, 16, product.types)


def list_cases(setup: Setup) -> list[Case]:
    """Return a case for each product, and for each projection."""
    cases = list[Case]()
    for products, measure in ((PRODUCTS, measure_product), (PROJECTIONS, measure_projection)):
        measured = map(shrink_product, products) if setup.tiny else products
        cases += [
            make_case(product.name, functools.partial(measure, setup, product))
            for product in measured
        ]
    return cases


def multiply(left: Any, right: Any) -> Any:
    """Return the product of [rows, depth] and [columns, depth] in bfloat16.

    cuBLASLt multiplies FP8 only in this layout. In a step, the casts write it.
    """
    return lax.dot_general(
        left, right, (((1,), (1,)), ((), ())), preferred_element_type=jnp.bfloat16
    )


def make_factors(product: Product, types: tuple[Any, Any], seed: int) -> tuple[Any, Any]:
    """Return random factors [rows, depth] and [columns, depth], rounded to the types."""
    left, right = jax.random.split(jax.random.key(seed))
    return (
        jax.random.normal(left, (product.rows, product.depth), jnp.bfloat16).astype(types[0]),
        jax.random.normal(right, (product.columns, product.depth), jnp.bfloat16).astype(types[1]),
    )


def list_types(setup: Setup, product: Product) -> dict[str, tuple[Any, Any]]:
    """Return the types of the factors by the name of the precision, as far as the GPU has them."""
    types = {"bf16": (jnp.bfloat16, jnp.bfloat16)}
    # An older GPU would end the process: XLA's code generator has no error for it.
    if not setup.on_gpu or setup.supports(gpus.FP8):
        types["fp8"] = product.types
    return types


def measure_product(setup: Setup, product: Product) -> Measurement:
    """Measure a product in bfloat16 and, if the GPU has it, in FP8."""
    count = 1 if setup.tiny else min(_MOST_ARRAYS, math.ceil(_PROGRAM_FLOPS / product.flops))
    functions, checks = {}, []
    for precision, types in list_types(setup, product).items():
        sets = [make_factors(product, types, seed) for seed in range(count)]
        options = compiler_options.resolve_options(setup, PRECISIONS[precision])
        checks.append(_check_product(precision, options, *sets[0]))
        functions[precision] = device_timing.DeviceFunction(
            multiply, sets, turn_seconds=setup.turn_seconds, compiler_options=options
        )
    numbers, fp8_checks = _check_fp8(setup, functions)
    return Measurement(
        (*_describe_functions(setup, product.flops, functions), *numbers),
        (*checks, *fp8_checks),
        _make_notes(setup),
    )


def _check_fp8(
    setup: Setup, functions: dict[str, device_timing.DeviceFunction]
) -> tuple[tuple[Number, ...], tuple[Check, ...]]:
    """Check that the function in FP8, if there is one, multiplies in FP8."""
    if "fp8" not in functions:
        return (), ()
    return compiler_options.check_fp8_products(setup, "fp8", functions["fp8"].compiled.as_text())


def _check_product(precision: str, options: Mapping[str, Any], left: Any, right: Any) -> Check:
    """Compare some columns of a product with the product in float32."""
    lowered = jax.jit(multiply).lower(left, right)
    result = lowered.compile(compiler_options=dict(options))(left, right)[:, :_COMPARED]
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(lambda a, b: a.astype(jnp.float32) @ b.astype(jnp.float32).T)(
            left, right[:_COMPARED]
        )
    return Check(f"error of {precision}", compute_error(result, expected), ERROR_LIMIT)


def _describe_functions(
    setup: Setup, flops: float, functions: dict[str, device_timing.DeviceFunction]
) -> tuple[Number, ...]:
    """Time the functions of each precision in turns, and return times, rates and the ratio."""
    timings = device_timing.time_functions(functions, _TURNS)
    gpu = setup.find_gpu()
    numbers = list[Number]()
    for precision, timed in timings.items():
        peak = gpu.peak_flops("bfloat16" if precision == "bf16" else "fp8") if gpu else None
        numbers.append(Number(precision, timed.median * 1e6, "us", timed.spread))
        numbers += describe_rate(precision, flops, timed.median, peak)
    if "fp8" in timings:
        numbers.append(Number("fp8 is faster by", timings["bf16"].ratio(timings["fp8"]), "x"))
    return tuple(numbers)


def _make_notes(setup: Setup) -> tuple[str, ...]:
    """Return a note if the GPU has no FP8."""
    if setup.on_gpu and not setup.supports(gpus.FP8):
        return (gpus.FP8.requirement,)
    return ()


def measure_projection(setup: Setup, product: Product) -> Measurement:
    """Measure a projection forward and backward in bfloat16 and, if the GPU has it, in FP8.

    Raises:
        SkipCase: Flax is not installed, which rosetta.nn.fp8 needs.
    """
    fp8 = load_module("rosetta.nn.fp8", "flax")

    def compute_in_bf16(x: Any, kernel: Any, gradient: Any) -> Any:
        output, backward = jax.vjp(
            lambda x, kernel: jnp.matmul(x, kernel.astype(jnp.bfloat16)), x, kernel
        )
        return output, backward(gradient)

    ways: dict[str, Any] = {
        "bf16": compute_in_bf16,
        "fp8": functools.partial(projection.compute_in_fp8, fp8),
    }
    sets = [
        projection.make_arrays(product.rows, product.depth, product.columns, seed)
        for seed in range(1 if setup.tiny else 2)
    ]
    functions = {
        precision: device_timing.DeviceFunction(
            ways[precision],
            sets,
            turn_seconds=setup.turn_seconds,
            compiler_options=compiler_options.resolve_options(setup, PRECISIONS[precision]),
        )
        for precision in list_types(setup, product)
    }
    numbers, checks = _check_fp8(setup, functions)
    return Measurement(
        (*_describe_functions(setup, 3 * product.flops, functions), *numbers),
        checks,
        _make_notes(setup),
    )
