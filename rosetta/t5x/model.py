"""T5X's two kinds of model, and one of an encoder alone. rosetta's gin files name the classes.

They add to T5X's models: the FP8 state and the state of the loss scale, which T5X's train state
holds as its mutable variables, and a loss that is computed over slices of the vocabulary.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import clu.metrics
import flax
import jax.numpy as jnp
from t5x import losses, models

from rosetta.nn import fp8, loss
from rosetta.t5x import loss_scale, partial_optimizer
from rosetta.t5x.network import compute_logits_scale

if TYPE_CHECKING:
    from collections.abc import Mapping

# In a packed batch, the feature "X_segment_ids" numbers the example of each token of X.
SEGMENT_SUFFIX = "_segment_ids"


class _BoundModule:
    """A Flax module whose `apply` adds fixed variables and options to the caller's.

    T5X's code calls `apply` with the parameters only.
    """

    def __init__(self, module: Any, state: Mapping[str, Any], **options: Any) -> None:
        self._module, self._state, self._options = module, state, options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's `apply` returns."""
        return self._module.apply({**self._state, **variables}, *args, **self._options, **kwargs)


def _find_segments(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return feature -> its segment ids [batch, length], as T5X's metrics take them.

    Padding has 0. The tokens of a packed row have the number of their example. In a batch that is
    not packed, each row is one example, and its tokens have True.
    """
    packed = [name for name in batch if name.endswith(SEGMENT_SUFFIX)]
    if packed:
        return {name.removesuffix(SEGMENT_SUFFIX): batch[name] for name in packed}
    return {
        name: batch[name] != 0
        for name in ("encoder_input_tokens", "decoder_target_tokens")
        if name in batch
    }


class SharedModel(models.BaseTransformerModel):
    """What all kinds of model share.

    The argument `flax_mutables` of the methods is what the train state holds: the FP8 state, the
    state of the loss scale, or nothing.

    Args:
      *args: as of T5X's class.
      freeze: regular expressions of parameters that are not trained, separated by commas; see
        rosetta.t5x.partial_optimizer.
      **kwargs: as of T5X's class.

    Raises:
      UserError: `freeze` is not valid.
    """

    def __init__(self, *args: Any, freeze: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.optimizer_def: Any = partial_optimizer.restrict_optimizer(
            self.optimizer_def,
            freeze,
            # T5X's own networks have no adapters.
            adapters_only=getattr(self.config, "lora", None) is not None,
        )

    @property
    def config(self) -> Any:
        """The network's T5Config."""
        return self.module.config

    def get_initial_variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return T5X's initial variables, with the axes metadata of FP8 state if they have any.

        With float16 activations, they also have the state of the loss scale. T5X partitions
        variables by the names of their axes. The axes of both states have none.
        """
        variables = super().get_initial_variables(*args, **kwargs)
        if loss_scale.needs_scaling(self.config.dtype):
            variables = flax.core.freeze(
                {
                    **variables,
                    loss_scale.COLLECTION: loss_scale.make_initial_state(),
                    f"{loss_scale.COLLECTION}_axes": loss_scale.make_axes_metadata(),
                }
            )
        if fp8.COLLECTION not in variables:
            return variables
        return flax.core.freeze(
            {
                **variables,
                f"{fp8.COLLECTION}_axes": fp8.make_axes_metadata(variables[fp8.COLLECTION]),
            }
        )

    def loss_fn(self, params: Any, batch: Any, dropout_rng: Any, flax_mutables: Any = None) -> Any:
        """Return the loss of a batch, a float32 sum over tokens, and its metrics.

        If `dropout_rng` is None, as in evaluation, there is no dropout.
        """
        bound = self._bind_state(flax_mutables)
        if self.config.loss_chunks:
            return bound._compute_chunked_loss(params, batch, dropout_rng)  # noqa: SLF001
        # T5X's method, called on the bound copy.
        return super(SharedModel, bound).loss_fn(params, batch, dropout_rng)

    def eval_fn(self, params: Any, batch: Any, flax_mutables: Any = None) -> Any:
        """Return the loss and the metrics of a batch without dropout."""
        return self.loss_fn(params, batch, None, flax_mutables)

    def predict_batch(
        self, params: Any, batch: Any, rng: Any = None, flax_mutables: Any = None
    ) -> Any:
        """Return T5X's predictions for a batch."""
        return self.predict_batch_with_aux(params, batch, rng=rng, flax_mutables=flax_mutables)[0]

    def score_batch(
        self, params: Any, batch: Any, return_intermediates: bool = False, flax_mutables: Any = None
    ) -> Any:
        """Return T5X's scores of a batch's targets."""
        return super(SharedModel, self._bind_state(flax_mutables)).score_batch(
            params, batch, return_intermediates
        )

    def _bind_state(self, flax_mutables: Any) -> Any:
        """Return a copy of this model whose module always gets the FP8 state.

        Without FP8, return this model.
        """
        if not flax_mutables or self.config.fp8 == "off":
            return self
        bound = copy.copy(self)
        bound.module = _BoundModule(self.module, flax_mutables)
        return bound

    def _compute_chunked_loss(self, params: Any, batch: Any, dropout_rng: Any) -> Any:
        """Return what T5X's loss_fn returns, but without all logits in memory.

        Only the logits of one slice of the vocabulary exist at a time.
        """
        targets = batch["decoder_target_tokens"]
        token_losses, z_losses, best_tokens = self._compute_token_losses(params, batch, dropout_rng)
        factor, weights = losses.get_loss_normalizing_factor_and_weights(
            self._loss_normalizing_factor, batch
        )
        if weights is None:
            token_weights = jnp.ones(token_losses.shape, jnp.float32)
        else:
            token_weights = weights.reshape(-1).astype(jnp.float32)
        loss_sum = jnp.sum(token_losses * token_weights)
        z_loss_sum = jnp.sum(z_losses * token_weights)
        if factor is not None:
            loss_sum, z_loss_sum = loss_sum / factor, z_loss_sum / factor
        # T5X's metrics use the logits for the accuracy only, which is replaced below. So logits of
        # one class will do.
        placeholder_logits = jnp.zeros((*targets.shape, 1), jnp.float32)
        metrics = dict(
            self._compute_metrics(
                logits=placeholder_logits,
                targets=targets,
                mask=weights,
                loss=loss_sum,
                z_loss=z_loss_sum,
                segment_ids=_find_segments(batch),
            )
        )
        correct = jnp.sum((best_tokens == targets.reshape(-1)) * token_weights)
        count = jnp.sum(token_weights) if weights is not None else jnp.float32(targets.size)
        metrics["accuracy"] = clu.metrics.Accuracy(total=correct, count=count)
        return loss_sum, metrics

    def _compute_token_losses(self, params: Any, batch: Any, dropout_rng: Any) -> Any:
        """Return the losses, the z-losses and the most likely tokens, each [batch x length]."""
        targets = batch["decoder_target_tokens"]
        hidden, kernel = self._compute_hidden(params, batch, dropout_rng)
        config = self.config
        settings = loss.LossSettings(
            config.vocab_size,
            config.loss_chunks,
            self._label_smoothing,
            self._z_loss,
            compute_logits_scale(config),
            jnp.dtype(config.logits_dtype),
        )
        return loss.chunked_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]), kernel, targets.reshape(-1), settings
        )

    def _compute_hidden(self, params: Any, batch: Any, dropout_rng: Any) -> Any:
        """Return the two factors of the logits.

        Returns:
            The hidden vectors [batch, length, features] and the kernel [features, vocabulary].
        """
        bound = copy.copy(self)
        bound.module = _BoundModule(self.module, {}, hidden_only=True)
        return bound._compute_logits(params, batch, dropout_rng)  # noqa: SLF001


class EncoderDecoderModel(SharedModel, models.EncoderDecoderModel):
    """T5X's EncoderDecoderModel, for rosetta's Transformer."""

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
        """Return T5X's predictions and their scores; the arguments are those of T5X's method."""
        return super(EncoderDecoderModel, self._bind_state(flax_mutables)).predict_batch_with_aux(
            params,
            batch,
            rng=rng,
            decoder_params=decoder_params,
            return_all_decodes=return_all_decodes,
            num_decodes=num_decodes,
            prompt_with_targets=prompt_with_targets,
        )


class DecoderOnlyModel(SharedModel, models.DecoderOnlyModel):
    """T5X's DecoderOnlyModel, for rosetta's DecoderOnly."""

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
        """Return T5X's predictions and their scores; the arguments are those of T5X's method."""
        return super(DecoderOnlyModel, self._bind_state(flax_mutables)).predict_batch_with_aux(
            params,
            batch,
            rng=rng,
            return_all_decodes=return_all_decodes,
            num_decodes=num_decodes,
            decoder_params=decoder_params,
        )
