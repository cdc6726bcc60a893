"""The layer of experts: upstream's with plain products, near it in FP8, and state for the experts' products alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_current("jax", "flax", "praxis")

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from praxis import base_layer, pax_fiddle
from praxis.layers import activations, base_ops, transformers

from rosetta.nn import fp8
from rosetta.pax import einsum, fp8_experts

_SIZES: dict[str, Any] = {
    "name": "it",
    "input_dims": 32,
    "hidden_dims": 48,
    "num_experts": 4,
    "num_groups": 2,
    "unadjusted_expert_capacity_factor": 2.0,
    "moe_load_balance_loss_weight": 0.01,
    "activation_tpl": pax_fiddle.Config(activations.GELU),
}
_MUTABLE = ["summaries", "aux_loss"]


def _run_layer(made: Any) -> tuple[Any, Any, Any]:
    """Outputs, the loss that balances, and gradients."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8, 32)), jnp.float32)
    paddings = (jnp.arange(8)[None] >= jnp.array([[8], [8], [5], [3]])).astype(jnp.float32)
    layer = base_layer.instantiate(made)
    plain = base_layer.instantiate(
        pax_fiddle.Config(transformers.TransformerFeedForwardMoe, **_SIZES)
    )
    variables = layer.init(jax.random.key(1), x, paddings)
    shared = plain.init(jax.random.key(1), x, paddings)["params"]
    variables = {**variables, "params": {**variables["params"], **shared}}

    def loss(params: Any, x: Any) -> Any:
        made, more = layer.apply({**variables, "params": params}, x, paddings, mutable=_MUTABLE)
        return jnp.sum(made**2), (made, more["aux_loss"])

    (_, (found, balance)), back = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
        variables["params"], x
    )
    return found, jax.tree.leaves(balance), back


def test_with_plain_products_the_layer_equals_upstreams() -> None:
    ours = _run_layer(
        pax_fiddle.Config(
            fp8_experts.Experts, **_SIZES, product_tpl=pax_fiddle.Config(base_ops.EinsumOp)
        )
    )
    for one, other in zip(
        jax.tree.leaves(ours),
        jax.tree.leaves(
            _run_layer(pax_fiddle.Config(transformers.TransformerFeedForwardMoe, **_SIZES))
        ),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_in_fp8_the_result_is_near_and_the_routing_is_the_same() -> None:
    (found, balance, (of_params, of_x)), (expected, exact, (_, exact_x)) = (
        _run_layer(
            fp8_experts.convert_to_fp8(
                pax_fiddle.Config(transformers.TransformerFeedForwardMoe, **_SIZES), "xla"
            )
        ),
        _run_layer(pax_fiddle.Config(transformers.TransformerFeedForwardMoe, **_SIZES)),
    )
    np.testing.assert_allclose(balance, exact, rtol=1e-6)  # the router is not in FP8
    assert 0 < np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.05
    assert 0 < np.linalg.norm(of_x - exact_x) / np.linalg.norm(exact_x) < 0.1
    state = {
        name: leaf
        for name, leaf in flatten_dict(of_params, sep="/").items()
        if name.endswith(einsum.STATE_NAMES)
    }
    assert {name.rpartition("/")[0] for name in state} == {"ffn1_product", "ffn2_product"}
    assert {leaf.shape for leaf in state.values()} == {
        (1,),
        (fp8.HISTORY_LENGTH,),
    }  # one for all experts
    assert all(float(leaf.max()) > 0 for leaf in state.values())


@pytest.mark.parametrize(
    "more",
    [
        {"use_gated_activation": True},
        {"gating_func": "expert_choice"},
        {"moe_gating_embedding_level": "sentence"},
    ],
)
def test_other_experts_are_refused(more: Any) -> None:
    layer = base_layer.instantiate(
        fp8_experts.convert_to_fp8(
            pax_fiddle.Config(transformers.TransformerFeedForwardMoe, **_SIZES, **more), "xla"
        )
    )
    with errors.expect_user_error(errors.UNSUPPORTED, where="FP8 of experts", names="top-2"):
        layer.init(jax.random.key(1), jnp.ones((4, 8, 32)))
