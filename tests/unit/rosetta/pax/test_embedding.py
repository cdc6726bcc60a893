"""An embedding with an exact lookup has the loss and gradients of a product with one-hot rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_current("jax", "praxis")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from praxis import base_hyperparams, layers, pax_fiddle

from rosetta.pax import embedding

SIZE, DIMS = 96, 16
TEMPLATES = {
    "shared": lambda: pax_fiddle.Config(
        layers.SharedEmbeddingSoftmax, name="table", input_dims=DIMS, num_classes=SIZE
    ),
    "separate": lambda: pax_fiddle.Config(
        layers.Embedding, name="table", input_dims=DIMS, num_classes=SIZE
    ),
}


def _make_layer(name: str, style: str) -> Any:
    template = TEMPLATES[name]()
    template.weight_split_dims_mapping.wt = ["data", "mdl"]
    template.mesh_axis_names = ["replica", "data", "mdl"]
    template.activation_split_dims_mapping.emb_out_split_dims_mapping = [
        ("replica", "data"),
        None,
        "mdl",
    ]
    template.ici_mesh_shape = [1, 1, 1]
    embedding.set_lookup_style(template, style)
    return base_hyperparams.instantiate(template)


@pytest.mark.parametrize("name", TEMPLATES)
def test_same_as_a_product(name: str) -> None:
    ids = jnp.asarray(np.random.default_rng(0).integers(0, SIZE, (2, 40)), jnp.int32)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(2, 40, DIMS)), jnp.float32)
    exact, product = (_make_layer(name, style) for style in ("exact", "matmul"))
    devices = np.array(jax.devices()[:1]).reshape(1, 1, 1)
    with Mesh(devices, ("replica", "data", "mdl")):
        variables = exact.init(jax.random.PRNGKey(3), ids, method=exact.emb_lookup)
        results = [
            jax.value_and_grad(
                lambda variables, layer=layer: jnp.sum(
                    weights * layer.apply(variables, ids, method=layer.emb_lookup)
                )
            )(variables)
            for layer in (exact, product)
        ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *results)


@pytest.mark.parametrize(
    ("name", "split"),
    [("shared", (("mdl",), ("data",))), ("separate", (("data",), ("mdl",)))],
)
def test_layout_is_that_of_the_table(name: str, split: Any) -> None:
    layer = _make_layer(name, "exact")
    template = layer.array_lookup_tpl if name == "shared" else layer.array_lookup
    lookup = base_hyperparams.instantiate(template) if name == "shared" else template
    assert lookup._find_layout() is None  # without a mesh
    devices = np.array(jax.devices()[:1]).reshape(1, 1, 1)
    with Mesh(devices, ("replica", "data", "mdl")):
        layout = lookup._find_layout()
    assert (layout.vocabulary_axes, layout.feature_axes) == split
    assert layout.batch_axes == ("replica", "data")
