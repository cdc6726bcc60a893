"""The kernel that joins gradients in FP8, interpreted on the CPU, against NumPy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from rosetta.nn import gradient_kernels

# Sequences, tokens, features, gradients and type.
CASES = [
    (1, 16, 16, 2, jnp.float32),
    (3, 48, 176, 3, jnp.float32),
    (3, 48, 176, 3, jnp.bfloat16),
    (3, 48, 176, 2, jnp.float16),
    (2, 448, 160, 3, jnp.bfloat16),
    (5, 128, 64, 2, jnp.bfloat16),
]
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]
LARGEST = 57344.0  # of e5m2
SCALE = 1e-4


def make_gradients(batch: int, length: int, features: int, parts: int, dtype: Any) -> list[Any]:
    """Return gradients of different sizes. Of the largest, some elements are out of range."""
    random = np.random.default_rng(0)
    return [
        jnp.asarray(10.0**-part * 3 * random.normal(size=(batch, length, features)), dtype)
        for part in range(parts)
    ]


def quantise(gradient: Any, scale: float) -> np.ndarray:
    """Return gradient / scale in e5m2."""
    scaled = np.asarray(gradient, np.float32) / np.float32(scale)
    result: np.ndarray = np.clip(scaled, -LARGEST, LARGEST).astype(ml_dtypes.float8_e5m2)
    return result


def run_kernel(gradients: list[Any], scale: float, *, length_first: bool) -> Any:
    """Return what the kernel returns, as NumPy arrays."""
    arrays = gradient_kernels.join_gradients(
        gradients, jnp.asarray([scale], jnp.float32), length_first=length_first, interpret=True
    )
    return [np.asarray(array) for array in arrays]


@pytest.mark.parametrize("length_first", [False, True], ids=["batch first", "length first"])
@pytest.mark.parametrize(
    ("batch", "length", "features", "parts", "dtype"),
    CASES,
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_same_as_numpy(
    batch: int, length: int, features: int, parts: int, dtype: Any, *, length_first: bool
) -> None:
    """Both results have the bits of NumPy's, and the amaxes are exact."""
    gradients = make_gradients(batch, length, features, parts, dtype)
    expected = np.stack([quantise(gradient, SCALE) for gradient in gradients])
    result, transposed, amaxes = run_kernel(gradients, SCALE, length_first=length_first)
    order = (2, 1, 0, 3) if length_first else (1, 2, 0, 3)
    assert result.dtype == transposed.dtype == expected.dtype
    np.testing.assert_array_equal(
        result.view(np.int8), expected.transpose(order).view(np.int8), strict=True
    )
    np.testing.assert_array_equal(
        transposed.view(np.int8), expected.transpose(0, 3, 1, 2).view(np.int8), strict=True
    )
    largest = [np.abs(np.asarray(gradient, np.float32)).max() for gradient in gradients]
    np.testing.assert_array_equal(amaxes.max(axis=(0, 1)), largest)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize(("value", "quantised"), [(np.nan, np.nan), (np.inf, 1), (-np.inf, -1)])
def test_not_finite(value: float, quantised: float, dtype: Any) -> None:
    """NaN stays, infinity becomes the largest value, and the amax of its gradient is the value."""
    gradient = jnp.ones((2, 32, 16), dtype)
    gradients = [gradient, gradient.at[1, 17, 3].set(value), gradient]
    result, transposed, amaxes = run_kernel(gradients, 1.0, length_first=False)
    expected = np.float32(quantised * LARGEST)
    np.testing.assert_equal(result.astype(np.float32)[1, 17, 1, 3], expected)
    np.testing.assert_equal(transposed.astype(np.float32)[1, 3, 1, 17], expected)
    assert (result.astype(np.float32) == 1).sum() == result.size - 1
    np.testing.assert_equal(amaxes.max(axis=(0, 1)), [1, abs(value), 1])


@pytest.mark.parametrize(
    ("shape", "is_supported"),
    [
        pytest.param((32, 512, 1024), True, id="T5-large"),
        pytest.param((3, 48, 80), True, id="small tiles"),
        pytest.param((3, 40, 80), False, id="tokens"),
        pytest.param((3, 48, 72), False, id="features"),
        pytest.param((700, 1024, 1024), False, id="positions beyond int32"),
    ],
)
def test_supported_shapes(shape: tuple[int, int, int], *, is_supported: bool) -> None:
    """Sizes that tiles do not cover, and positions beyond int32, are not supported."""
    assert (gradient_kernels.find_shape_problem(*shape, parts=3) == "") == is_supported
