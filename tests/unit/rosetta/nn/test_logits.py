"""The vocabulary's product keeps its factors narrow and its sums wide, forward and backward."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.nn import logits


def _inputs() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((2, 6, 8), (8, 20), (2, 6, 20))
    )


def _gradients(of: Any, hidden: Any, kernel: Any, weights: Any) -> Any:
    return jax.grad(lambda hidden, kernel: jnp.sum(of(hidden, kernel) * weights), argnums=(0, 1))(
        hidden, kernel
    )


def test_float32_logits_equal_the_matrix_product() -> None:
    hidden, kernel, weights = _inputs()
    np.testing.assert_array_equal(logits.compute_logits(hidden, kernel, "float32"), hidden @ kernel)
    found = _gradients(
        lambda *given: logits.compute_logits(*given, "float32"), hidden, kernel, weights
    )
    for one, other in zip(found, _gradients(jnp.matmul, hidden, kernel, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def _compute_all_products(hidden: Any, kernel: Any, weights: Any) -> Any:
    outputs, differentiate = jax.vjp(
        lambda *factors: logits.compute_logits(*factors, "bfloat16"), hidden, kernel
    )
    return outputs, differentiate(weights)


@pytest.mark.parametrize(("platform", "factor"), [("cuda", "bf16"), ("cpu", "f32")])
def test_all_three_products_have_factors_of_one_type(platform: str, factor: str) -> None:
    """On the CPU, the factors are rounded, but stay float32."""
    traced = jax.jit(_compute_all_products).trace(*_inputs())
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    products = [line for line in program.splitlines() if "stablehlo.dot_general" in line]
    assert len(products) == 3
    for line in products:
        types = re.findall(r"tensor<[0-9x]*x(b?f[0-9]+)>", line)
        assert types == [factor, factor, "f32"]


def test_bfloat16_logits_have_rounded_factors_when_compiled() -> None:
    """Without the rounding, the logits would equal those of float32."""
    hidden, kernel, _ = _inputs()
    narrow = jax.jit(lambda *factors: logits.compute_logits(*factors, "bfloat16"))(hidden, kernel)
    rounded = (np.asarray(factor.astype(jnp.bfloat16), np.float32) for factor in (hidden, kernel))
    np.testing.assert_allclose(narrow, np.matmul(*rounded), rtol=1e-5, atol=1e-5)
    assert float(jnp.abs(narrow - hidden @ kernel).max()) > 1e-3


@pytest.mark.parametrize(
    ("compute", "is_bounded"),
    [
        pytest.param(lambda *factors: logits.compute_logits(*factors, "bfloat16"), True, id="bf16"),
        pytest.param(
            lambda hidden, kernel: _round_coarsely(hidden) @ _round_coarsely(kernel),
            False,
            id="fault",
        ),
    ],
)
def test_bfloat16_loss_and_gradients_are_near_those_of_float32(
    compute: Any, is_bounded: bool
) -> None:
    """The planted fault keeps four bits of the factors where bfloat16 keeps eight."""
    generator = np.random.default_rng(1)
    hidden = jnp.asarray(generator.normal(size=(4, 32, 256)), jnp.bfloat16)
    kernel = jnp.asarray(generator.normal(size=(256, 4096)) / 16, jnp.float32)
    targets = jnp.asarray(generator.integers(0, 4096, (4, 32)))

    def compute_loss(compute: Any, hidden: Any, kernel: Any) -> Any:
        scores = jax.nn.log_softmax(compute(hidden, kernel))
        return -jnp.mean(jnp.take_along_axis(scores, targets[..., None], axis=-1))

    def evaluate(compute: Any) -> list[Any]:
        step = jax.value_and_grad(compute_loss, argnums=(1, 2))
        loss, gradients = jax.jit(step, static_argnums=0)(compute, hidden, kernel)
        return [np.asarray(array, np.float64) for array in (loss, *gradients)]

    errors = [
        np.linalg.norm(narrow - wide) / np.linalg.norm(wide)
        for narrow, wide in zip(evaluate(compute), evaluate(jnp.matmul), strict=True)
    ]
    assert (errors[0] < 1e-4 and max(errors[1:]) < 1e-2) == is_bounded, errors


def _round_coarsely(array: Any) -> Any:
    return jax.lax.reduce_precision(array.astype(jnp.float32), 8, 3)


def test_the_kernel_gradient_is_not_rounded_after_its_sum() -> None:
    """Factors that bfloat16 holds exactly leave no error at all, though their sums need more digits than it has."""
    hidden, kernel, weights = (jnp.round(each * 16) for each in _inputs())
    for one, other in zip(
        _gradients(
            lambda *given: logits.compute_logits(*given, "bfloat16"), hidden, kernel, weights
        ),
        _gradients(jnp.matmul, hidden, kernel, weights),
        strict=True,
    ):
        assert float(jnp.abs(other).max()) > 256
        np.testing.assert_array_equal(one, other)
