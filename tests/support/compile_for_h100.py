"""Run by test_compiled.py where the CUDA plugin is: compiles layers for an H100 that is not here, and prints as JSON the libraries' calls in them."""

from __future__ import annotations

import json
import re
from typing import Any

from rosetta.plan import t5x_step

t5x_step.prepare_t5x_compilation("xla", "large", "h100")

import jax
import jax.numpy as jnp
from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, transformers

from rosetta.pax import attention, einsum, fp8_experts

BATCH, LENGTH, WIDE = 2, 256, 512
_HEADS: dict[str, Any] = {"input_dim": WIDE, "hidden_dim": WIDE, "num_heads": 8, "dim_per_head": 64}
_FP8 = pax_fiddle.Config(einsum.Einsum)
_EXPERTS = pax_fiddle.Config(
    transformers.TransformerFeedForwardMoe,
    input_dims=WIDE,
    hidden_dims=1024,
    num_experts=4,
    num_groups=2,
    moe_load_balance_loss_weight=0.01,
)
LAYERS: dict[str, Any] = {
    "attention": pax_fiddle.Config(
        attention.DotProductAttention,
        **_HEADS,
        combine_qkv=True,
        internal_enable_per_dim_scale=False,
    ),
    "groups": pax_fiddle.Config(attention.MultiQueryAttention, **_HEADS, num_kv_heads=2),
    "combined": pax_fiddle.Config(
        attentions.CombinedQKVProjectionLayer,
        input_dim=WIDE,
        num_heads=8,
        dim_per_head=64,
        einsum_tpl=_FP8,
    ),
    "experts": fp8_experts.convert_to_fp8(_EXPERTS, "xla"),
}


def list_custom_calls(made: Any, device: Any) -> list[str]:
    """What a layer's forward and backward pass calls: the library's name, and the end of the operation's."""
    layer = base_layer.instantiate(made.clone().set(name="it", fprop_dtype=jnp.bfloat16))
    attends = hasattr(layer, "atten_dropout_prob")
    given = [
        jax.ShapeDtypeStruct((BATCH, LENGTH, WIDE), jnp.bfloat16),
        *([jax.ShapeDtypeStruct((1, 1, LENGTH, LENGTH), jnp.bfloat16)] if attends else []),
    ]

    def inputs(x: Any, *mask: Any) -> tuple[Any, ...]:
        return (x, x, x, *mask) if attends else (x,)

    variables = jax.eval_shape(
        lambda *given: layer.init(jax.random.key(0), *inputs(*given)), *given
    )

    def loss(params: Any, *given: Any) -> Any:
        found = layer.apply({"params": params}, *inputs(*given), mutable=["summaries", "aux_loss"])[
            0
        ]
        return sum(jnp.sum(each.astype(jnp.float32) ** 2) for each in jax.tree.leaves(found))

    where = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        (variables["params"], *given),
    )
    text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*shapes).compile().as_text()
    return [
        f"{library} {name}"
        for library, name in re.findall(
            r'custom_call_target="(__c[^"]*)".*?op_name="([^"]*)"', text
        )
    ]


if __name__ == "__main__":
    with jax.default_device(jax.devices("cpu")[0]):
        print(
            json.dumps(
                {
                    name: list_custom_calls(made, t5x_step.describe_devices("h100", 1, 1)[0])
                    for name, made in LAYERS.items()
                }
            )
        )
