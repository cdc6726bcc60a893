"""Low-rank adaptation (LoRA; Hu et al. 2021, arXiv:2106.09685) of Praxis' layers.

Beside a frozen kernel w, a layer has two narrow kernels that are trained, lora_a and lora_b: its
adapter. The product is x w + (x a) b'. The sum w + a b' is never computed, so w may be multiplied
in FP8 while the narrow kernels stay in the type of the activations.

The shapes are upstream's (praxis, contrib/gpu/scripts_gpu/lora_layers.py). With the first
dimension of w as `features` and the product of its other dimensions as `outputs`, a is [features,
rank] and b is [outputs, rank]. A kernel of q, k and v has a dimension of 3 in front of each.
`merge` makes one kernel of the three.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from praxis import base_layer
from praxis.layers import attentions, linears, multi_query_attention

KERNEL_NAMES = ("lora_a", "lora_b")
KERNEL_PATTERN = r"^.*lora.*$"  # the full names of these variables


class _AdaptedLayer(base_layer.BaseLayer):
    """What the adapted layers share: the narrow kernels, and what they add to a product.

    A subclass has one of Praxis' layers with a kernel w as its first base.

    Attributes:
      rank: The rank of the adapter.
    """

    rank: int = 0

    def _create_adapters(self, part_dims: int = 0) -> None:
        """Create the narrow kernels beside w.

        lora_b starts as zero, so the adapter changes nothing at first.

        Args:
          part_dims: How many of the first dimensions of w are parts, such as q, k and v.
        """
        hparams = self._weight_hparams["w"]
        parts, (features, *others) = hparams.shape[:part_dims], hparams.shape[part_dims:]
        zero = base_layer.WeightInit.Constant(0.0)
        for name, size, init in (
            ("lora_a", features, hparams.init),
            ("lora_b", math.prod(others), zero),
        ):
            self.create_variable(
                name,
                base_layer.WeightHParams(
                    shape=[*parts, size, self.rank],
                    init=init,
                    mesh_shape=self.mesh_shape,
                    tensor_split_dims_mapping=[None] * (part_dims + 2),
                ),
            )

    def _apply_adapters(self, x: Any, *, transposed: bool = False) -> Any:
        """Return what the adapter adds to a product.

        Args:
          x: Activations [..., features], or [..., outputs] with `transposed`.
          transposed: Whether to return (x b) a' instead of (x a) b'.

        Returns:
          [..., outputs], or [..., features] with `transposed`. The dimension of parts is in front.
        """
        first, second = self.theta.lora_a, self.theta.lora_b
        if transposed:
            first, second = second, first
        x = x.astype(first.dtype)
        if first.ndim == 2:
            return jnp.einsum("...r,or->...o", jnp.einsum("...i,ir->...r", x, first), second)
        return jnp.einsum("k...r,kor->k...o", jnp.einsum("...i,kir->k...r", x, first), second)


class Linear(linears.Linear, _AdaptedLayer):
    """Praxis' Linear with an adapter."""

    def setup(self) -> None:
        """Create the variables."""
        super().setup()
        self._create_adapters()

    def __call__(self, inputs: Any) -> Any:
        """Return the product of [..., features] as [..., outputs]."""
        return super().__call__(inputs) + self._apply_adapters(inputs)


class AttentionProjection(attentions.AttentionProjection, _AdaptedLayer):
    """Praxis' AttentionProjection, into heads or out of heads, with an adapter."""

    def setup(self) -> None:
        """Create the variables.

        Raises:
          NotImplementedError: The kernel is [heads, depth, features].
        """
        super().setup()
        if self.use_nhd_shape and self.is_output_projection and not self.attention_combine_dims:
            raise NotImplementedError("a kernel of [heads, depth, features]")
        self._create_adapters()

    def __call__(self, inputs: Any) -> Any:
        """Return the product of [..., features] as [..., heads, depth], or the other way round."""
        product = super().__call__(inputs)
        if self.is_output_projection:
            flat = inputs.reshape(*inputs.shape[:-2], -1)
            return product + self._apply_adapters(flat, transposed=not self.use_nhd_shape)
        return product + self._apply_adapters(inputs).reshape(product.shape)


class OneHeadedAttentionProjection(
    multi_query_attention.OneHeadedAttentionProjection, _AdaptedLayer
):
    """Praxis' OneHeadedAttentionProjection with an adapter.

    It projects to keys or values that all heads of queries share.
    """

    def setup(self) -> None:
        """Create the variables."""
        super().setup()
        self._create_adapters()

    def __call__(self, inputs: Any) -> Any:
        """Return the product of [..., features] as [..., depth]."""
        return super().__call__(inputs) + self._apply_adapters(inputs)


class CombinedQKVProjectionLayer(attentions.CombinedQKVProjectionLayer, _AdaptedLayer):
    """Praxis' CombinedQKVProjectionLayer with an adapter for each of q, k and v.

    The features need not be heads times depth.
    """

    def setup(self) -> None:
        """Create the variables."""
        super().setup()
        self._create_adapters(part_dims=1)

    def __call__(self, inputs: Any) -> tuple[Any, ...]:
        """Return queries, keys and values, [..., heads, depth] each, of [..., features]."""
        products = super().__call__(inputs)
        return tuple(
            product + addition.reshape(product.shape)
            for product, addition in zip(products, self._apply_adapters(inputs), strict=True)
        )


# The class with an adapter for each class of Praxis.
ADAPTED_CLASSES = {
    linears.Linear: Linear,
    attentions.AttentionProjection: AttentionProjection,
    multi_query_attention.OneHeadedAttentionProjection: OneHeadedAttentionProjection,
    attentions.CombinedQKVProjectionLayer: CombinedQKVProjectionLayer,
}


def merge(params: Any) -> Any:
    """Return parameters whose adapters are merged into the kernels.

    Each w, lora_a and lora_b become one w, in the type of w. Layers that repeat may be stacked.

    Args:
      params: A tree of parameters, which is not changed.
    """
    if not isinstance(params, dict):
        return params
    merged = {name: merge(value) for name, value in params.items() if name not in KERNEL_NAMES}
    if all(name in params for name in KERNEL_NAMES):
        first, second = (jnp.asarray(params[name], jnp.float32) for name in KERNEL_NAMES)
        kernel = params["w"]
        addition = (first @ jnp.swapaxes(second, -1, -2)).reshape(kernel.shape)
        merged["w"] = (jnp.asarray(kernel, jnp.float32) + addition).astype(kernel.dtype)
    return type(params)(merged)
