"""A vocabulary that is no multiple of 128 is one in products and in the loss; what is stored and what is returned has its own size.

Tensor cores want the sizes of a product in multiples of 8, and a tensor-parallel mesh wants one that it divides: 50,257 is neither, 50,304 is.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn
from jax import numpy as jnp
from praxis import base_layer, layers, pax_fiddle

MULTIPLE = 128
_NEVER = -1e30  # the logit of an id that is none


def padded(size: int) -> int:
    """Return the next multiple of 128."""
    return -(-size // MULTIPLE) * MULTIPLE


class Logits(layers.Linear):
    """A product with a [features, vocabulary] kernel whose result is padded: [..., padded vocabulary] of [..., features]."""

    def __call__(self, inputs: Any) -> Any:
        size = self.output_dims
        kernel = jnp.pad(self.theta.w, ((0, 0), (0, padded(size) - size)))
        made = self.einsum("...y,yz->...z", inputs, kernel)
        split = self.activation_split_dims_mapping.out
        if split is not None and made.ndim == len(split) - 1:  # a step of decoding has no length
            split = [split[0], *split[2:]]
        return base_layer.maybe_shard(made, split, self.mesh_axis_names)


class SharedEmbeddingSoftmax(layers.SharedEmbeddingSoftmax):
    """Embedding and softmax with one kernel, over a padded vocabulary; parameters and results are its base class's."""

    def get_logits(self, inputs: Any, input_ids: Any = None) -> Any:
        """Return logits [..., vocabulary] of features [..., features]."""
        return super().get_logits(inputs, input_ids)[..., : self.num_classes]

    @nn.nowrap
    def _compute_xent(self, inputs: Any, class_ids: Any = None, class_probabilities: Any = None) -> tuple[Any, Any, Any, Any]:
        """Return (cross entropy [...], best id [...], logits and log probabilities [..., vocabulary]).

        The loss stays at the padded size: cutting the logits for it would write them once more, 1.2 GB for 6 rows of 2,048 tokens.
        """
        if class_ids is None or self.label_smoothing_prob or self.bi_tempered_loss_tpl:
            found: tuple[Any, Any, Any, Any] = super()._compute_xent(inputs, class_ids, class_probabilities)
            return found
        size = self.num_classes
        logits = super().get_logits(inputs).astype(jnp.float32)
        logits = jnp.where(jnp.arange(logits.shape[-1]) < size, logits, _NEVER)
        log_probs = jax.nn.log_softmax(logits)
        label = jax.nn.one_hot(class_ids[..., 0], logits.shape[-1], dtype=jnp.float32)
        best = jax.lax.stop_gradient(jnp.argmax(logits, axis=-1))
        return -jnp.sum(log_probs * label, axis=-1), best, logits[..., :size], log_probs[..., :size]

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
    """Return the configuration of a shared embedding softmax without biases, over a padded vocabulary."""
    made = pax_fiddle.Config(SharedEmbeddingSoftmax)
    made.copy_fields_from(softmax)
    linear = pax_fiddle.Config(Logits)
    linear.copy_fields_from(made.feed_forward_tpl.linear_tpl)
    made.feed_forward_tpl.linear_tpl = linear
    return made
