"""A vocabulary that is no multiple of 128 is one while it is multiplied by; what is stored has the vocabulary's own size.

Tensor cores want the sizes of a product in multiples of 8, and a tensor-parallel mesh wants one that it divides: 50,257 is neither, 50,304 is.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import numpy as jnp
from praxis import base_layer, layers, pax_fiddle

MULTIPLE = 128


def padded(size: int) -> int:
    """Return the next multiple of 128."""
    return -(-size // MULTIPLE) * MULTIPLE


class Logits(layers.Linear):
    """A product with a [features, vocabulary] kernel that computes a padded vocabulary and gives back the vocabulary's own."""

    def __call__(self, inputs: Any) -> Any:
        """Return the product.

        Args:
          inputs: [..., features].

        Returns:
          [..., vocabulary].
        """
        size = self.output_dims
        kernel = jnp.pad(self.theta.w, ((0, 0), (0, padded(size) - size)))
        made = self.einsum("...y,yz->...z", inputs, kernel)
        split = self.activation_split_dims_mapping.out
        if split is not None and made.ndim == len(split) - 1:  # a step of decoding has no length
            split = [split[0], *split[2:]]
        return base_layer.maybe_shard(made, split, self.mesh_axis_names)[..., :size]


class SharedEmbeddingSoftmax(layers.SharedEmbeddingSoftmax):
    """Embedding and softmax with one kernel, over a padded vocabulary; parameters and results are its base class's."""

    def emb_lookup(self, ids: Any) -> Any:
        """Return rows of the embedding.

        Args:
          ids: integers [...].

        Returns:
          [..., features].
        """
        if self.lookup_style != "matmul":
            return super().emb_lookup(ids)
        size = padded(self.num_classes)
        table = jnp.pad(self.logits_ffn.linear.theta.w.T, ((0, size - self.num_classes), (0, 0)))
        made = self.einsum("...y,yz->...z", jax.nn.one_hot(ids, size, dtype=self.fprop_dtype), table)
        if self.scale_sqrt_depth:
            made *= self.input_dims**0.5
        return base_layer.maybe_shard(made, self.activation_split_dims_mapping.emb_out_split_dims_mapping, self.mesh_axis_names)


def over_padded(softmax: Any) -> Any:
    """Return the configuration of a shared embedding softmax, over a padded vocabulary where its own is no multiple of 128."""
    made = pax_fiddle.Config(SharedEmbeddingSoftmax)
    made.copy_fields_from(softmax)
    linear = pax_fiddle.Config(Logits)
    linear.copy_fields_from(made.feed_forward_tpl.linear_tpl)
    made.feed_forward_tpl.linear_tpl = linear
    return made
