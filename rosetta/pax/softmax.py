"""A vocabulary that is no multiple of 128 is one in products and in the loss; what is stored and
what is returned has its own size.

Tensor cores want the sizes of a product in multiples of 8, and a tensor-parallel mesh wants one
that it divides: 50,257 is neither, 50,304 is.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn
from jax import numpy as jnp
from praxis import layers, pax_fiddle
from praxis.layers import base_ops

MULTIPLE = 128
_PADDING_LOGIT = -1e30  # the logit of an id that is none


def compute_padded_size(size: int) -> int:
    """Return the next multiple of 128."""
    return -(-size // MULTIPLE) * MULTIPLE


class PaddedEinsum(base_ops.EinsumOp):
    """An einsum of activations and a kernel, the vocabulary's dimension of the kernel filled up
    with zeros.

    Attributes:
      summed: the vocabulary is the kernel's first dimension, over which the product sums, and the
        activations' last; else it is the result's last.
    """

    summed: bool = False

    def __call__(self, equation: str, *args: Any) -> Any:
        x, kernel = args
        axis = 0 if self.summed else kernel.ndim - 1
        kernel = _pad_axis(kernel, axis)
        return super().__call__(equation, _pad_axis(x, x.ndim - 1) if self.summed else x, kernel)


def _pad_axis(array: Any, axis: int) -> Any:
    size = array.shape[axis]
    return jnp.pad(
        array,
        [
            (0, compute_padded_size(size) - size if each == axis else 0)
            for each in range(array.ndim)
        ],
    )


class SharedEmbeddingSoftmax(layers.SharedEmbeddingSoftmax):
    """Embedding and softmax with one kernel, over a padded vocabulary; parameters and results are
    its base class's.
    """

    def get_logits(self, inputs: Any, input_ids: Any = None) -> Any:
        """Return logits [..., vocabulary] of features [..., features]."""
        return super().get_logits(inputs, input_ids)[..., : self.num_classes]

    @nn.nowrap
    def _compute_xent(
        self, inputs: Any, class_ids: Any = None, class_probabilities: Any = None
    ) -> tuple[Any, Any, Any, Any]:
        """Return (cross entropy [...], best id [...], logits and log probabilities [...,
        vocabulary]).

        The loss stays at the padded size: cutting the logits for it would write them once more, 1.2
        GB for 6 rows of 2,048 tokens.
        """
        if class_ids is None or self.label_smoothing_prob or self.bi_tempered_loss_tpl:
            found: tuple[Any, Any, Any, Any] = super()._compute_xent(
                inputs, class_ids, class_probabilities
            )
            return found
        known = jnp.arange(compute_padded_size(self.num_classes)) < self.num_classes
        logits = jnp.where(known, super().get_logits(inputs).astype(jnp.float32), _PADDING_LOGIT)
        best = jax.lax.stop_gradient(jnp.argmax(logits, axis=-1))
        log_probs = jax.nn.log_softmax(logits)
        loss = -jnp.sum(
            log_probs * jax.nn.one_hot(class_ids[..., 0], known.size, dtype=jnp.float32), axis=-1
        )
        return loss, best, logits[..., : self.num_classes], log_probs[..., : self.num_classes]


def pad_vocabulary(softmax: Any) -> Any:
    """Return the configuration of a shared embedding softmax without biases, over a padded
    vocabulary.
    """
    made = pax_fiddle.Config(SharedEmbeddingSoftmax)
    made.copy_fields_from(softmax)
    made.einsum_tpl = pax_fiddle.Config(
        PaddedEinsum, summed=True
    )  # of the embedding, by one-hot rows
    made.feed_forward_tpl.linear_tpl.einsum_tpl = pax_fiddle.Config(PaddedEinsum)
    return made
