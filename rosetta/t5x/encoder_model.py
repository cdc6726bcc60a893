"""A model of an encoder alone, for T5X's trainer: a BERT, or the encoder of a T5.

It predicts hidden tokens and how two texts belong together, or a class or a number of a row. The
gin files name EncoderModel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import clu.metrics
import flax
import jax
import jax.numpy as jnp
from t5x import losses, models

from rosetta.data import masking_tokens
from rosetta.t5x import dataset, encoder_features, encoder_metrics
from rosetta.t5x.model import SharedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLOSED = -1e10  # the logit of class 0, which is padding


class _Losses(NamedTuple):
    """Sums over a batch.

    Attributes:
      loss: the loss, of which the gradient is taken.
      z_loss: the part of the loss that keeps the logits small.
      logits: [batch, length, classes], for the accuracy.
      targets: int32 [batch, length].
      extra: further metrics by their names.
    """

    loss: Any
    z_loss: Any
    logits: Any
    targets: Any
    extra: dict[str, Any]


class _EncoderBase(models.BaseTransformerModel):
    """What T5X asks of a model, for rosetta's EncoderOnly."""

    def get_initial_variables(
        self,
        rng: Any,
        input_shapes: Mapping[str, tuple[int, ...]],
        input_types: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the initial variables of the network."""
        del input_types
        tokens = jnp.ones(input_shapes["encoder_input_tokens"], jnp.int32)
        return flax.core.freeze(self.module.init(rng, tokens, enable_dropout=False))

    def loss_fn(self, params: Any, batch: Any, dropout_rng: Any) -> Any:
        """Return the loss of a batch, a float32 sum, and its metrics."""
        tokens, row = self._apply_network(params, batch, dropout_rng)
        factor, weights = losses.get_loss_normalizing_factor_and_weights(
            self._loss_normalizing_factor, batch
        )
        if self.module.config.head == "regression":
            computed = _compute_square_losses(row, batch["decoder_target_tokens"], weights, factor)
        else:
            computed = self._compute_cross_entropy(tokens, row, batch, weights, factor)
        metrics = dict(
            self._compute_metrics(
                logits=computed.logits,
                targets=computed.targets,
                mask=weights,
                loss=computed.loss,
                z_loss=computed.z_loss,
                segment_ids={
                    "encoder_input_tokens": batch["encoder_input_tokens"] != 0,
                    "decoder_target_tokens": batch["decoder_target_tokens"] != 0,
                },
            )
        )
        if "sentence_loss" in computed.extra:
            # The part of the loss that is added below must not change the loss per token.
            added = computed.extra.pop("added_loss")
            return computed.loss + added, {**metrics, **computed.extra}
        return computed.loss, {**metrics, **computed.extra}

    def _compute_cross_entropy(
        self, tokens: Any, row: Any, batch: Any, weights: Any, factor: Any
    ) -> _Losses:
        """Return the losses of predicted tokens or classes, and of pairs of texts."""
        logits = _open_classes(row)[:, None] if tokens is None else tokens
        targets = batch["decoder_target_tokens"]
        loss, z_loss, _ = losses.compute_weighted_cross_entropy(
            logits,
            targets=targets,
            weights=weights,
            label_smoothing=self._label_smoothing,
            z_loss=self._z_loss,
            loss_normalizing_factor=factor,
        )
        extra = {}
        if tokens is not None and row is not None:
            labels = batch["sentence_labels"][:, 0]
            label_weights = (labels > 0).astype(jnp.float32)
            sentence_loss, _, count = losses.compute_weighted_cross_entropy(
                row, targets=jnp.maximum(labels - 1, 0), weights=label_weights
            )
            # As in BERT, the mean loss of the pairs is added to the mean loss of the tokens.
            share = jnp.sum(weights) / jnp.maximum(count, 1) / (1 if factor is None else factor)
            extra = {
                "added_loss": sentence_loss * share,
                "sentence_loss": clu.metrics.Average(total=sentence_loss, count=count),
                "sentence_accuracy": clu.metrics.Accuracy.from_model_output(
                    logits=row, labels=jnp.maximum(labels - 1, 0), mask=label_weights
                ),
            }
        return _Losses(loss, z_loss, logits, targets, extra)

    def predict_batch_with_aux(self, params: Any, batch: Any, rng: Any = None) -> Any:
        """Return the predictions for a batch, and their figures (see encoder_metrics).

        Predictions are the probabilities of the classes, float32 [batch, classes]; the numbers,
        float32 [batch, 1]; or the likeliest tokens, int32 [batch, length].
        """
        del rng
        tokens, row = self._apply_network(params, batch, None)
        head = self.module.config.head
        targets = batch["decoder_target_tokens"]
        if head == "regression":
            numbers = jax.lax.bitcast_convert_type(targets, jnp.float32)
            return row.astype(jnp.float32), {"target": numbers[:, 0]}
        if head == "classification":
            probabilities = jax.nn.softmax(row.astype(jnp.float32))
            return probabilities, {"target": targets[:, 0] - 1}
        figures = encoder_metrics.measure_targets(tokens, targets, "")
        if row is not None:
            labels = batch["sentence_labels"]
            opened = _open_classes(row)[:, None]
            figures |= encoder_metrics.measure_targets(opened, labels, "sentence_")
        return jnp.argmax(tokens, axis=-1), figures

    def score_batch(self, params: Any, batch: Any, return_intermediates: bool = False) -> Any:
        """Return the logarithm of the probability of each row's targets, float32 [batch].

        Of numbers it is the negative squared error.
        """
        if return_intermediates:
            raise NotImplementedError("an encoder has no intermediates")
        tokens, row = self._apply_network(params, batch, None)
        targets = batch["decoder_target_tokens"]
        if self.module.config.head == "regression":
            numbers = jax.lax.bitcast_convert_type(targets, jnp.float32)
            return -jnp.sum(jnp.square(row - numbers), axis=-1)
        logits = _open_classes(row)[:, None] if tokens is None else tokens
        return -encoder_metrics.measure_targets(logits, targets, "")["loss"]

    def _compute_logits(self, params: Any, batch: Any, dropout_rng: Any = None) -> Any:
        """Return the logits of the tokens; T5X asks for this method."""
        return self._apply_network(params, batch, dropout_rng)[0]

    def _apply_network(self, params: Any, batch: Any, dropout_rng: Any) -> tuple[Any, Any]:
        """Return what EncoderOnly returns, with dropout if there is a random key."""
        tokens = batch["encoder_input_tokens"]
        outputs: tuple[Any, Any] = self.module.apply(
            {"params": params},
            tokens,
            self._find_token_types(tokens),
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
        )
        return outputs

    def _find_token_types(self, tokens: Any) -> Any:
        """Return the number of each token's text in its row, int32 [batch, length].

        A text ends with the separator. Padding counts to the first text, as in Hugging Face's.
        """
        count = self.module.config.token_types
        if not count:
            return None
        vocabulary = dataset.convert_vocabulary(self.input_vocabulary)
        is_end = tokens == masking_tokens.find_masking_tokens(vocabulary).separator
        numbers = jnp.cumsum(is_end, axis=1) - is_end
        return jnp.where(tokens > 0, jnp.minimum(numbers, count - 1), 0)


def _open_classes(row: Any) -> Any:
    """Return the logits of classes that are counted from 1, [batch, 1 + classes]."""
    return jnp.concatenate([jnp.full_like(row[:, :1], _CLOSED), row], axis=1)


def _compute_square_losses(row: Any, targets: Any, weights: Any, factor: Any) -> _Losses:
    """Return the sum of the squared errors of numbers, whose bits are the targets."""
    numbers = jax.lax.bitcast_convert_type(targets, jnp.float32)
    loss = jnp.sum(jnp.square(row - numbers) * weights)
    loss = loss if factor is None else loss / factor
    # T5X's metrics take classes. One class, which is always right, stands for the number.
    logits = jnp.zeros((*targets.shape, 1), jnp.float32)
    return _Losses(loss, jnp.float32(0), logits, jnp.zeros_like(targets), {})


class EncoderModel(SharedModel, _EncoderBase):
    """The model of an encoder.

    Args:
      module: rosetta's EncoderOnly.
      vocabulary: the vocabulary of the rows.
      optimizer_def: as of T5X's models.
      label_smoothing: as of T5X's models.
      z_loss: as of T5X's models.
      loss_normalizing_factor: as of T5X's models.
    """

    def __init__(
        self,
        module: Any,
        vocabulary: Any,
        optimizer_def: Any,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: Any = None,
    ) -> None:
        super().__init__(
            module,
            vocabulary,
            vocabulary,
            optimizer_def,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            loss_normalizing_factor=loss_normalizing_factor,
        )
        is_masked = module.config.head == "mlm"
        self.FEATURE_CONVERTER_CLS = (
            encoder_features.MaskedFeatureConverter
            if is_masked
            else encoder_features.LabelFeatureConverter
        )

    def predict_batch_with_aux(
        self, params: Any, batch: Any, rng: Any = None, flax_mutables: Any = None
    ) -> Any:
        """Return the predictions for a batch, and their figures."""
        bound = self._bind_state(flax_mutables)
        return super(EncoderModel, bound).predict_batch_with_aux(params, batch, rng=rng)
