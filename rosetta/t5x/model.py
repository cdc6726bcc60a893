"""Upstream's models around rosetta's networks: FP8 state in the train state, and the loss over
slices of the vocabulary.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import clu.metrics
import flax
import jax.numpy as jnp
from t5x import losses, models

from rosetta.nn import fp8, loss
from rosetta.t5x.network import compute_logits_scale

if TYPE_CHECKING:
    from collections.abc import Mapping

SEGMENT_SUFFIX = (
    "_segment_ids"  # ends the names of what says which example of a packed row a token is of
)


class _BoundModule:
    """A module whose every `apply` is also given these variables and settings, for code of
    upstream's that passes the parameters alone.
    """

    def __init__(self, module: Any, state: Mapping[str, Any], **how: Any) -> None:
        self._module, self._state, self._how = module, state, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        return self._module.apply({**self._state, **variables}, *args, **self._how, **kwargs)


def _find_segments(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return for each feature which example its places belong to, [batch, length], 0 at padding: of
    packed rows by number, else all to one.
    """
    packed = [name for name in batch if name.endswith(SEGMENT_SUFFIX)]
    if packed:
        return {name.removesuffix(SEGMENT_SUFFIX): batch[name] for name in packed}
    return {
        name: batch[name] != 0
        for name in ("encoder_input_tokens", "decoder_target_tokens")
        if name in batch
    }


class _SharedModel(models.BaseTransformerModel):
    """What both kinds of model share.

    `flax_mutables` everywhere is the train state's: empty, or the FP8 state.
    """

    @property
    def config(self) -> Any:
        return self.module.config

    def get_initial_variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return what upstream's returns, and with FP8 its state and the (empty) names of its
        axes.
        """
        variables = super().get_initial_variables(*args, **kwargs)
        if fp8.COLLECTION not in variables:
            return variables
        return flax.core.freeze(
            {
                **variables,
                f"{fp8.COLLECTION}_axes": fp8.make_axes_metadata(variables[fp8.COLLECTION]),
            }
        )

    def loss_fn(self, params: Any, batch: Any, dropout_rng: Any, flax_mutables: Any = None) -> Any:
        """Return the batch's loss (a sum over tokens, in float32) and its metrics; dropout_rng is
        None for evaluation.
        """
        bound = self._bound(flax_mutables)
        return (
            bound._chunked_loss(params, batch, dropout_rng)  # noqa: SLF001
            if self.config.loss_chunks
            else super(_SharedModel, bound).loss_fn(params, batch, dropout_rng)
        )

    def eval_fn(self, params: Any, batch: Any, flax_mutables: Any = None) -> Any:
        return self.loss_fn(params, batch, None, flax_mutables)

    def predict_batch(
        self, params: Any, batch: Any, rng: Any = None, flax_mutables: Any = None
    ) -> Any:
        return self.predict_batch_with_aux(params, batch, rng=rng, flax_mutables=flax_mutables)[0]

    def score_batch(
        self, params: Any, batch: Any, return_intermediates: bool = False, flax_mutables: Any = None
    ) -> Any:
        return super(_SharedModel, self._bound(flax_mutables)).score_batch(
            params, batch, return_intermediates
        )

    def _bound(self, flax_mutables: Any) -> Any:
        """Return this model, or one whose module sees the FP8 state."""
        if not flax_mutables or self.config.fp8 == "off":
            return self
        bound = copy.copy(self)
        bound.module = _BoundModule(self.module, flax_mutables)
        return bound

    def _chunked_loss(self, params: Any, batch: Any, dropout_rng: Any) -> Any:
        """As upstream's loss_fn, without ever holding the logits of more than a slice of the
        vocabulary.
        """
        targets = batch["decoder_target_tokens"]
        hidden, kernel = self._hidden(params, batch, dropout_rng)
        config = self.config
        terms = loss.LossSettings(
            config.vocab_size,
            config.loss_chunks,
            self._label_smoothing,
            self._z_loss,
            compute_logits_scale(config),
            jnp.dtype(config.logits_dtype),
        )
        each, square, best = loss.chunked_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]), kernel, targets.reshape(-1), terms
        )
        factor, weights = losses.get_loss_normalizing_factor_and_weights(
            self._loss_normalizing_factor, batch
        )
        flat = (
            jnp.ones(each.shape, jnp.float32)
            if weights is None
            else weights.reshape(-1).astype(jnp.float32)
        )
        total, of_square = jnp.sum(each * flat), jnp.sum(square * flat)
        if factor is not None:
            total, of_square = total / factor, of_square / factor
        # The logits' only metric is the accuracy: one class is enough for the others.
        nothing = jnp.zeros((*targets.shape, 1), jnp.float32)
        metrics = dict(
            self._compute_metrics(
                logits=nothing,
                targets=targets,
                mask=weights,
                loss=total,
                z_loss=of_square,
                segment_ids=_find_segments(batch),
            )
        )
        right = jnp.sum((best == targets.reshape(-1)) * flat)
        metrics["accuracy"] = clu.metrics.Accuracy(
            total=right,
            count=jnp.sum(flat) if weights is not None else jnp.float32(math.prod(targets.shape)),
        )
        return total, metrics

    def _hidden(self, params: Any, batch: Any, dropout_rng: Any) -> Any:
        """Return the hidden vectors [batch, length, features] and the kernel [features, vocabulary]
        that logits are made from.
        """
        bound = copy.copy(self)
        bound.module = _BoundModule(self.module, {}, hidden_only=True)
        return bound._compute_logits(params, batch, dropout_rng)  # noqa: SLF001


class EncoderDecoderModel(_SharedModel, models.EncoderDecoderModel):
    """Upstream's class of this name, around rosetta's Transformer."""

    def predict_batch_with_aux(
        self,
        params: Any,
        batch: Any,
        rng: Any = None,
        decoder_params: Any = None,
        return_all_decodes: Any = None,
        num_decodes: Any = None,
        prompt_with_targets: bool = False,
        flax_mutables: Any = None,
    ) -> Any:
        return super(EncoderDecoderModel, self._bound(flax_mutables)).predict_batch_with_aux(
            params,
            batch,
            rng=rng,
            decoder_params=decoder_params,
            return_all_decodes=return_all_decodes,
            num_decodes=num_decodes,
            prompt_with_targets=prompt_with_targets,
        )


class DecoderOnlyModel(_SharedModel, models.DecoderOnlyModel):
    """Upstream's class of this name, around rosetta's DecoderOnly."""

    def predict_batch_with_aux(
        self,
        params: Any,
        batch: Any,
        rng: Any = None,
        return_all_decodes: bool = False,
        num_decodes: int = 1,
        decoder_params: Any = None,
        flax_mutables: Any = None,
    ) -> Any:
        return super(DecoderOnlyModel, self._bound(flax_mutables)).predict_batch_with_aux(
            params,
            batch,
            rng=rng,
            return_all_decodes=return_all_decodes,
            num_decodes=num_decodes,
            decoder_params=decoder_params,
        )
