"""The kernels of the gated unit, interpreted on the CPU, against NumPy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from rosetta.nn import geglu_kernels

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
E4M3, E5M2 = (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)
FORWARD_SCALES = (0.06, 0.003, 0.005, 0.05)
BACKWARD_SCALES = (0.06, 0.003, 0.005, 1e-4, 0.004, 1e-3)


def make_scales(scales: tuple[float, ...]) -> list[Any]:
    """Return scales as arrays of one element."""
    return [jnp.asarray([scale], jnp.float32) for scale in scales]


def make_product(rows: int, features: int, dtype: Any, seed: int = 0) -> Any:
    """Return products of quantised values: large numbers, which the scales make small."""
    random = np.random.default_rng(seed)
    return jnp.asarray(1e4 * random.normal(size=(rows, 2, features)), dtype)


def compute_unit(product: Any, scales: tuple[float, ...]) -> tuple[np.ndarray, ...]:
    """Return gate, linear, gelu(gate) and the derivative of gelu, float64 [rows, features]."""
    gate, linear = (
        np.asarray(product[:, part], np.float64) * scales[0] * scales[1 + part] for part in range(2)
    )
    slope = np.sqrt(2 / np.pi)
    tanh = np.tanh(slope * (gate + 0.044715 * gate**3))
    derivative = 0.5 * (1 + tanh)
    derivative += 0.5 * gate * (1 - tanh**2) * slope * (1 + 3 * 0.044715 * gate**2)
    return gate, linear, 0.5 * gate * (1 + tanh), derivative


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


@pytest.mark.parametrize(
    ("rows", "features", "dtype"), CASES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_forward(rows: int, features: int, dtype: Any) -> None:
    """The hidden features, their transposed copy and their amaxes are those of NumPy."""
    product = make_product(rows, features, dtype)
    _gate, linear, gelu, _derivative = compute_unit(product, FORWARD_SCALES)
    hidden = gelu * linear
    scales = make_scales(FORWARD_SCALES)
    hidden_features, transposed, amaxes = geglu_kernels.apply_geglu(
        product, scales, transpose=True, interpret=True
    )
    assert_same_fp8(hidden_features, quantise(hidden, FORWARD_SCALES[3], E4M3))
    assert_same_bits(np.asarray(transposed).T, hidden_features)
    np.testing.assert_allclose(np.max(amaxes), np.abs(hidden).max(), rtol=1e-5)
    (alone,) = geglu_kernels.apply_geglu(product, scales, transpose=False, interpret=True)
    assert_same_bits(alone, hidden_features)


@pytest.mark.parametrize(
    ("rows", "features", "dtype"), CASES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_backward(rows: int, features: int, dtype: Any) -> None:
    """The gradients of gate and linear, their copy and their amaxes are those of NumPy."""
    product = make_product(rows, features, dtype)
    gradient_product = make_product(rows, features, dtype, seed=1)[:, 0]
    _gate, linear, gelu, derivative = compute_unit(product, BACKWARD_SCALES)
    gradient = np.asarray(gradient_product, np.float64) * BACKWARD_SCALES[3] * BACKWARD_SCALES[4]
    expected = np.stack([gradient * linear * derivative, gradient * gelu], axis=1)
    gradients, transposed, amaxes = geglu_kernels.differentiate_geglu(
        product, gradient_product, make_scales(BACKWARD_SCALES), interpret=True
    )
    assert_same_fp8(gradients, quantise(expected, BACKWARD_SCALES[5], E5M2))
    assert_same_bits(np.transpose(transposed, (2, 0, 1)), gradients)
    np.testing.assert_allclose(
        np.max(amaxes, axis=(1, 2)), np.abs(expected).max(axis=(0, 2)), rtol=1e-5
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize(("value", "hidden"), [(np.nan, np.nan), (np.inf, 448), (-np.inf, np.nan)])
def test_not_finite(value: float, hidden: float, dtype: Any) -> None:
    """A gate that is not finite gives what gelu gives, and the amaxes are not finite either.

    gelu(inf) is inf, which FP8 rounds to its largest value. gelu(-inf) is -inf * 0.
    """
    product = jnp.ones((32, 2, 16), dtype).at[17, 0, 3].set(value)
    scales = make_scales((1,) * 6)
    result, transposed, amaxes = geglu_kernels.apply_geglu(
        product, scales[:4], transpose=True, interpret=True
    )
    np.testing.assert_equal(np.asarray(result, np.float32)[17, 3], np.float32(hidden))
    np.testing.assert_equal(np.asarray(transposed, np.float32)[3, 17], np.float32(hidden))
    assert np.isfinite(np.asarray(result, np.float32)).sum() >= result.size - 1
    assert np.isnan(np.max(amaxes)) if np.isnan(hidden) else np.isinf(np.max(amaxes))
    gradient, _transposed, amaxes = geglu_kernels.differentiate_geglu(
        product, product[:, 1], scales, interpret=True
    )
    assert np.isnan(np.asarray(gradient, np.float32)[17, 0, 3])
    assert np.isnan(np.asarray(amaxes)[0].max())
    assert np.isfinite(np.asarray(gradient, np.float32)).sum() >= gradient.size - 2


def test_out_of_range() -> None:
    """What is larger than FP8's largest value becomes that value, with its sign."""
    product = jnp.stack([jnp.full((16, 16), 30.0), jnp.full((16, 16), -30.0)], axis=1)
    scales = make_scales((1, 1, 1, 1, 1, 1e-3))
    (hidden,) = geglu_kernels.apply_geglu(product, scales[:4], transpose=False, interpret=True)
    assert (np.asarray(hidden, np.float32) == -E4M3[1]).all()
    gradient, _transposed, amaxes = geglu_kernels.differentiate_geglu(
        product, product[:, 0], scales, interpret=True
    )
    gate_gradient, linear_gradient = np.moveaxis(np.asarray(gradient, np.float32), 1, 0)
    assert (gate_gradient == -E5M2[1]).all()
    assert (linear_gradient == E5M2[1]).all()
    np.testing.assert_allclose(np.max(amaxes, axis=(1, 2)), [900, 900], rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "features", "is_supported"),
    [
        (16384, 2816, True),
        (3648, 1024, True),
        (48, 80, True),
        (40, 80, False),
        (48, 72, False),
        (2**20, 1024, False),
    ],
)
def test_supported_shapes(rows: int, features: int, is_supported: bool) -> None:
    """Sizes that are not multiples of 16, and positions beyond int32, are not supported."""
    assert (geglu_kernels.find_shape_problem(rows, features) == "") == is_supported
