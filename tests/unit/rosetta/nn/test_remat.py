"""What is computed again, by counting the matrix products of a training step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
from jax.extend.core import jaxprs_in_params

from rosetta.nn import fp8
from tests.support import small_t5


def _flops(jaxpr: Any, times: int = 1) -> dict[str, int]:
    """Return the multiplications of products with weights, and of attention (which have batch dimensions)."""
    found = {"projections": 0, "attention": 0}
    for each in jaxpr.eqns:
        if each.primitive.name == "dot_general":
            (contracting, _), (batch, _) = each.params["dimension_numbers"]
            size = math.prod(each.outvars[0].aval.shape) * math.prod(
                each.invars[0].aval.shape[axis] for axis in contracting
            )
            found["attention" if batch else "projections"] += size * times
        for inner in jaxprs_in_params(each.params):
            repeated = each.params["length"] if each.primitive.name == "scan" else 1
            found = {
                name: found[name] + more for name, more in _flops(inner, times * repeated).items()
            }
    return found


def _step(**switches: Any) -> dict[str, int]:
    given, settings = small_t5.make_batch(), small_t5.make_config(**switches)
    module = small_t5.Transformer(settings)
    variables = jax.eval_shape(lambda: small_t5.initialize_variables(settings, given))
    trained = {kind: tree for kind, tree in variables.items() if kind in ("params", fp8.COLLECTION)}
    return _flops(
        jax.make_jaxpr(
            jax.grad(
                lambda variables: small_t5.compute_loss(
                    small_t5.apply_network(module, variables, given), given
                )
            )
        )(trained).jaxpr
    )


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"scan_layers": True},
        {"fuse_qkv": True, "fp8": "xla"},
        {"fuse_qkv": True, "transpose_batch_sequence": True, "scan_layers": True, "fp8": "xla"},
    ],
    ids=str,
)
def test_minimal_repeats_no_projection_and_full_does(others: dict[str, Any]) -> None:
    none, minimal, full = (_step(**others, remat=each) for each in ("none", "minimal", "full"))
    assert minimal["projections"] == none["projections"]
    # Of attention it repeats queries times keys alone, one of six products (two forward, four backward): XLA's weights are too large to keep.
    assert minimal["attention"] * 6 == none["attention"] * 7
    assert full["projections"] > none["projections"]
