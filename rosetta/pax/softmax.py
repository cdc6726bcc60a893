"""A softmax whose vocabulary is padded to a multiple of 128 in products and in the loss.

Parameters and results keep the size of the vocabulary. Tensor cores need sizes in multiples of 8,
and a tensor-parallel mesh needs a size that it divides: 50,257 has neither property, 50,304 has
both.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn
from jax import numpy as jnp
from praxis import layers, pax_fiddle
from praxis.layers import base_ops

MULTIPLE = 128
_PADDING_LOGIT = -1e30  # the logit of an id that is only padding


def compute_padded_size(size: int) -> int:
    """Return the size of a vocabulary rounded up to a multiple of 128."""
    return -(-size // MULTIPLE) * MULTIPLE


class PaddedEinsum(base_ops.EinsumOp):
    """An einsum of activations and a kernel whose vocabulary dimension is padded with zeros.

    Attributes:
      summed: Whether the product sums over the vocabulary, which is then the first dimension of
        the kernel and the last one of the activations. If not, the vocabulary is the last
        dimension of the kernel and of the result.
    """

    summed: bool = False

    def __call__(self, equation: str, *args: Any) -> Any:
        """Return einsum(equation, activations, kernel), with a padded vocabulary in the result."""
        x, kernel = args
        kernel = _pad_axis(kernel, 0 if self.summed else kernel.ndim - 1)
        if self.summed:
            x = _pad_axis(x, x.ndim - 1)
        return super().__call__(equation, x, kernel)


def _pad_axis(array: Any, axis: int) -> Any:
    """Return an array with an axis padded with zeros to a multiple of 128."""
    widths = [(0, 0)] * array.ndim
    size = array.shape[axis]
    widths[axis] = (0, compute_padded_size(size) - size)
    return jnp.pad(array, widths)


class SharedEmbeddingSoftmax(layers.SharedEmbeddingSoftmax):
    """Praxis' embedding and softmax with one kernel, over a padded vocabulary.

    Parameters and results are those of the base class.
    """

    def get_logits(self, inputs: Any, input_ids: Any = None) -> Any:
        """Return the logits [..., vocabulary] of features [..., features]."""
        return super().get_logits(inputs, input_ids)[..., : self.num_classes]

    @nn.nowrap
    def _compute_xent(
        self, inputs: Any, class_ids: Any = None, class_probabilities: Any = None
    ) -> tuple[Any, Any, Any, Any]:
        """Compute the cross entropy.

        The loss keeps the padded size. Cutting the logits for the loss would write them once more,
        1.2 GB for 6 rows of 2,048 tokens.

        Returns:
          The cross entropy [...], the best id [...], and the logits and log probabilities [...,
          vocabulary].
        """
        if class_ids is None or self.label_smoothing_prob or self.bi_tempered_loss_tpl:
            result: tuple[Any, Any, Any, Any] = super()._compute_xent(
                inputs, class_ids, class_probabilities
            )
            return result
        is_id = jnp.arange(compute_padded_size(self.num_classes)) < self.num_classes
        logits = super().get_logits(inputs).astype(jnp.float32)
        logits = jnp.where(is_id, logits, _PADDING_LOGIT)
        best = jax.lax.stop_gradient(jnp.argmax(logits, axis=-1))
        log_probs = jax.nn.log_softmax(logits)
        one_hot = jax.nn.one_hot(class_ids[..., 0], is_id.size, dtype=jnp.float32)
        loss = -jnp.sum(log_probs * one_hot, axis=-1)
        return loss, best, logits[..., : self.num_classes], log_probs[..., : self.num_classes]


def pad_vocabulary(softmax: Any) -> Any:
    """Return the configuration of a shared embedding softmax over a padded vocabulary.

    Args:
      softmax: The configuration of Praxis' SharedEmbeddingSoftmax, without biases.
    """
    padded = pax_fiddle.Config(SharedEmbeddingSoftmax)
    padded.copy_fields_from(softmax)
    # The embedding is a product with one-hot rows, which sums over the vocabulary.
    padded.einsum_tpl = pax_fiddle.Config(PaddedEinsum, summed=True)
    padded.feed_forward_tpl.linear_tpl.einsum_tpl = pax_fiddle.Config(PaddedEinsum)
    return padded
