"""Cross entropy over a large vocabulary, one slice of the vocabulary at a time, for T5X's models.

No array of [tokens, vocabulary] is ever in memory.

The logits are z = h W, for hidden vectors h [tokens, features] and a kernel W [features,
vocabulary]. The loss of a token with target t is that of T5X:
    logsumexp(z) - c z_t - l sum_{v != t} z_v - n + z_loss logsumexp(z)^2
Here c = 1 - label_smoothing and l = label_smoothing / (vocabulary - 1). The constant n, the entropy
of the smoothed target, makes the least possible loss zero.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rosetta.nn import logits


@dataclass(frozen=True)
class LossSettings:
    """The settings of `chunked_cross_entropy`.

    Attributes:
        vocabulary: The number of token ids.
        chunks: The number of slices of the vocabulary.
        label_smoothing: The share of the target's probability that goes to all other tokens.
        z_loss: The factor of logsumexp(z)^2.
        scale: The factor of the logits.
        dtype: The type of the products' factors. Sums are float32.
    """

    vocabulary: int
    chunks: int
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    scale: float = 1.0
    dtype: Any = jnp.float32

    @property
    def low(self) -> float:
        """The probability that smoothing gives to each token that is not the target."""
        return self.label_smoothing / (self.vocabulary - 1)

    @property
    def entropy(self) -> float:
        """The entropy of the smoothed target, in nats."""
        high = 1.0 - self.label_smoothing
        return -(
            high * math.log(high) + (self.vocabulary - 1) * self.low * math.log(self.low + 1e-20)
        )

    @property
    def width(self) -> int:
        """The number of tokens in a slice."""
        return -(-self.vocabulary // self.chunks)


class _Statistics(NamedTuple):
    """Sums over the vocabulary, [tokens] each.

    Attributes:
        logsumexp: float32.
        target_logit: float32, the logit of the target.
        logit_sum: float32, the sum of all logits.
        best: int32, the token with the largest logit; the smallest id of several.
    """

    logsumexp: Any
    target_logit: Any
    logit_sum: Any
    best: Any


def _slice_kernel(kernel: Any, settings: LossSettings) -> tuple[Any, Any]:
    """Cut the kernel into slices.

    Slice n has each `chunks`-th token from n on. If tensor parallelism splits the vocabulary, each
    device therefore has its share of each slice.

    Returns:
        The slices [chunks, features, width], zero beyond the vocabulary, and their numbers
        [chunks].
    """
    padding = settings.width * settings.chunks - settings.vocabulary
    padded = jnp.pad(jnp.asarray(kernel, settings.dtype), ((0, 0), (0, padding)))
    slices = padded.reshape(kernel.shape[0], settings.width, settings.chunks).transpose(2, 0, 1)
    return slices, jnp.arange(settings.chunks)


def _compute_logits(
    hidden: Any, kernel_slice: Any, number: Any, settings: LossSettings
) -> tuple[Any, Any]:
    """Return the logits of a slice, float32 [tokens, width], and its token ids, int32 [width].

    Ids beyond the vocabulary stand for no token.
    """
    product = logits.multiply_factors(hidden, kernel_slice, 1, settings.dtype)
    return product * settings.scale, jnp.arange(settings.width) * settings.chunks + number


def _compute_statistics(
    hidden: Any, kernel: Any, targets: Any, settings: LossSettings
) -> _Statistics:
    """Return the sums over all slices of the vocabulary.

    The logsumexp is a running one: the largest logit so far, and a sum of exponentials relative to
    it.
    """

    def add_slice(carry: Any, inputs: Any) -> tuple[Any, None]:
        largest, exp_sum, target_logit, logit_sum, best = carry
        kernel_slice, number = inputs
        slice_logits, ids = _compute_logits(hidden, kernel_slice, number, settings)
        is_token = ids < settings.vocabulary
        masked_logits = jnp.where(is_token, slice_logits, -jnp.inf)
        slice_largest = jnp.max(masked_logits, axis=-1)
        slice_best = ids[jnp.argmax(masked_logits, axis=-1)]
        best = jnp.where(
            slice_largest > largest,
            slice_best,
            jnp.where(slice_largest == largest, jnp.minimum(best, slice_best), best),
        )
        new_largest = jnp.maximum(largest, slice_largest)
        exp_sum = exp_sum * jnp.exp(largest - new_largest) + jnp.sum(
            jnp.exp(masked_logits - new_largest[:, None]), axis=-1
        )
        is_target = ids[None, :] == targets[:, None]
        target_logit = target_logit + jnp.sum(jnp.where(is_target, slice_logits, 0.0), axis=-1)
        logit_sum = logit_sum + jnp.sum(jnp.where(is_token, slice_logits, 0.0), axis=-1)
        return (new_largest, exp_sum, target_logit, logit_sum, best), None

    zeros = jnp.zeros(targets.shape, jnp.float32)
    start = (
        jnp.full(targets.shape, -jnp.inf, jnp.float32),
        zeros,
        zeros,
        zeros,
        jnp.zeros(targets.shape, jnp.int32),
    )
    (largest, exp_sum, target_logit, logit_sum, best), _ = jax.lax.scan(
        add_slice, start, _slice_kernel(kernel, settings)
    )
    return _Statistics(largest + jnp.log(exp_sum), target_logit, logit_sum, best)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def chunked_cross_entropy(
    hidden: Any, kernel: Any, targets: Any, settings: LossSettings
) -> tuple[Any, Any, Any]:
    """Compute the cross entropy of each token; the formula is in the module's docstring.

    Args:
        hidden: [tokens, features].
        kernel: [features, vocabulary].
        targets: int32 [tokens].
        settings: The settings of the loss.

    Returns:
        The loss with the z-loss, float32 [tokens]; the z-loss alone, float32 [tokens]; and the
        token with the largest logit, int32 [tokens], which has no gradient.
    """
    outputs: tuple[Any, Any, Any] = _compute_forward(hidden, kernel, targets, settings)[0]
    return outputs


def _compute_forward(
    hidden: Any, kernel: Any, targets: Any, settings: LossSettings
) -> tuple[Any, Any]:
    """Return the outputs, and (hidden, kernel, targets, logsumexp) for the backward pass."""
    statistics = _compute_statistics(hidden, kernel, targets, settings)
    high = 1.0 - settings.label_smoothing
    entropy = settings.entropy if settings.label_smoothing else 0.0
    loss = (
        statistics.logsumexp
        - high * statistics.target_logit
        - settings.low * (statistics.logit_sum - statistics.target_logit)
        - entropy
    )
    z_loss = settings.z_loss * jnp.square(statistics.logsumexp)
    residuals = (hidden, kernel, targets, statistics.logsumexp)
    return (loss + z_loss, z_loss, statistics.best), residuals


def _compute_backward(
    settings: LossSettings, residuals: Any, output_gradients: Any
) -> tuple[Any, Any, None]:
    """Return the gradients of `hidden` and `kernel`, in their types."""
    hidden, kernel, targets, logsumexp = residuals
    loss_gradient, z_loss_gradient, _ = output_gradients
    # d loss / d logit = softmax * (1 + 2 z_loss logsumexp) - smoothed target. The z-loss is also an
    # output of its own, with a gradient of its own.
    softmax_factor = (
        loss_gradient + (loss_gradient + z_loss_gradient) * 2.0 * settings.z_loss * logsumexp
    )
    high = 1.0 - settings.label_smoothing

    def add_slice(hidden_gradient: Any, inputs: Any) -> tuple[Any, Any]:
        kernel_slice, number = inputs
        slice_logits, ids = _compute_logits(hidden, kernel_slice, number, settings)
        is_target = ids[None, :] == targets[:, None]
        logit_gradient = softmax_factor[:, None] * jnp.exp(
            slice_logits - logsumexp[:, None]
        ) - loss_gradient[:, None] * jnp.where(is_target, high, settings.low)
        logit_gradient = jnp.where(ids < settings.vocabulary, logit_gradient, 0.0) * settings.scale
        hidden_part = logits.multiply_factors(logit_gradient, kernel_slice.T, 1, settings.dtype)
        kernel_part = logits.multiply_factors(hidden.T, logit_gradient, 1, settings.dtype)
        return hidden_gradient + hidden_part, kernel_part

    hidden_gradient, kernel_parts = jax.lax.scan(
        add_slice, jnp.zeros(hidden.shape, jnp.float32), _slice_kernel(kernel, settings)
    )
    kernel_gradient = kernel_parts.transpose(1, 2, 0).reshape(hidden.shape[1], -1)
    kernel_gradient = kernel_gradient[:, : settings.vocabulary]
    return hidden_gradient.astype(hidden.dtype), kernel_gradient.astype(kernel.dtype), None


chunked_cross_entropy.defvjp(_compute_forward, _compute_backward)
