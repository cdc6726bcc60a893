"""FP8 projections against an independent computation in NumPy with the same scales, and the state that follows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need("jax", "flax")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import linen as nn

from rosetta.nn import fp8

E4M3, E5M2 = (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)


def _state(seed: int) -> dict[str, Any]:
    """A state in use: histories with something in them, and the scales that follow from it."""
    rng = np.random.default_rng(seed)
    found = {}
    for tensor, size, (_, edge) in (
        ("input", 4.0, E4M3),
        ("kernel", 0.5, E4M3),
        ("output_grad", 1e-2, E5M2),
    ):
        history = (size * rng.uniform(0.5, 1.0, fp8.HISTORY_LENGTH)).astype(np.float32)
        found[f"{tensor}_scale"] = jnp.asarray([history.max() / np.float32(edge)], jnp.float32)
        found[f"{tensor}_amax_history"] = jnp.asarray(history)
    return found


def _arrays(outputs: tuple[int, ...]) -> tuple[Any, list[Any], list[Any]]:
    rng = np.random.default_rng(7)
    x = jnp.asarray(rng.normal(size=(3, 32, 64)), jnp.float32)
    kernels = [jnp.asarray(0.1 * rng.normal(size=(64, each)), jnp.float32) for each in outputs]
    gradients = [
        jnp.asarray(1e-3 * rng.normal(size=(3, 32, each)), jnp.float32) for each in outputs
    ]
    return x, kernels, gradients


def _narrow(x: Any, scale: float, kind: tuple[Any, float]) -> np.ndarray:
    """Quantise and dequantise."""
    found: np.ndarray = np.clip(
        np.asarray(x, np.float32) / np.float32(scale), -kind[1], kind[1]
    ).astype(kind[0]).astype(np.float32) * np.float32(scale)
    return found


def _scale(state: dict[str, Any], tensor: str, kind: tuple[Any, float]) -> float:
    return float(np.max(state[f"{tensor}_amax_history"]) / np.float32(kind[1]))


def _reference(
    x: Any, kernels: list[Any], gradients: list[Any], states: list[Any]
) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """Outputs, the input's gradient and the kernels': products in float64 of what FP8 leaves of the factors."""
    of_x = max(_scale(state, "input", E4M3) for state in states)
    of_kernels = [_scale(state, "kernel", E4M3) for state in states]
    of_gradient = max(_scale(state, "output_grad", E5M2) for state in states)
    narrow: np.ndarray = _narrow(x, of_x, E4M3).astype(np.float64)
    outputs = [
        narrow @ _narrow(kernel, scale, E4M3)
        for kernel, scale in zip(kernels, of_kernels, strict=True)
    ]
    given: list[np.ndarray] = [
        _narrow(each, of_gradient, E5M2).astype(np.float64) for each in gradients
    ]
    into_x = sum(
        each @ _narrow(kernel, max(of_kernels), E4M3).T
        for each, kernel in zip(given, kernels, strict=True)
    )
    into_kernels = [np.einsum("abi,abo->io", narrow, each) for each in given]
    return outputs, np.asarray(into_x), into_kernels


@pytest.mark.parametrize("outputs", [(48,), (48, 16, 32)], ids=["one", "fused"])
def test_products_and_gradients_match_numpy(outputs: tuple[int, ...]) -> None:
    x, kernels, gradients = _arrays(outputs)
    states = [_state(index) for index in range(len(outputs))]

    def product(x: Any, kernels: Any, states: Any) -> Any:
        return fp8.multiply_kernels(x, kernels, states, jnp.float32)

    found, back = jax.vjp(product, x, kernels, states)
    of_x, of_kernels, seen = back(tuple(gradients))
    expected, expected_x, expected_kernels = _reference(x, kernels, gradients, states)
    for one, other in zip(
        (*found, of_x, *of_kernels), (*expected, expected_x, *expected_kernels), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * float(np.abs(other).max()))

    for index, (state, newest) in enumerate(zip(states, seen, strict=True)):
        for tensor, value in (
            ("input", x),
            ("kernel", kernels[index]),
            ("output_grad", gradients[index]),
        ):
            np.testing.assert_array_equal(
                newest[f"{tensor}_amax_history"],
                np.full(fp8.HISTORY_LENGTH, np.abs(value).max(), np.float32),
            )
            np.testing.assert_array_equal(newest[f"{tensor}_scale"], state[f"{tensor}_scale"])


@pytest.mark.parametrize("step", [0, 5, fp8.HISTORY_LENGTH + 5])
def test_a_step_updates_histories_and_scales(step: int) -> None:
    """Of many projections, as they are put together by dozens."""
    states = {f"layers_{index}": {"attention": {"query": _state(index)}} for index in range(40)}
    seen = jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, 7.0) if leaf.shape[0] > 1 else leaf, states
    )
    seen["layers_3"]["attention"]["query"] |= {
        "input_amax_history": jnp.full((fp8.HISTORY_LENGTH,), jnp.inf),
        "kernel_amax_history": jnp.zeros((fp8.HISTORY_LENGTH,)),
    }
    after = jax.jit(fp8.advance_states)(states, seen, step)
    assert jax.tree.structure(after) == jax.tree.structure(states)
    for name in ("layers_0", "layers_3", "layers_39"):
        state, newest, found = (tree[name]["attention"]["query"] for tree in (states, seen, after))
        for tensor, kind in (("input", E4M3), ("kernel", E4M3), ("output_grad", E5M2)):
            expected = np.array(state[f"{tensor}_amax_history"])
            value = newest[f"{tensor}_amax_history"][0]
            expected[5 if step else 0] = (
                value if np.isfinite(value) else 0.0
            )  # an overflow in one step is no reason to stop
            np.testing.assert_array_equal(found[f"{tensor}_amax_history"], expected)
            np.testing.assert_allclose(
                found[f"{tensor}_scale"], [expected.max() / np.float32(kind[1])], rtol=1e-6
            )


def test_microbatches_are_combined_by_the_largest_amax() -> None:
    one, other = (
        {"input_scale": jnp.ones(1), "input_amax_history": jnp.full(4, 2.0)},
        {"input_scale": jnp.ones(1), "input_amax_history": jnp.full(4, 3.0)},
    )
    both = fp8.combine_microbatches(one, other)
    assert both["input_amax_history"].tolist() == [3.0] * 4
    assert both["input_scale"].tolist() == [1.0]


@pytest.mark.parametrize("outputs", [(48,), (48, 16, 32)], ids=["one", "fused"])
def test_the_product_is_close_to_float32(outputs: tuple[int, ...]) -> None:
    x, kernels, gradients = _arrays(outputs)
    fresh = [
        {
            f"{tensor}_{what}": jnp.full(
                shape, size / (edge if what == "scale" else 1.0), jnp.float32
            )
            for tensor, size, edge in (
                ("input", 4.5, E4M3[1]),
                ("kernel", 0.45, E4M3[1]),
                ("output_grad", 4.5e-3, E5M2[1]),
            )
            for what, shape in (("scale", (1,)), ("amax_history", (fp8.HISTORY_LENGTH,)))
        }
        for _ in outputs
    ]
    found, back = jax.vjp(
        lambda x, kernels: fp8.multiply_kernels(x, kernels, fresh, jnp.float32), x, kernels
    )
    exact, exact_back = jax.vjp(
        lambda x, kernels: tuple(x @ kernel for kernel in kernels), x, kernels
    )
    for one, other in zip(found, exact, strict=True):
        assert np.linalg.norm(one - other) / np.linalg.norm(other) < 0.06
    for one, other in zip(
        jax.tree.leaves(back(tuple(gradients))),
        jax.tree.leaves(exact_back(tuple(gradients))),
        strict=True,
    ):
        assert np.linalg.norm(one - other) / np.linalg.norm(other) < 0.07  # e5m2 has one bit less


def test_an_empty_history_keeps_the_scale() -> None:
    found = fp8.compute_scale(
        jnp.asarray([0.0, 896.0, jnp.inf, jnp.nan]), jnp.full(4, 3.0), jnp.float8_e4m3fn
    )
    assert found.tolist() == [3.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("kind", [jnp.float8_e4m3fn, jnp.float8_e5m2], ids=["e4m3", "e5m2"])
def test_a_tiny_amax_keeps_the_previous_scale(kind: Any) -> None:
    """A scale below the least normal float32 is flushed to zero, and what is divided by it is no number."""
    tiny, edge = np.finfo(np.float32).tiny, np.float32(jnp.finfo(kind).max)
    magnitudes = jnp.asarray([tiny, 0.99 * tiny * edge, tiny * edge], jnp.float32)
    scales = jax.jit(fp8.compute_scale, static_argnums=2)(magnitudes, jnp.full(3, 3.0), kind)
    assert scales.tolist() == [3.0, 3.0, tiny]
    assert bool(
        jnp.isfinite(fp8.quantise_tensor(magnitudes, scales, kind).astype(jnp.float32)).all()
    )


def test_values_out_of_range_are_clipped() -> None:
    found = fp8.quantise_tensor(
        jnp.asarray([1e6, -1e6, 448.0]), jnp.asarray([1.0]), jnp.float8_e4m3fn
    ).astype(jnp.float32)
    assert found.tolist() == [448.0, -448.0, 448.0]


class _Projection(nn.Module):
    @nn.compact
    def __call__(self) -> Any:
        return fp8.get_state(self)


def test_initial_states_equal_those_of_a_new_projection() -> None:
    begun = _Projection().init(jax.random.key(0))[fp8.COLLECTION]
    assert len(begun) == 6
    found = fp8.make_initial_states(
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), begun)
    )
    assert jax.tree.structure(found) == jax.tree.structure(begun)
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf, begun[name])


class _Gpu:
    platform, device_kind = "gpu", "NVIDIA A100-SXM4-80GB"

    def __init__(self, capability: str) -> None:
        self.compute_capability = capability


def test_a_gpu_without_fp8_is_refused() -> None:
    fp8.require_fp8([_Gpu("8.9"), _Gpu("9.0"), _Gpu("10.0"), *jax.devices("cpu")])
    with errors.refused(errors.UNSUPPORTED, where="ENABLE_FP8", names=("A100", "8.0")):
        fp8.require_fp8([_Gpu("9.0"), _Gpu("8.0")])
