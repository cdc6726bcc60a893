"""FP8 projections against an independent computation in NumPy with the same scales, and the state that follows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import linen as nn

from rosetta.nn import fp8

E4M3, E5M2 = (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)


def _state(seed: int) -> dict[str, Any]:
    """Return a state with random histories and the scales that follow from them."""
    rng = np.random.default_rng(seed)
    state = {}
    for tensor, size, (_, largest) in (
        ("input", 4.0, E4M3),
        ("kernel", 0.5, E4M3),
        ("output_grad", 1e-2, E5M2),
    ):
        history = (size * rng.uniform(0.5, 1.0, fp8.HISTORY_LENGTH)).astype(np.float32)
        state[f"{tensor}_scale"] = jnp.asarray([history.max() / np.float32(largest)], jnp.float32)
        state[f"{tensor}_amax_history"] = jnp.asarray(history)
    return state


def _arrays(widths: tuple[int, ...]) -> tuple[Any, list[Any], list[Any]]:
    """Return an input, kernels of these widths, and gradients of their outputs."""
    rng = np.random.default_rng(7)
    x = jnp.asarray(rng.normal(size=(3, 32, 64)), jnp.float32)
    kernels = [jnp.asarray(0.1 * rng.normal(size=(64, width)), jnp.float32) for width in widths]
    gradients = [
        jnp.asarray(1e-3 * rng.normal(size=(3, 32, width)), jnp.float32) for width in widths
    ]
    return x, kernels, gradients


def _round_to_fp8(x: Any, scale: float, fp8_type: tuple[Any, float]) -> np.ndarray:
    """Quantise and dequantise."""
    dtype, largest = fp8_type
    scaled = np.asarray(x, np.float32) / np.float32(scale)
    quantised = np.clip(scaled, -largest, largest).astype(dtype)
    result: np.ndarray = quantised.astype(np.float32) * np.float32(scale)
    return result


def _scale(state: dict[str, Any], tensor: str, fp8_type: tuple[Any, float]) -> float:
    return float(np.max(state[f"{tensor}_amax_history"]) / np.float32(fp8_type[1]))


def _reference(
    x: Any, kernels: list[Any], gradients: list[Any], states: list[Any]
) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """Return the outputs and the gradients of the input and the kernels, by NumPy.

    The products are in float64, of factors that are rounded to FP8.
    """
    input_scale = max(_scale(state, "input", E4M3) for state in states)
    kernel_scales = [_scale(state, "kernel", E4M3) for state in states]
    gradient_scale = max(_scale(state, "output_grad", E5M2) for state in states)
    rounded_x: np.ndarray = _round_to_fp8(x, input_scale, E4M3).astype(np.float64)
    outputs = [
        rounded_x @ _round_to_fp8(kernel, scale, E4M3)
        for kernel, scale in zip(kernels, kernel_scales, strict=True)
    ]
    rounded_gradients: list[np.ndarray] = [
        _round_to_fp8(gradient, gradient_scale, E5M2).astype(np.float64) for gradient in gradients
    ]
    input_gradient = sum(
        gradient @ _round_to_fp8(kernel, max(kernel_scales), E4M3).T
        for gradient, kernel in zip(rounded_gradients, kernels, strict=True)
    )
    kernel_gradients = [
        np.einsum("abi,abo->io", rounded_x, gradient) for gradient in rounded_gradients
    ]
    return outputs, np.asarray(input_gradient), kernel_gradients


@pytest.mark.parametrize("widths", [(48,), (48, 16, 32)], ids=["one", "joined"])
def test_products_and_gradients_match_numpy(widths: tuple[int, ...]) -> None:
    x, kernels, gradients = _arrays(widths)
    states = [_state(index) for index in range(len(widths))]

    def multiply(x: Any, kernels: Any, states: Any) -> Any:
        return fp8.multiply_kernels(x, kernels, states, jnp.float32)

    outputs, backward = jax.vjp(multiply, x, kernels, states)
    input_gradient, kernel_gradients, observed = backward(tuple(gradients))
    expected, expected_x, expected_kernels = _reference(x, kernels, gradients, states)
    for array, reference in zip(
        (*outputs, input_gradient, *kernel_gradients),
        (*expected, expected_x, *expected_kernels),
        strict=True,
    ):
        tolerance = 1e-5 * float(np.abs(reference).max())
        np.testing.assert_allclose(array, reference, rtol=1e-4, atol=tolerance)

    for index, (state, seen) in enumerate(zip(states, observed, strict=True)):
        for tensor, value in (
            ("input", x),
            ("kernel", kernels[index]),
            ("output_grad", gradients[index]),
        ):
            np.testing.assert_array_equal(
                seen[f"{tensor}_amax_history"],
                np.full(fp8.HISTORY_LENGTH, np.abs(value).max(), np.float32),
            )
            np.testing.assert_array_equal(seen[f"{tensor}_scale"], state[f"{tensor}_scale"])


@pytest.mark.parametrize("step", [0, 5, fp8.HISTORY_LENGTH + 5])
def test_a_step_updates_histories_and_scales(step: int) -> None:
    """The test has more projections than one kernel updates."""
    states = {f"layers_{index}": {"attention": {"query": _state(index)}} for index in range(40)}
    observed = jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, 7.0) if leaf.shape[0] > 1 else leaf, states
    )
    observed["layers_3"]["attention"]["query"] |= {
        "input_amax_history": jnp.full((fp8.HISTORY_LENGTH,), jnp.inf),
        "kernel_amax_history": jnp.zeros((fp8.HISTORY_LENGTH,)),
    }
    advanced = jax.jit(fp8.advance_states)(states, observed, step)
    assert jax.tree.structure(advanced) == jax.tree.structure(states)
    for name in ("layers_0", "layers_3", "layers_39"):
        before, seen, after = (
            tree[name]["attention"]["query"] for tree in (states, observed, advanced)
        )
        for tensor, (_, largest) in (("input", E4M3), ("kernel", E4M3), ("output_grad", E5M2)):
            expected = np.array(before[f"{tensor}_amax_history"])
            amax = seen[f"{tensor}_amax_history"][0]
            # An infinite amax is not recorded.
            expected[5 if step else 0] = amax if np.isfinite(amax) else 0.0
            np.testing.assert_array_equal(after[f"{tensor}_amax_history"], expected)
            np.testing.assert_allclose(
                after[f"{tensor}_scale"], [expected.max() / np.float32(largest)], rtol=1e-6
            )


def test_microbatches_are_combined_by_the_largest_amax() -> None:
    one, other = (
        {"input_scale": jnp.ones(1), "input_amax_history": jnp.full(4, 2.0)},
        {"input_scale": jnp.ones(1), "input_amax_history": jnp.full(4, 3.0)},
    )
    both = fp8.combine_microbatches(one, other)
    assert both["input_amax_history"].tolist() == [3.0] * 4
    assert both["input_scale"].tolist() == [1.0]


@pytest.mark.parametrize("widths", [(48,), (48, 16, 32)], ids=["one", "joined"])
def test_the_product_is_close_to_float32(widths: tuple[int, ...]) -> None:
    x, kernels, gradients = _arrays(widths)
    state = {}
    for tensor, amax, (_, largest) in (
        ("input", 4.5, E4M3),
        ("kernel", 0.45, E4M3),
        ("output_grad", 4.5e-3, E5M2),
    ):
        state[f"{tensor}_scale"] = jnp.full((1,), amax / largest, jnp.float32)
        state[f"{tensor}_amax_history"] = jnp.full((fp8.HISTORY_LENGTH,), amax, jnp.float32)
    outputs, backward = jax.vjp(
        lambda x, kernels: fp8.multiply_kernels(x, kernels, [state] * len(widths), jnp.float32),
        x,
        kernels,
    )
    exact, exact_backward = jax.vjp(
        lambda x, kernels: tuple(x @ kernel for kernel in kernels), x, kernels
    )
    for output, exact_output in zip(outputs, exact, strict=True):
        assert np.linalg.norm(output - exact_output) / np.linalg.norm(exact_output) < 0.06
    for gradient, exact_gradient in zip(
        jax.tree.leaves(backward(tuple(gradients))),
        jax.tree.leaves(exact_backward(tuple(gradients))),
        strict=True,
    ):
        # e5m2 has one bit of mantissa less than e4m3.
        assert np.linalg.norm(gradient - exact_gradient) / np.linalg.norm(exact_gradient) < 0.07


def test_an_empty_history_keeps_the_scale() -> None:
    scales = fp8.compute_scale(
        jnp.asarray([0.0, 896.0, jnp.inf, jnp.nan]), jnp.full(4, 3.0), jnp.float8_e4m3fn
    )
    assert scales.tolist() == [3.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("kind", [jnp.float8_e4m3fn, jnp.float8_e5m2], ids=["e4m3", "e5m2"])
def test_a_tiny_amax_keeps_the_previous_scale(kind: Any) -> None:
    """A scale below the smallest normal float32 is flushed to zero, and x / 0 is not finite."""
    tiny, edge = np.finfo(np.float32).tiny, np.float32(jnp.finfo(kind).max)
    magnitudes = jnp.asarray([tiny, 0.99 * tiny * edge, tiny * edge], jnp.float32)
    scales = jax.jit(fp8.compute_scale, static_argnums=2)(magnitudes, jnp.full(3, 3.0), kind)
    assert scales.tolist() == [3.0, 3.0, tiny]
    assert bool(
        jnp.isfinite(fp8.quantise_tensor(magnitudes, scales, kind).astype(jnp.float32)).all()
    )


def test_values_out_of_range_are_clipped() -> None:
    quantised = fp8.quantise_tensor(
        jnp.asarray([1e6, -1e6, 448.0]), jnp.asarray([1.0]), jnp.float8_e4m3fn
    ).astype(jnp.float32)
    assert quantised.tolist() == [448.0, -448.0, 448.0]


class _Projection(nn.Module):
    @nn.compact
    def __call__(self) -> Any:
        return fp8.get_state(self)


def test_initial_states_equal_those_of_a_new_projection() -> None:
    expected = _Projection().init(jax.random.key(0))[fp8.COLLECTION]
    assert len(expected) == 6
    states = fp8.make_initial_states(
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), expected)
    )
    assert jax.tree.structure(states) == jax.tree.structure(expected)
    for name, array in states.items():
        np.testing.assert_array_equal(array, expected[name])


class _Gpu:
    platform, device_kind = "gpu", "NVIDIA A100-SXM4-80GB"

    def __init__(self, capability: str) -> None:
        self.compute_capability = capability


def test_a_gpu_without_fp8_is_refused() -> None:
    fp8.require_fp8([_Gpu("8.9"), _Gpu("9.0"), _Gpu("10.0"), *jax.devices("cpu")])
    with errors.expect_user_error(errors.UNSUPPORTED, where="ENABLE_FP8", names=("A100", "8.0")):
        fp8.require_fp8([_Gpu("9.0"), _Gpu("8.0")])
