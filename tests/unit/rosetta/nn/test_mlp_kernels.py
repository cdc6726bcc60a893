"""The kernels of an MLP's elementwise part, interpreted on the CPU, against NumPy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from rosetta.nn import mlp_kernels
from rosetta.nn.mlp_kernels import GEGLU, GELU, Unit

# Rows, features and type. The tiles have 16 to 128 rows and 16 to 64 features.
CASES = [
    (16, 16, jnp.float32),
    (48, 176, jnp.float32),
    (48, 176, jnp.bfloat16),
    (48, 176, jnp.float16),
    (448, 160, jnp.bfloat16),
    (128, 192, jnp.float32),
]
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]
UNITS = [GEGLU, GELU]
E4M3, E5M2 = (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)
# Of the input, two kernels, the output gradient, the next kernel, the gradients, and the hidden
# features.
SCALES = (0.06, 0.003, 0.005, 1e-4, 0.004, 1e-3, 0.05)


def name_value(value: Any) -> str:
    """Return the name of a parameter of a test."""
    return getattr(value, "name", getattr(value, "__name__", str(value)))


def make_scales(unit: Unit, scales: tuple[float, ...] = SCALES) -> list[Any]:
    """Return the scales of a unit's backward kernel as arrays of one element."""
    used_scales = (*scales[: unit.parts + 1], *scales[3:])
    return [jnp.asarray([scale], jnp.float32) for scale in used_scales]


def make_product(unit: Unit, rows: int, features: int, dtype: Any, seed: int = 0) -> Any:
    """Return products of quantised values: large numbers, which the scales make small."""
    random = np.random.default_rng(seed)
    return jnp.asarray(1e4 * random.normal(size=(rows, unit.parts, features)), dtype)


def make_vectors(unit: Unit, rows: int, features: int, dtype: Any) -> tuple[Any, ...]:
    """Return a bias, and weights of which every eighth is zero, if the unit has them."""
    bias = np.random.default_rng(2).normal(size=features)
    vectors = (jnp.asarray(bias, dtype), jnp.asarray(np.sign(np.arange(rows) % 8), dtype))
    return vectors[: unit.vectors]


