"""A padded vocabulary changes no parameter and no result."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "praxis")

import jax
import jax.numpy as jnp
import numpy as np
from praxis import base_hyperparams, layers, pax_fiddle

from rosetta.pax import softmax

SIZE, DIMS = 200, 16


def _make_template(*, padded: bool, lookup: str) -> Any:
    made = pax_fiddle.Config(
        layers.SharedEmbeddingSoftmax,
        name="softmax",
        input_dims=DIMS,
        num_classes=SIZE,
        lookup_style=lookup,
        scale_sqrt_depth=True,
    )
    made.feed_forward_tpl.has_bias = False
    return softmax.pad_vocabulary(made) if padded else made


def _compute_loss(layer: Any, variables: Any, ids: Any, labels: Any) -> Any:
    def run(module: Any) -> Any:
        x = module.emb_lookup(ids)
        return module(x, jnp.ones((*ids.shape, 1)), class_ids=labels[..., None])

    return layer.apply(variables, method=run)


@pytest.mark.parametrize("lookup", ["matmul", "index"])
def test_loss_gradients_and_logits_do_not_depend_on_padding(lookup: str) -> None:
    plain, ours = (
        base_hyperparams.instantiate(_make_template(padded=each, lookup=lookup))
        for each in (False, True)
    )
    ids, labels = (
        jnp.asarray(np.random.default_rng(seed).integers(0, SIZE, (2, 8)), jnp.int32)
        for seed in (0, 1)
    )
    weights = jnp.ones((2, 8, 1))
    start = [
        layer.init(
            jax.random.PRNGKey(3), jnp.ones((2, 8, DIMS)), weights, class_ids=labels[..., None]
        )
        for layer in (plain, ours)
    ]
    assert jax.tree.map(np.shape, start[1]) == jax.tree.map(np.shape, start[0])
    jax.tree.map(np.testing.assert_array_equal, start[1], start[0])

    found, expected = (_compute_loss(layer, start[0], ids, labels) for layer in (ours, plain))
    assert found.logits.shape == (2, 8, SIZE)
    for name in ("logits", "log_probs", "per_example_argmax", "avg_xent"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
    gradients = [
        jax.grad(
            lambda variables, layer=layer: _compute_loss(layer, variables, ids, labels).avg_xent
        )(start[0])
        for layer in (ours, plain)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), *gradients)


def test_products_are_padded() -> None:
    """Otherwise none of the above says anything: every product of loss and gradient has 256 where 200 was."""
    layer = base_hyperparams.instantiate(_make_template(padded=True, lookup="matmul"))
    ids = jnp.zeros((2, 8), jnp.int32)
    variables = layer.init(
        jax.random.PRNGKey(3), jnp.ones((2, 8, DIMS)), jnp.ones((2, 8, 1)), class_ids=ids[..., None]
    )
    traced = str(
        jax.make_jaxpr(jax.grad(lambda given: _compute_loss(layer, given, ids, ids).avg_xent))(
            variables
        )
    )
    products = [line for line in traced.splitlines() if "dot_general" in line]
    assert products
    assert all(str(SIZE) not in line for line in products)
