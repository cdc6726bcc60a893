"""A language model of Pax with the weights of a checkpoint, on the devices of this process.

Praxis decodes. This module gives Praxis the model, the weights and the prompts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from praxis import base_layer, decoder_hparams, pax_fiddle, py_utils, token_samplers

from rosetta.core.errors import INVALID, TOO_BIG, UserError
from rosetta.pax import lora
from rosetta.pax.run import stored_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.convert.pax_checkpoint import Checkpoint
    from rosetta.inference.decoding import Decoding

_PARAMETERS = "params.lm."  # in front of the names of a model's variables
_AXES = ("replica", "data", "mdl")


class Sampler(token_samplers.DefaultNextTokenSampler):
    """Praxis' choice of the next token, with a random key for each answer.

    The choice depends on the key and on the position in the text alone, so a prompt has the same
    answers in any batch. Logits are in float32, and are divided by the temperature before
    improbable tokens are left out, as elsewhere. (Praxis leaves them out first.)

    Attributes:
      keys: The random key of each answer, uint32 [answers, 2].
      heat: The temperature.
    """

    keys: Any = None
    heat: float = 1.0

    @classmethod
    def get_extra_kwargs(cls, inputs: Any, num_samples: int) -> dict[str, Any]:
        """Return the fields of the sampler that Praxis takes from a batch."""
        del num_samples
        return {"keys": inputs.sample_keys}

    def __call__(
        self,
        model: Any,
        logits: Any,
        temperature: Any,
        decode_loop_state: Any,
        per_example_top_p: Any = None,
        per_example_top_k: Any = None,
        gumbel_prng_key: Any = None,
    ) -> Any:
        """Return the next tokens and the logits; see the base class."""
        del gumbel_prng_key
        logits = logits.astype(jnp.float32)
        output = super().__call__(
            model,
            logits / self.heat,
            temperature,
            decode_loop_state,
            per_example_top_p=per_example_top_p,
            per_example_top_k=per_example_top_k,
            gumbel_prng_key=jax.vmap(jax.random.fold_in)(self.keys, decode_loop_state.segment_pos),
        )
        output.logits = logits
        return output


@dataclass(frozen=True)
class Answers:
    """What a model answers to a batch of prompts.

    Attributes:
      ids: The tokens after each prompt, [prompts, answers] lists.
      logprobs: The logarithm of the probability of each of these tokens.
      scores: The score by which the answers of a beam search are ordered; None without beams.
    """

    ids: list[list[list[int]]]
    logprobs: list[list[list[float]]]
    scores: list[list[float]] | None


@dataclass(frozen=True)
class Score:
    """How likely the end of a text is.

    Attributes:
      logprob: The logarithm of the probability of its tokens.
      likeliest: Whether each of its tokens is the likeliest one.
    """

    logprob: float
    likeliest: bool


class PaxModel:
    """A language model of Pax.

    Attributes:
      vocab_size: The number of ids.
      length: The longest text, in tokens.
    """

    def __init__(self, experiment: Any, checkpoint: Checkpoint) -> None:
        """Build the model and read its weights.

        Args:
          experiment: The experiment, without switches.
          checkpoint: The weights.

        Raises:
          UserError: The checkpoint is of another model, or is damaged.
        """
        self._mesh = _make_mesh(experiment.ICI_MESH_SHAPE)
        task = experiment.task()
        task.model.lm_tpl.packed_input = False
        _look_up_positions(task.model.lm_tpl)
        self._model = base_layer.instantiate(task.model)
        self.vocab_size: int = experiment.VOCAB_SIZE
        self.length: int = experiment.MAX_SEQ_LEN
        self._variables = self._read_variables(checkpoint)
        self._compiled: dict[Any, Any] = {}

    def _read_variables(self, checkpoint: Checkpoint) -> Any:
        """Return the variables of the model, with the values of a checkpoint."""
        shapes = self._model.abstract_init_with_metadata(_make_batch([[0, 0]], 2))
        specs = base_layer.var_partition_specs(shapes, self._mesh.devices.shape, _AXES)
        flat_specs = flatten_dict(specs, sep=".")
        needed = {
            name: (*(metadata.repeat_prefix or ()), *metadata.shape)
            for name, metadata in flatten_dict(shapes, sep=".").items()
        }
        stored_checkpoint.check_shapes(
            {_PARAMETERS + path: shape for path, shape in checkpoint.shapes.items()},
            needed,
            checkpoint.where,
            "use the experiment and the hyper-parameters that the checkpoint was trained with: "
            "--config, --fdl",
            [lora.KERNEL_PATTERN],
        )
        variables = {}
        for name, shape in needed.items():
            path = name.removeprefix(_PARAMETERS)
            checkpoint.check_array(path, None, shape)
            sharding = jax.sharding.NamedSharding(self._mesh, flat_specs[name])
            values = np.asarray(checkpoint.read(path, None), np.float32)
            variables[name] = jax.device_put(values, sharding)
        return unflatten_dict(variables, sep=".")

    def generate(
        self, prompts: Sequence[Sequence[int]], decoding: Decoding, keys: Any, length: int
    ) -> Answers:
        """Return the answers to a batch of prompts.

        Args:
          prompts: The tokens of each prompt.
          decoding: How tokens are chosen.
          keys: The random key of each answer, uint32 [prompts * decoding.samples, 2].
          length: The length to which prompts are padded, so that batches share a compilation.
        """
        batch = _make_batch(prompts, length)
        batch.sample_keys = jnp.asarray(keys)
        with self._mesh:
            result = jax.device_get(self._compile(decoding)(self._variables, batch))
        begins = [len(prompt) for prompt in prompts]
        ids, logprobs = [], []
        for row, begin in enumerate(begins):
            ends = np.atleast_1d(result["decode_lengths"][row])
            row_ids = np.atleast_2d(result["output_ids"][row])
            row_logprobs = np.atleast_2d(result["logprobs"][row])
            ids.append([part[begin:end].tolist() for part, end in zip(row_ids, ends, strict=True)])
            logprobs.append(
                [part[begin:end].tolist() for part, end in zip(row_logprobs, ends, strict=True)]
            )
        scores = result.get("scores") if decoding.beams else None
        return Answers(ids, logprobs, None if scores is None else scores.tolist())

    def score(
        self, texts: Sequence[Sequence[int]], begins: Sequence[int], length: int
    ) -> list[Score]:
        """Return how likely the ends of texts are.

        Args:
          texts: The tokens of each text.
          begins: Where the end of each text begins, at least 1.
          length: The length to which texts are padded, so that batches share a compilation.
        """
        batch = _make_batch([text[:-1] for text in texts], length)
        labels = _make_batch([text[1:] for text in texts], length).ids
        with self._mesh:
            outputs = jax.device_get(self._compute_logprobs(self._variables, batch, labels))
        scores = []
        for row, (text, begin) in enumerate(zip(texts, begins, strict=True)):
            places = slice(begin - 1, len(text) - 1)
            logprob = float(np.sum(outputs["logprobs"][row, places], dtype=np.float64))
            scores.append(Score(logprob, bool(outputs["likeliest"][row, places].all())))
        return scores

    @functools.cached_property
    def _compute_logprobs(self) -> Any:
        """The compiled function of `score`, which takes variables, a batch and its labels."""

        def compute(variables: Any, batch: Any, labels: Any) -> Any:
            context = base_layer.JaxContext.HParams(do_eval=True)
            with base_layer.JaxContext.new_context(hparams=context):
                predictions = self._model.apply(
                    variables,
                    batch,
                    method=self._model.compute_predictions,
                    rngs={base_layer.RANDOM: jax.random.PRNGKey(0)},
                )
            logits = predictions.logits.astype(jnp.float32)
            logprobs = jnp.take_along_axis(
                jax.nn.log_softmax(logits), labels[..., jnp.newaxis], axis=-1
            )
            return {"logprobs": logprobs[..., 0], "likeliest": logits.argmax(-1) == labels}

        return jax.jit(compute)

    def _compile(self, decoding: Decoding) -> Any:
        """Return the compiled function of a decoding, which takes variables and a batch."""
        if decoding not in self._compiled:
            parameters = _make_parameters(decoding, self.vocab_size)

            def decode(variables: Any, batch: Any) -> Any:
                context = base_layer.JaxContext.HParams(do_eval=True)
                with base_layer.JaxContext.new_context(hparams=context):
                    (_, result, _), _ = self._model.apply(
                        variables,
                        parameters,
                        batch,
                        method=self._model.decode_with_params,
                        rngs={base_layer.RANDOM: jax.random.PRNGKey(0)},
                        mutable=[
                            base_layer.DECODE_CACHE,
                            base_layer.SUMMARIES,
                            base_layer.NON_TRAINABLE,
                        ],
                    )
                names = ("output_ids", "decode_lengths", "logprobs", "scores")
                return {name: result[name] for name in names if name in result}

            self._compiled[decoding] = jax.jit(decode)
        return self._compiled[decoding]


def _make_mesh(shape: Any) -> jax.sharding.Mesh:
    """Return the mesh of the first devices.

    Raises:
      UserError: The shape is not one of a mesh, or needs more devices than there are.
    """
    where = f"ICI_MESH_SHAPE={shape}"
    is_list = isinstance(shape, (list, tuple)) and len(shape) == len(_AXES)
    if not is_list or not all(type(size) is int and size > 0 for size in shape):
        raise UserError(
            "not the shape of a mesh", where, "give three numbers, such as [1,1,2]", kind=INVALID
        )
    needed, available = int(np.prod(shape)), jax.device_count()
    if needed > available:
        raise UserError(
            f"the mesh has {needed} devices, and {available} can be seen",
            where,
            f"give at most {available} devices, such as [1,1,{available}]",
            kind=TOO_BIG,
            value=needed,
        )
    return jax.sharding.Mesh(np.array(jax.devices()[:needed]).reshape(shape), _AXES)


def _look_up_positions(lm: Any) -> None:
    """Let a language model find the rows of its table of positions by index, in place.

    By default Praxis multiplies the table with one-hot rows, and takes as many rows of the table
    as the call has tokens. A step of decoding has one token, so it would find only position 0.
    """
    table = lm.position_emb_tpl
    if table is not None and hasattr(table, "lookup_style"):
        table.lookup_style = "index"


def _make_batch(prompts: Sequence[Sequence[int]], length: int) -> Any:
    """Return prompts as Praxis takes them, padded at their ends to a length."""
    ids: Any = np.zeros((len(prompts), length), np.int32)
    paddings: Any = np.ones((len(prompts), length), np.float32)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
        paddings[row, : len(prompt)] = 0
    return py_utils.NestedMap(
        ids=jnp.asarray(ids),
        labels=jnp.asarray(ids),
        paddings=jnp.asarray(paddings),
        weights=jnp.asarray(1 - paddings),
        eval_sample_weights=jnp.ones(len(prompts)),
    )


def _make_parameters(decoding: Decoding, vocab_size: int) -> Any:
    """Return Praxis' parameters of a decoding."""
    common: dict[str, Any] = {
        "seqlen": decoding.max_tokens,  # only its sign counts, as max_decode_steps is set
        "max_decode_steps": decoding.max_tokens,
        "fprop_for_prefix": True,
        "eos_id": list(decoding.stop_ids) or None,
    }
    if decoding.beams:
        # A beam that ends still leaves as many that go on.
        candidates = min(decoding.beams + len(decoding.stop_ids), vocab_size)
        return decoder_hparams.BeamSearchHParams(
            beam_size=decoding.beams,
            tokens_per_beam=candidates,
            length_norm_alpha=decoding.length_penalty,
            **common,
        )
    sampler = pax_fiddle.Config(Sampler, heat=decoding.temperature or 1.0)
    return decoder_hparams.SampleDecoderHParams(
        num_samples=decoding.samples,
        temperature=1.0 if decoding.temperature else 0.0,
        k=min(decoding.top_k, vocab_size) if decoding.temperature else 1,
        p=decoding.top_p,
        next_token_sampler_tpl=sampler,
        sort_samples=False,
        **common,
    )
