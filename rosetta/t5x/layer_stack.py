"""A stack of equal layers: one after the other, or one compiled layer in a loop; with
rematerialisation or without.
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
    *others: Any,
    cached: bool = False,
    **how: Any,
) -> Any:
    """Send x through `count` layers named layers_0, layers_1, ... of `module`, called as
    layer(config, **how)(x, *others).

    The variables are those of single layers also with config.scan_layers: they are stacked for the
    loop, so that checkpoints do not depend on it. Layers with a cache are never scanned over.
    """
    checkpoints = config.remat != "none"
    if not config.scan_layers or not count or cached or module.is_initializing():
        made = (
            nn.remat(layer, policy=remat.make_policy(config.remat))
            if checkpoints and not cached
            else layer
        )
        for index in range(count):
            x = made(config, **how, name=f"layers_{index}")(x, *others)
        return x

    variables = module.variables
    single = [
        {
            kind: tree[f"layers_{index}"]
            for kind, tree in variables.items()
            if "layers_0" in tree and kind != "params_axes"
        }
        for index in range(count)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *single)
    keys = (
        jax.random.split(module.make_rng("dropout"), count) if module.has_rng("dropout") else None
    )
    pure = layer(config, **how, parent=None)

    def body(carry: Any, inputs: Any) -> tuple[Any, None]:
        own, key = inputs
        return pure.apply(own, carry, *others, rngs=None if key is None else {"dropout": key}), None

    if checkpoints:
        body = jax.checkpoint(body, policy=remat.make_policy(config.remat), prevent_cse=False)
    return jax.lax.scan(body, x, (stacked, keys))[0]
