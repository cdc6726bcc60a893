"""The vocabulary's product keeps its factors narrow and its sums wide, forward and backward."""

from __future__ import annotations

from typing import Any

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


def test_all_three_products_have_narrow_factors() -> None:
    hidden, kernel, weights = _inputs()
    jaxpr = jax.make_jaxpr(
        lambda *given: _gradients(lambda *two: logits.compute_logits(*two, "bfloat16"), *given)
    )(hidden, kernel, weights)
    products = [each for each in jaxpr.jaxpr.eqns if each.primitive.name == "dot_general"]
    assert len(products) == 3
    for each in products:
        assert {str(factor.aval.dtype) for factor in each.invars} == {"bfloat16"}
        assert str(each.outvars[0].aval.dtype) == "float32"


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
