"""Cross entropy over a large vocabulary, a slice of it at a time, so that no [tokens, vocabulary]
array is ever whole.

For logits z = h W with hidden h [tokens, features] and W [features, vocabulary], the loss of a
token with target t is
    logsumexp(z) - c z_t - l sum_{v != t} z_v - n + z_loss logsumexp(z)^2
where c = 1 - label_smoothing, l = label_smoothing / (vocabulary - 1) and n, the entropy of the
smoothed target, makes the least loss zero.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class LossSettings:
    """What the loss is made of.

    `chunks` slices of the vocabulary, products in `dtype` and accumulated in float32, logits times
    `scale`.
    """

    vocabulary: int
    chunks: int
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    scale: float = 1.0
    dtype: Any = jnp.float32

    @property
    def low(self) -> float:
        """What smoothing gives to each wrong token."""
        return self.label_smoothing / (self.vocabulary - 1)

    @property
    def entropy(self) -> float:
        high = 1.0 - self.label_smoothing
        return -(
            high * math.log(high) + (self.vocabulary - 1) * self.low * math.log(self.low + 1e-20)
        )

    @property
    def width(self) -> int:
        return -(-self.vocabulary // self.chunks)


def _slice_kernel(kernel: Any, terms: LossSettings) -> tuple[Any, Any]:
    """Return the kernel as [chunks, features, width], zero beyond the vocabulary, and the slices'
    numbers.

    Slice n holds every `chunks`-th token from n on: where tensor parallelism splits the vocabulary,
    each device has its share of each slice.
    """
    padded = jnp.pad(
        jnp.asarray(kernel, terms.dtype),
        ((0, 0), (0, terms.width * terms.chunks - terms.vocabulary)),
    )
    return padded.reshape(kernel.shape[0], terms.width, terms.chunks).transpose(
        2, 0, 1
    ), jnp.arange(terms.chunks)


def _compute_logits(hidden: Any, part: Any, number: Any, terms: LossSettings) -> tuple[Any, Any]:
    """Logits [tokens, width] of a slice in float32, and the tokens that its columns stand for,
    int32 [width]; beyond the vocabulary is nothing.
    """
    logits = (
        jnp.dot(jnp.asarray(hidden, terms.dtype), part, preferred_element_type=jnp.float32)
        * terms.scale
    )
    return logits, jnp.arange(terms.width) * terms.chunks + number


def _compute_statistics(
    hidden: Any, kernel: Any, targets: Any, terms: LossSettings
) -> tuple[Any, Any, Any, Any]:
    """For each token: logsumexp, the target's logit, the sum of all logits, and the likeliest
    token.
    """

    def body(carry: Any, inputs: Any) -> tuple[Any, None]:
        highest, total, hit, everything, best = carry
        part, number = inputs
        logits, words = _compute_logits(hidden, part, number, terms)
        real = words < terms.vocabulary
        masked = jnp.where(real, logits, -jnp.inf)
        here = jnp.max(masked, axis=-1)
        found = words[jnp.argmax(masked, axis=-1)]
        best = jnp.where(
            here > highest, found, jnp.where(here == highest, jnp.minimum(best, found), best)
        )
        top = jnp.maximum(highest, here)
        total = total * jnp.exp(highest - top) + jnp.sum(jnp.exp(masked - top[:, None]), axis=-1)
        hit = hit + jnp.sum(jnp.where(words[None, :] == targets[:, None], logits, 0.0), axis=-1)
        return (
            top,
            total,
            hit,
            everything + jnp.sum(jnp.where(real, logits, 0.0), axis=-1),
            best,
        ), None

    zeros = jnp.zeros(targets.shape, jnp.float32)
    start = (
        jnp.full(targets.shape, -jnp.inf, jnp.float32),
        zeros,
        zeros,
        zeros,
        jnp.zeros(targets.shape, jnp.int32),
    )
    (highest, total, hit, everything, best), _ = jax.lax.scan(
        body, start, _slice_kernel(kernel, terms)
    )
    return highest + jnp.log(total), hit, everything, best


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def chunked_cross_entropy(
    hidden: Any, kernel: Any, targets: Any, terms: LossSettings
) -> tuple[Any, Any, Any]:
    """Cross entropy of each token.

    Args:
      hidden: [tokens, features].
      kernel: [features, vocabulary].
      targets: int32 [tokens].
      terms: see there.

    Returns:
      loss [tokens] in float32, z-loss included; its z-loss part [tokens]; the likeliest token,
      int32 [tokens], which has no gradient.
    """
    found: tuple[Any, Any, Any] = _compute_forward(hidden, kernel, targets, terms)[0]
    return found


def _compute_forward(
    hidden: Any, kernel: Any, targets: Any, terms: LossSettings
) -> tuple[Any, Any]:
    total, hit, everything, best = _compute_statistics(hidden, kernel, targets, terms)
    high = 1.0 - terms.label_smoothing
    entropy = terms.entropy if terms.label_smoothing else 0.0
    loss = total - high * hit - terms.low * (everything - hit) - entropy
    square = terms.z_loss * jnp.square(total)
    return (loss + square, square, best), (hidden, kernel, targets, total)


def _compute_backward(terms: LossSettings, kept: Any, given: Any) -> tuple[Any, Any, None]:
    hidden, kernel, targets, total = kept
    of_loss, of_square, _ = given
    # d loss / d logit = softmax * (1 + 2 z_loss logsumexp) - smoothed target; the reported z-loss
    # may be differentiated on its own.
    by_softmax = of_loss + (of_loss + of_square) * 2.0 * terms.z_loss * total
    high = 1.0 - terms.label_smoothing

    def body(carry: Any, inputs: Any) -> tuple[Any, Any]:
        part, number = inputs
        logits, words = _compute_logits(hidden, part, number, terms)
        hit = words[None, :] == targets[:, None]
        gradient = by_softmax[:, None] * jnp.exp(logits - total[:, None]) - of_loss[
            :, None
        ] * jnp.where(hit, high, terms.low)
        gradient = jnp.asarray(
            jnp.where(words < terms.vocabulary, gradient, 0.0) * terms.scale, terms.dtype
        )
        into_hidden = jnp.dot(gradient, part.T, preferred_element_type=jnp.float32)
        into_part = jnp.dot(
            jnp.asarray(hidden, terms.dtype).T, gradient, preferred_element_type=jnp.float32
        )
        return carry + into_hidden, into_part

    of_hidden, parts = jax.lax.scan(
        body, jnp.zeros(hidden.shape, jnp.float32), _slice_kernel(kernel, terms)
    )
    of_kernel = parts.transpose(1, 2, 0).reshape(hidden.shape[1], -1)[:, : terms.vocabulary]
    return of_hidden.astype(hidden.dtype), of_kernel.astype(kernel.dtype), None


chunked_cross_entropy.defvjp(_compute_forward, _compute_backward)