def compute_unit(
    unit: Unit, product: Any, vectors: tuple[Any, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the hidden features, and their derivatives with respect to each part, in float64."""
    x, *others = (
        np.asarray(product[:, part], np.float64) * SCALES[0] * SCALES[1 + part]
        for part in range(unit.parts)
    )
    factor = others[0] if others else np.ones_like(x)
    if vectors:
        bias, weights = (np.asarray(vector, np.float64) for vector in vectors)
        x, factor = x + bias, factor * weights[:, None]
    slope = np.sqrt(2 / np.pi)
    tanh = np.tanh(slope * (x + 0.044715 * x**3))
    derivative = 0.5 * (1 + tanh)
    derivative += 0.5 * x * (1 - tanh**2) * slope * (1 + 3 * 0.044715 * x**2)
    gelu = 0.5 * x * (1 + tanh)
    return gelu * factor, np.stack([factor * derivative, gelu][: unit.parts], axis=1)


def quantise(x: np.ndarray, scale: float, fp8_type: tuple[Any, float]) -> np.ndarray:
    """Return x / scale in an FP8 type."""
    dtype, largest = fp8_type
    clipped = np.clip(x / scale, -largest, largest).astype(np.float32)
    result: np.ndarray = clipped.astype(dtype)
    return result


def assert_same_fp8(result: Any, expected: np.ndarray) -> None:
    """Check that FP8 arrays are the same, but for a few elements in their last place.

    NumPy computes in float64. Where that and float32 lie on two sides of the middle between two
    numbers of FP8, they round to neighbours, whose bits differ by one. Where gelu is almost zero,
    float32 has no digits left of 1 + tanh, and the difference is tiny beside the largest element.
    """
    result = np.asarray(result)
    assert result.dtype == expected.dtype
    distance = np.abs(result.view(np.int8).astype(int) - expected.view(np.int8).astype(int))
    difference = np.abs(result.astype(np.float64) - expected.astype(np.float64))
    distance[difference < 1e-5 * np.abs(expected.astype(np.float64)).max()] = 0
    assert distance.max() <= 1
    assert (distance > 0).mean() < 1e-3


def assert_same_bits(left: Any, right: Any) -> None:
    np.testing.assert_array_equal(np.asarray(left).view(np.int8), np.asarray(right).view(np.int8))


def run_kernels(
    unit: Unit, product: Any, gradient_product: Any, vectors: tuple[Any, ...], scales: list[Any]
) -> tuple[Any, ...]:
    """Return the result of the forward kernel, and the results of the backward kernel."""
    part_scales = (*scales[: unit.parts + 1], scales[-1])
    hidden = mlp_kernels.apply_unit(unit, product, vectors, part_scales, interpret=True)
    return hidden, *mlp_kernels.differentiate_unit(
        unit, product, gradient_product, vectors, scales, interpret=True
    )


def assert_close_sums(sums: Any, gradients: np.ndarray, tolerance: float) -> None:
    """Check the sums over the rows of each tile against NumPy's sum over all rows."""
    exact = gradients.sum(axis=0)
    np.testing.assert_allclose(np.sum(sums, axis=0), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("rows", "features", "dtype"), CASES, ids=name_value)
@pytest.mark.parametrize("unit", UNITS, ids=name_value)
def test_against_numpy(unit: Unit, rows: int, features: int, dtype: Any) -> None:
    """Hidden features, gradients, their copies, amaxes and the bias's gradient are NumPy's."""
    product = make_product(unit, rows, features, dtype)
    gradient_product = make_product(unit, rows, features, dtype, seed=1)[:, 0]
    vectors = make_vectors(unit, rows, features, dtype)
    hidden, gradients, transposed, hidden_copy, amaxes, *bias_sums = run_kernels(
        unit, product, gradient_product, vectors, make_scales(unit)
    )
    expected_hidden, derivatives = compute_unit(unit, product, vectors)
    gradient = np.asarray(gradient_product, np.float64) * SCALES[3] * SCALES[4]
    expected = gradient[:, None] * derivatives
    assert_same_fp8(hidden, quantise(expected_hidden, SCALES[6], E4M3))
    assert_same_bits(np.asarray(hidden_copy).T, hidden)
    assert_same_fp8(gradients, quantise(expected, SCALES[5], E5M2))
    assert_same_bits(np.transpose(transposed, (2, 0, 1)), gradients)
    largest = [*np.abs(expected).max(axis=(0, 2)), np.abs(expected_hidden).max()]
    np.testing.assert_allclose(np.max(amaxes, axis=(0, 1)), largest, rtol=1e-5)
    assert len(bias_sums) == unit.has_bias
    if unit.has_bias:
        tolerance = 1e-5 * np.abs(expected).sum(axis=0).max()
        assert_close_sums(bias_sums[0], expected[:, 0], tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_value)
@pytest.mark.parametrize(("value", "hidden"), [(np.nan, np.nan), (np.inf, 448), (-np.inf, np.nan)])
@pytest.mark.parametrize("unit", UNITS, ids=name_value)
def test_not_finite(unit: Unit, value: float, hidden: float, dtype: Any) -> None:
    """An input of gelu that is not finite gives what gelu gives; the amaxes are not finite either.

    gelu(inf) is inf, which FP8 rounds to its largest value. gelu(-inf) is -inf * 0.
    """
    product = jnp.ones((32, unit.parts, 16), dtype).at[17, 0, 3].set(value)
    vectors = (jnp.zeros(16), jnp.ones(32))[: unit.vectors]
    result, gradient, _transposed, hidden_copy, amaxes, *bias_sums = run_kernels(
        unit, product, jnp.ones((32, 16)), vectors, make_scales(unit, (1,) * 7)
    )
    np.testing.assert_equal(np.asarray(result, np.float32)[17, 3], np.float32(hidden))
    np.testing.assert_equal(np.asarray(hidden_copy, np.float32)[3, 17], np.float32(hidden))
    assert np.isfinite(np.asarray(result, np.float32)).sum() >= result.size - 1
    largest = np.max(amaxes, axis=(0, 1))
    assert np.isnan(largest[-1]) if np.isnan(hidden) else np.isinf(largest[-1])
    assert np.isnan(np.asarray(gradient, np.float32)[17, 0, 3])
    assert np.isnan(largest[0])
    assert np.isfinite(np.asarray(gradient, np.float32)).sum() >= gradient.size - 2
    for sums in bias_sums:
        assert np.isnan(np.sum(sums, axis=0)).tolist() == [column == 3 for column in range(16)]


def test_out_of_range() -> None:
    """What is larger than FP8's largest value becomes that value, with its sign."""
    product = jnp.stack([jnp.full((16, 16), 30.0), jnp.full((16, 16), -30.0)], axis=1)
    scales = make_scales(GEGLU, (1, 1, 1, 1, 1, 1e-3, 1))
    hidden, gradient, _transposed, hidden_copy, amaxes = run_kernels(
        GEGLU, product, product[:, 0], (), scales
    )
    assert (np.asarray(hidden, np.float32) == -E4M3[1]).all()
    assert (np.asarray(hidden_copy, np.float32) == -E4M3[1]).all()
    gate_gradient, linear_gradient = np.moveaxis(np.asarray(gradient, np.float32), 1, 0)
    assert (gate_gradient == -E5M2[1]).all()
    assert (linear_gradient == E5M2[1]).all()
    np.testing.assert_allclose(np.max(amaxes, axis=(0, 1)), [900, 900, 900], rtol=1e-5)


@pytest.mark.parametrize(
    ("unit", "rows", "features", "is_supported"),
    [
        (GEGLU, 16384, 2816, True),
        (GEGLU, 3648, 1024, True),
        (GEGLU, 48, 80, True),
        (GEGLU, 40, 80, False),
        (GEGLU, 48, 72, False),
        (GEGLU, 2**20, 1024, False),
        (GELU, 2**20, 1024, True),
        (GELU, 2**21, 1024, False),
    ],
    ids=name_value,
)
def test_supported_shapes(unit: Unit, rows: int, features: int, is_supported: bool) -> None:
    """Sizes that are not multiples of 16, and positions beyond int32, are not supported."""
    assert (mlp_kernels.find_shape_problem(unit, rows, features) == "") == is_supported
