"""Low-rank adaptation (Hu et al. 2021, arXiv:2106.09685): beside a frozen kernel w two narrow ones,
lora_a and lora_b, that are trained.

The product is x w + (x a) b', and no sum w + a b' is ever made, so that w may be multiplied in FP8
while the narrow kernels stay in the activations' type. Their shapes are upstream's (praxis,
contrib/gpu/scripts_gpu/lora_layers.py): a has w's first dimension, b the product of the others,
[features, rank] and [outputs, rank], for q, k and v in one with a 3 in front of each. `merge` makes
one kernel of the three.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from praxis import base_layer
from praxis.layers import attentions, linears, multi_query_attention

KERNEL_NAMES = ("lora_a", "lora_b")
KERNEL_PATTERN = r"^.*lora.*$"  # of these variables, by their full names


class _AdaptedLayer(base_layer.BaseLayer):
    """Makes both narrow kernels, and what they add to a product; on top of one of praxis' layers
    with a kernel w.

    Attributes:
      rank: of the adaptation.
    """

    rank: int = 0

    def _create_adapters(self, ahead: int = 0) -> None:
        """Create the kernels beside w, whose first `ahead` dimensions are parts; b is zero, so that
        nothing changes at first.
        """
        hparams = self._weight_hparams["w"]
        parts, first, rest = (
            hparams.shape[:ahead],
            hparams.shape[ahead],
            math.prod(hparams.shape[ahead + 1 :]),
        )
        for name, size, init in (
            ("lora_a", first, hparams.init),
            ("lora_b", rest, base_layer.WeightInit.Constant(0.0)),
        ):
            self.create_variable(
                name,
                base_layer.WeightHParams(
                    shape=[*parts, size, self.rank],
                    init=init,
                    mesh_shape=self.mesh_shape,
                    tensor_split_dims_mapping=[None] * (ahead + 2),
                ),
            )

    def _apply_adapters(self, x: Any, *, turned: bool = False) -> Any:
        """Return (x a) b' of [..., first] as [..., rest], or with `turned` (x b) a' of [..., rest]
        as [..., first]; parts come first.
        """
        into, out = (
            (self.theta.lora_b, self.theta.lora_a)
            if turned
            else (self.theta.lora_a, self.theta.lora_b)
        )
        x = x.astype(into.dtype)
        if into.ndim == 2:
            return jnp.einsum("...r,or->...o", jnp.einsum("...i,ir->...r", x, into), out)
        return jnp.einsum("k...r,kor->k...o", jnp.einsum("...i,kir->k...r", x, into), out)


class Linear(linears.Linear, _AdaptedLayer):
    """praxis' Linear with an adaptation."""

    def setup(self) -> None:
        super().setup()
        self._create_adapters()

    def __call__(self, inputs: Any) -> Any:
        """Return the product of [..., features] as [..., outputs]."""
        return super().__call__(inputs) + self._apply_adapters(inputs)


class AttentionProjection(attentions.AttentionProjection, _AdaptedLayer):
    """praxis' AttentionProjection, into heads or out of them, with an adaptation."""

    def setup(self) -> None:
        super().setup()
        if self.use_nhd_shape and self.is_output_projection and not self.attention_combine_dims:
            raise NotImplementedError("a kernel of [heads, depth, features]")
        self._create_adapters()

    def __call__(self, inputs: Any) -> Any:
        """Return the product: of [..., features] as [..., heads, depth], or of that as [...,
        features].
        """
        made = super().__call__(inputs)
        if self.is_output_projection:
            flat = inputs.reshape(*inputs.shape[:-2], -1)
            return made + self._apply_adapters(flat, turned=not self.use_nhd_shape)
        return made + self._apply_adapters(inputs).reshape(made.shape)


class OneHeadedAttentionProjection(
    multi_query_attention.OneHeadedAttentionProjection, _AdaptedLayer
):
    """praxis' OneHeadedAttentionProjection, keys or values for all heads of queries, with an
    adaptation.
    """

    def setup(self) -> None:
        super().setup()
        self._create_adapters()

    def __call__(self, inputs: Any) -> Any:
        """Return the product of [..., features] as [..., depth]."""
        return super().__call__(inputs) + self._apply_adapters(inputs)


class CombinedQKVProjectionLayer(attentions.CombinedQKVProjectionLayer, _AdaptedLayer):
    """praxis' CombinedQKVProjectionLayer with an adaptation of each part; features need not be
    heads times depth.
    """

    def setup(self) -> None:
        super().setup()
        self._create_adapters(ahead=1)

    def __call__(self, inputs: Any) -> tuple[Any, ...]:
        """Return queries, keys and values, [..., heads, depth] each, of [..., features]."""
        made = super().__call__(inputs)
        return tuple(
            each + more.reshape(each.shape)
            for each, more in zip(made, self._apply_adapters(inputs), strict=True)
        )


ADAPTED_CLASSES = {
    linears.Linear: Linear,
    attentions.AttentionProjection: AttentionProjection,
    multi_query_attention.OneHeadedAttentionProjection: OneHeadedAttentionProjection,
    attentions.CombinedQKVProjectionLayer: CombinedQKVProjectionLayer,
}


def merge(params: Any) -> Any:
    """Return a tree of parameters with each w, lora_a and lora_b made one w, in w's type; layers
    that repeat may be stacked. Pure.
    """
    if not isinstance(params, dict):
        return params
    kept = {name: merge(value) for name, value in params.items() if name not in KERNEL_NAMES}
    if all(name in params for name in KERNEL_NAMES):
        first, second = (jnp.asarray(params[name], jnp.float32) for name in KERNEL_NAMES)
        added = first @ jnp.swapaxes(second, -1, -2)
        kept["w"] = (
            jnp.asarray(params["w"], jnp.float32) + added.reshape(params["w"].shape)
        ).astype(params["w"].dtype)
    return type(params)(kept)
