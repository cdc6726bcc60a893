"""praxis' products in FP8 against NumPy's of what quantising leaves of their factors, and the state beside them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_current("jax", "flax", "praxis")

import jax
import jax.numpy as jnp
import numpy as np
from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, linears, multi_query_attention
from praxis.layers.injection import fp8_nvidia_gpu

from rosetta.core import log
from rosetta.nn import fp8
from rosetta.pax import einsum
from tests.unit.rosetta.nn import test_fp8 as plain

# Each with the shapes of activations and kernel, as praxis' layers have them.
EQUATIONS = {
    "linear": ("...y,yz->...z", (2, 16, 32), (32, 48)),
    "into heads": ("ABD,DNH->ABNH", (2, 16, 32), (32, 4, 16)),
    "out of heads": ("ABNH,DNH->ABD", (2, 16, 4, 16), (32, 4, 16)),
    "out of heads, heads first": ("ABNH,NHD->ABD", (2, 16, 4, 16), (4, 16, 32)),
    "q, k and v": ("ABD,KDNH->KABNH", (2, 16, 32), (3, 32, 4, 16)),
    "q, k and v of a step": ("AD,KDNH->KANH", (16, 32), (3, 32, 4, 16)),
    "one head": ("...D,DH->...H", (2, 16, 32), (32, 16)),
    "experts": ("egcm,emh->egch", (4, 2, 16, 32), (4, 32, 48)),
}


def _make_operands(name: str) -> tuple[str, Any, Any, Any]:
    equation, left, right = EQUATIONS[name]
    drawn = np.random.default_rng(3)
    x, kernel = (
        jnp.asarray(drawn.normal(size=left), jnp.float32),
        jnp.asarray(0.1 * drawn.normal(size=right), jnp.float32),
    )
    shape = jax.eval_shape(lambda x, kernel: jnp.einsum(equation, x, kernel), x, kernel).shape
    return equation, x, kernel, jnp.asarray(1e-3 * drawn.normal(size=shape), jnp.float32)


@pytest.mark.parametrize("name", EQUATIONS)
def test_against_numpy(name: str) -> None:
    equation, x, kernel, gradient = _make_operands(name)
    state = plain._state(0)
    found, back = jax.vjp(
        lambda x, kernel, state: einsum.multiply_in_fp8(equation, x, kernel, state, jnp.float32),
        x,
        kernel,
        state,
    )
    of_x, of_kernel, seen = back(gradient)

    def narrow(value: Any, tensor: str, kind: Any) -> Any:
        return plain._round_to_fp8(value, float(state[f"{tensor}_scale"][0]), kind).astype(
            np.float64
        )

    factors = [narrow(x, "input", plain.E4M3), narrow(kernel, "kernel", plain.E4M3)]
    exact, exact_back = jax.vjp(
        lambda *args: jnp.einsum(equation, *args, precision="highest"),
        *(jnp.asarray(each, jnp.float32) for each in factors),
    )
    expected = (
        exact,
        *exact_back(jnp.asarray(narrow(gradient, "output_grad", plain.E5M2), jnp.float32)),
    )
    for one, other in zip((found, of_x, of_kernel), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * float(np.abs(other).max()))

    for tensor, value in (("input", x), ("kernel", kernel), ("output_grad", gradient)):
        np.testing.assert_array_equal(
            seen[f"{tensor}_amax_history"],
            np.full(fp8.HISTORY_LENGTH, np.abs(value).max(), np.float32),
        )
        np.testing.assert_array_equal(seen[f"{tensor}_scale"], state[f"{tensor}_scale"])


def test_xla_multiplies_the_kernels_of_experts_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.forget_shown()
    equation, x, kernel, _ = _make_operands("experts")
    found = einsum.multiply_in_fp8(equation, x, kernel, plain._state(0), jnp.float32, by="te")
    np.testing.assert_array_equal(
        found, einsum.multiply_in_fp8(equation, x, kernel, plain._state(0), jnp.float32)
    )
    assert "FP8 of experts by XLA instead of Transformer Engine" in capsys.readouterr().err


@pytest.mark.parametrize("equation", ["gsec,gsm->egcm", "BTNH,BSNH->BNTS", "ab,cb->acb"])
def test_other_equations_are_refused(equation: str) -> None:
    sizes = dict.fromkeys("gsecmBTNHSabc", 2)
    left, right = (
        jnp.ones([sizes[letter] for letter in part])
        for part in equation.split("->", maxsplit=1)[0].split(",")
    )
    with pytest.raises(ValueError, match="not a product of activations and a kernel"):
        einsum.multiply_in_fp8(equation, left, right, plain._state(0), jnp.float32)


_LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (
        pax_fiddle.Config(linears.Linear, name="it", input_dims=32, output_dims=48),
        (2, 16, 32),
    ),
    "into heads": (
        pax_fiddle.Config(
            attentions.AttentionProjection, name="it", input_dim=32, num_heads=4, dim_per_head=16
        ),
        (2, 16, 32),
    ),
    "out of heads": (
        pax_fiddle.Config(
            attentions.AttentionProjection,
            name="it",
            input_dim=32,
            num_heads=4,
            dim_per_head=16,
            is_output_projection=True,
        ),
        (2, 16, 4, 16),
    ),
    "combined": (
        pax_fiddle.Config(
            attentions.CombinedQKVProjectionLayer,
            name="it",
            input_dim=32,
            num_heads=4,
            dim_per_head=16,
        ),
        (2, 16, 32),
    ),
    "one head": (
        pax_fiddle.Config(
            multi_query_attention.OneHeadedAttentionProjection,
            name="it",
            input_dim=32,
            output_dim=16,
        ),
        (2, 16, 32),
    ),
}


@pytest.mark.parametrize("name", _LAYERS)
def test_a_layers_variables_are_those_of_upstreams_fp8(name: str) -> None:
    template, shape = _LAYERS[name]
    x = jnp.ones(shape, jnp.bfloat16)
    trees = []
    for einsum_tpl in (
        pax_fiddle.Config(einsum.Einsum),
        pax_fiddle.Config(fp8_nvidia_gpu.Fp8EinsumOp),
    ):
        layer = base_layer.instantiate(
            template.clone().set(einsum_tpl=einsum_tpl, fprop_dtype=jnp.bfloat16)
        )
        hparams = layer.abstract_init_with_metadata(x)
        trees.append(
            jax.tree.map(
                lambda each: (tuple(each.shape), each.dtype, tuple(each.collections)), hparams
            )
        )
        variables = layer.init(jax.random.key(0), x)
        trees.append(jax.tree.map(np.asarray, variables))
        made = layer.apply(variables, x)
        assert {each.dtype for each in jax.tree.leaves(made)} == {jnp.dtype(jnp.bfloat16)}
    assert trees[0] == trees[2]
    for one, other in zip(jax.tree.leaves(trees[1]), jax.tree.leaves(trees[3]), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [name for name in EQUATIONS if name != "experts"])
def test_row_major_product_is_the_same(name: str) -> None:
    equation, x, kernel, gradient = _make_operands(name)
    layer = base_layer.instantiate(pax_fiddle.Config(einsum.RowMajorEinsum, name="einsum"))
    row_major, plain_product = (
        jax.vjp(multiply, x, kernel)
        for multiply in (
            lambda x, kernel: layer.apply({}, equation, x, kernel),
            lambda x, kernel: jnp.einsum(equation, x, kernel),
        )
    )
    results = [(product, *pull_back(gradient)) for product, pull_back in (row_major, plain_product)]
    for computed, expected in zip(*results, strict=True):
        np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-6)


def test_product_of_parts_is_row_major() -> None:
    """A transpose of the product would be one of the rows that repeated layers keep."""
    equation, x, kernel, _ = _make_operands("q, k and v")
    layer = base_layer.instantiate(pax_fiddle.Config(einsum.RowMajorEinsum, name="einsum"))
    traced = jax.make_jaxpr(lambda x, kernel: layer.apply({}, equation, x, kernel))(x, kernel)
    text = str(traced)
    assert "f32[2,16,3,4,16] = dot_general" in text
    assert "transpose" not in text
