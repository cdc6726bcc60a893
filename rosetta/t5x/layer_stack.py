"""A stack of equal layers: run one after the other, or as one compiled layer in a loop.

Rematerialisation, if the configuration asks for it, is applied to each layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from rosetta.nn import remat

if TYPE_CHECKING:
    from rosetta.t5x.run.model_config import T5Config


def apply_layers(
    module: nn.Module,
    layer: type[nn.Module],
    config: T5Config,
    count: int,
    x: Any,
    *inputs: Any,
    cached: bool = False,
    **options: Any,
) -> Any:
    """Return the output of `count` layers, each called as layer(config, **options)(x, *inputs).

    The variables are always those of single layers. With config.scan_layers they are stacked for
    the loop, so that checkpoints do not depend on the switch. Layers with a cache are never looped
    over.

    Args:
      module: the module that owns the layers, as layers_0, layers_1, ...
      layer: the class of the layers.
      config: the network's configuration.
      count: the number of layers.
      x: the activations that the first layer gets; each layer returns those of the next.
      *inputs: further arguments, the same for each layer.
      cached: whether the layers keep a cache of keys and values.
      **options: further attributes of each layer.
    """
    has_remat = config.remat != "none"
    if not config.scan_layers or not count or cached or module.is_initializing():
        layer_class: Any = layer
        if has_remat and not cached:
            layer_class = nn.remat(layer, policy=remat.make_policy(config.remat))
        for index in range(count):
            x = layer_class(config, **options, name=f"layers_{index}")(x, *inputs)
        return x

    stacked = _stack_variables(module, count)
    dropout_keys = None
    if module.has_rng("dropout"):
        dropout_keys = jax.random.split(module.make_rng("dropout"), count)
    unbound_layer = layer(config, **options, parent=None)

    def body(carry: Any, layer_inputs: Any) -> tuple[Any, None]:
        variables, key = layer_inputs
        rngs = None if key is None else {"dropout": key}
        return unbound_layer.apply(variables, carry, *inputs, rngs=rngs), None

    if has_remat:
        body = jax.checkpoint(body, policy=remat.make_policy(config.remat), prevent_cse=False)
    return jax.lax.scan(body, x, (stacked, dropout_keys))[0]


def _stack_variables(module: nn.Module, count: int) -> Any:
    """Return the variables of a module's layers, each stacked over the layers."""
    collections = {
        kind: tree
        for kind, tree in module.variables.items()
        if "layers_0" in tree and kind != "params_axes"
    }
    layers = [
        {kind: tree[f"layers_{index}"] for kind, tree in collections.items()}
        for index in range(count)
    ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
