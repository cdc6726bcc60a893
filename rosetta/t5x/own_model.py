"""A Flax module of the user's own as a model of T5X (MODEL=module:Class).

The class is a flax.linen.Module. Its __call__ takes a batch of T5X's features and returns logits:

    def __call__(self, batch, *, deterministic): -> float [batch, target length, vocab_size]

docs/how-to/train-your-own-model.md describes the interface. rosetta's gin file models/own.gin names
the classes here.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import flax
import jax
import jax.numpy as jnp
import seqio
from flax import linen as nn
from flax.linen import partitioning as flax_partitioning
from flax.traverse_util import flatten_dict, unflatten_dict
from t5x import losses, models

from rosetta.core.errors import INVALID, UNKNOWN, UNSUPPORTED, UserError
from rosetta.t5x import user_modules, values
from rosetta.t5x.run import own_model_name

if TYPE_CHECKING:
    from collections.abc import Mapping

ENCODER_DECODER, DECODER = "encoder_decoder", "decoder"
# The kinds of models, by the class attribute `kind`, and what makes their features.
_CONVERTERS = {
    ENCODER_DECODER: seqio.EncDecFeatureConverter,
    DECODER: seqio.DecoderFeatureConverter,
}
_END, _PADDING = 1, 0


@dataclasses.dataclass(frozen=True)
class OwnConfig:
    """The settings of a user's module, as checkpoints record them.

    Attributes:
      name: module:Class, or FILE.py:Class.
      fields: values for fields of the class.
      vocabulary: SeqIO's vocabulary of inputs and targets.
      dtype: the type of activations. The class gets it if it has a field `dtype`.
      dropout_rate: the class gets it if it has a field `dropout_rate`.
      scale_attn_logits: a setting of rosetta's networks, which has no meaning here.
      fp8: a setting of rosetta's networks: the user's module computes without it.
      attention: a setting of rosetta's networks, which has no meaning here.
      loss_chunks: a setting of rosetta's networks: the loss takes all logits at once.
      lora: a setting of rosetta's networks: the user's module has no adapters.
    """

    name: str
    fields: Mapping[str, Any]
    vocabulary: Any = dataclasses.field(repr=False)
    dtype: str = "bfloat16"
    dropout_rate: float = 0.0
    scale_attn_logits: bool = False
    fp8: str = "off"
    attention: str = "xla"
    loss_chunks: int = 0
    lora: None = None

    @property
    def vocab_size(self) -> int:
        """The number of ids, rounded up to a multiple of 128."""
        return values.padded_size(self.vocabulary)

    @functools.cached_property
    def module_class(self) -> Any:
        """The user's class.

        Raises:
          UserError: it cannot be imported, or is not a Flax module.
        """
        where = f"MODEL={self.name}"
        module, class_name = own_model_name.split_model_name(self.name)
        loaded = user_modules.import_user_module(module, where)
        found = getattr(loaded, class_name, None)
        if found is None:
            raise UserError(
                f"{module} has no class {class_name}",
                where,
                "name a class of this module",
                kind=UNKNOWN,
                value=class_name,
            )
        if not isinstance(found, type) or not issubclass(found, nn.Module):
            raise UserError(
                f"{class_name} is not a flax.linen.Module",
                where,
                "name a subclass of flax.linen.Module; PyTorch models are trained by Accelerate",
                kind=UNSUPPORTED,
                value=class_name,
            )
        return found

    def make_module(self) -> Any:
        """Return the user's module with its fields.

        Raises:
          UserError: the class has no such field, or a field has no value.
        """
        module_class = self.module_class
        names = {field.name for field in dataclasses.fields(module_class) if field.init}
        offered = {
            "vocab_size": self.vocab_size,
            "dtype": jnp.dtype(self.dtype),
            "dropout_rate": self.dropout_rate,
        }
        unknown = sorted(set(self.fields) - names)
        if unknown:
            own = sorted(names - {"parent", "name"})
            raise UserError(
                f"{module_class.__name__} has no field {unknown[0]!r}",
                "MODEL_FIELDS",
                f"its fields are {', '.join(own)}",
                kind=UNKNOWN,
                value=unknown[0],
            )
        given = {name: value for name, value in offered.items() if name in names}
        try:
            return module_class(**{**given, **self.fields})
        except TypeError as error:
            raise UserError(
                f"{module_class.__name__} cannot be made: {error}",
                f"MODEL={self.name}",
                "give its fields defaults, or values in MODEL_FIELDS of a gin file",
                kind=INVALID,
            ) from error


def _find_axis_names(params: Any) -> dict[tuple[str, ...], Any]:
    """Return the names of the dimensions of each parameter, None for those without a name.

    The names are those that flax.linen.with_logical_partitioning gave.
    """
    specs = flatten_dict(nn.get_partition_spec(params))
    names = {}
    for path, leaf in flatten_dict(nn.meta.unbox(params)).items():
        known = tuple(specs.get(path) or ())
        missing = (None,) * (leaf.ndim - len(known))
        names[(*path[:-1], f"{path[-1]}_axes")] = flax_partitioning.AxisMetadata(
            names=(*known, *missing)
        )
    return names


class OwnModel(models.BaseTransformerModel):
    """T5X's model over a user's module.

    Args:
      config: the module and its settings.
      **others: as of T5X's BaseTransformerModel.

    Raises:
      UserError: the module cannot be made, or is of an unknown kind.
    """

    def __init__(self, config: OwnConfig, **others: Any) -> None:
        self.config = config
        self.kind = getattr(config.module_class, "kind", ENCODER_DECODER)
        if self.kind not in _CONVERTERS:
            raise UserError(
                f"kind is {self.kind!r}",
                f"MODEL={config.name}",
                f"set the attribute `kind` of the class to one of: {', '.join(_CONVERTERS)}",
                kind=UNKNOWN,
                value=self.kind,
            )
        self.FEATURE_CONVERTER_CLS = _CONVERTERS[self.kind]
        super().__init__(config.make_module(), **others)

    def get_initial_variables(
        self, rng: Any, input_shapes: Mapping[str, Any], input_types: Any = None
    ) -> Any:
        """Return the initial parameters, and the names of their dimensions.

        Names come from the module, as flax.linen.partitioning.param_with_axes or
        flax.linen.with_logical_partitioning give them. Other dimensions have none.

        Raises:
          UserError: the module has other variables than parameters, or its logits have another
            shape than the targets.
        """
        types = input_types or {}
        batch = {
            name: jnp.ones(shape, types.get(name, jnp.int32))
            for name, shape in input_shapes.items()
        }
        logits, variables = self.module.init_with_output(rng, batch, deterministic=True)
        self._check_logits(logits, batch)
        variables = flax.core.unfreeze(variables)
        named = variables.pop("params_axes", {})
        params = variables.pop("params", {})
        others = sorted(name for name, tree in variables.items() if jax.tree.leaves(tree))
        if others:
            raise UserError(
                f"the module has variables of the kind {others[0]!r}",
                f"MODEL={self.config.name}",
                "use parameters only: no batch statistics, and no sown values in __call__",
                kind=UNSUPPORTED,
                value=others[0],
            )
        names = {**_find_axis_names(params), **flatten_dict(flax.core.unfreeze(named))}
        return flax.core.freeze(
            {"params": nn.meta.unbox(params), "params_axes": unflatten_dict(names)}
        )

    def _check_logits(self, logits: Any, batch: Mapping[str, Any]) -> None:
        """Raise UserError unless the logits are [batch, target length, ids or more]."""
        targets = batch["decoder_target_tokens"].shape
        size = int(self.output_vocabulary.vocab_size)
        shape = tuple(getattr(logits, "shape", ()))
        if len(shape) != 3 or shape[:2] != targets or shape[2] < size:
            raise UserError(
                f"the module returns {shape or type(logits).__name__}, for targets {targets}",
                f"MODEL={self.config.name}",
                f"return logits [batch, target length, vocab_size], of at least {size} ids",
                kind=INVALID,
                value=shape,
            )

    def _compute_logits(
        self, params: Any, batch: Mapping[str, Any], dropout_rng: Any = None
    ) -> Any:
        """Return the logits of a batch, with dropout if there is a key for it."""
        rngs = {} if dropout_rng is None else {"dropout": dropout_rng}
        return self.module.apply(
            {"params": params}, batch, deterministic=dropout_rng is None, rngs=rngs
        )

    def eval_fn(self, params: Any, batch: Any) -> Any:
        """Return the loss and the metrics of a batch without dropout."""
        return self.loss_fn(params, batch, None)

    def score_batch(
        self, params: Any, batch: Mapping[str, Any], return_intermediates: bool = False
    ) -> Any:
        """Return the logarithm of the probability of each row's targets, float32 [batch].

        Raises:
          UserError: intermediate values are asked for.
        """
        if return_intermediates:
            raise UserError(
                "a module of your own reports no intermediate values",
                f"MODEL={self.config.name}",
                "leave return_intermediates out",
                kind=UNSUPPORTED,
            )
        logits = self._compute_logits(params, batch)
        targets = batch["decoder_target_tokens"]
        one_hot = jax.nn.one_hot(targets, logits.shape[-1])
        token_losses = losses.cross_entropy_with_logits(logits, one_hot, z_loss=0.0)[0]
        return -jnp.sum(token_losses * batch["decoder_loss_weights"], axis=-1)

    def predict_batch(self, params: Any, batch: Any, rng: Any = None) -> Any:
        """Return the likeliest next tokens, one after the other, int32 [batch, target length]."""
        return self.predict_batch_with_aux(params, batch, rng)[0]

    def predict_batch_with_aux(
        self, params: Any, batch: Mapping[str, Any], rng: Any = None
    ) -> tuple[Any, Any]:
        """Return predicted tokens, and their scores.

        The whole row is computed again for each token: the interface has no cache.

        Raises:
          UserError: the model has no encoder.
        """
        del rng
        if self.kind != ENCODER_DECODER:
            raise UserError(
                f"a module of kind {self.kind!r} writes no answers here",
                f"MODEL={self.config.name}",
                "evaluate its loss: EVAL_DATA in pretraining",
                kind=UNSUPPORTED,
                value=self.kind,
            )
        shape = batch["decoder_input_tokens"].shape

        def write_token(place: Any, carry: Any) -> Any:
            tokens, scores, is_done = carry
            shifted = jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
            logits = self._compute_logits(params, {**batch, "decoder_input_tokens": shifted})
            row_logits = jax.lax.dynamic_index_in_dim(logits, place, 1, keepdims=False)
            probabilities = jax.nn.log_softmax(row_logits.astype(jnp.float32))
            chosen = jnp.argmax(probabilities, axis=-1).astype(jnp.int32)
            scores += jnp.where(is_done, 0.0, jnp.max(probabilities, axis=-1))
            chosen = jnp.where(is_done, _PADDING, chosen)
            tokens = jax.lax.dynamic_update_index_in_dim(tokens, chosen, place, 1)
            return tokens, scores, is_done | (chosen == _END)

        start = (
            jnp.zeros(shape, jnp.int32),
            jnp.zeros(shape[:1], jnp.float32),
            jnp.zeros(shape[:1], bool),
        )
        tokens, scores, _ = jax.lax.fori_loop(0, shape[1], write_token, start)
        return tokens, {"scores": scores}
