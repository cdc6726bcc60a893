"""SeqIO tasks over the data of rosetta.data (see dataset.task).

Evaluation, inference and T5X's check of vocabularies read them.
"""

from __future__ import annotations

import functools
import itertools
import json
from typing import TYPE_CHECKING, Any

import flax.struct
import gin
import numpy as np
import seqio
import tensorflow as tf

from rosetta.core.errors import MISSING, UNSUPPORTED, UserError
from rosetta.data import (
    Array,
    data_spec,
    labelled_records,
    mixtures,
    row_sources,
    task_records,
)
from rosetta.t5x import encoder_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rosetta.data.rows import Rows, Source

SPLITS = ("train", "validation")
_ENCODER_METRICS = {
    "classification": encoder_metrics.ClassMetrics,
    "regression": encoder_metrics.NumberMetrics,
}
RECORD_NAME = "record_name"  # the feature with a record's own name, as JSON
raised_errors: list[UserError] = []  # the errors that reading data in this process has raised


def register_task(name: str, definition: Any, vocabulary: seqio.Vocabulary) -> None:
    """Add a task to SeqIO's registry.

    Args:
      name: the name of the task.
      definition: what the task is made from, as dataset.task describes it.
      vocabulary: the vocabulary of inputs and targets.
    """
    feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
    sides = ("targets",) if definition.objective == "lm" else ("inputs", "targets")
    splits = [split for split in SPLITS if _find_split_data(definition, split) is not None]
    if _has_answers(definition.objective):
        source: Any = functools.partial(_read_records, definition=definition)
        preprocessors: list[Any] = [
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos_after_trim,
        ]
    elif definition.objective in data_spec.LABEL_OBJECTIVES:
        source = _name_split
        preprocessors = [functools.partial(_read_labelled_rows, definition=definition)]
    else:
        source = _name_split
        preprocessors = [functools.partial(_read_rows, definition=definition, sides=sides)]
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(dataset_fn=source, splits=splits, caching_permitted=False),
        preprocessors=preprocessors,
        output_features=dict.fromkeys(sides, feature),
        postprocess_fn=_select_postprocessor(definition.objective),
        metric_fns=_select_metrics(definition.objective),
        metric_objs=_select_scores(definition),
    )


@flax.struct.dataclass
class TargetLoss(seqio.metrics.Metric):
    """The loss of the expected answers per token, end tokens included, as a metric of SeqIO.

    Attributes:
      model_output_type: what SeqIO asks the model for.
      loss: the loss of all answers, and the number of their tokens.
    """

    model_output_type: Any = seqio.metrics.ModelOutputType.SCORE
    loss: tuple[float, int] = (0.0, 0)

    @classmethod
    def from_model_output(
        cls,
        inputs: Iterable[Mapping[str, Any]],
        model_output: Any,
        features: Mapping[str, Any],
        target_field_name: str = "targets",
        mask: Any = None,
        indices_2d: Any = None,
    ) -> TargetLoss:
        """Return the loss of examples.

        Args:
          inputs: the examples, with the tokens of their targets.
          model_output: the logarithm of the probability of each example's targets.
          features: not used.
          target_field_name: the field that has the tokens.
          mask: not used.
          indices_2d: not used.
        """
        del features, mask, indices_2d
        tokens = sum(len(example[target_field_name]) for example in inputs)
        return cls(loss=(-float(np.sum(model_output, dtype=np.float64)), tokens))

    def compute(self) -> dict[str, float]:
        """Return the loss per token by the name under which it is reported."""
        total, tokens = self.loss
        return {"loss": total / max(tokens, 1)}


def _has_answers(objective: str) -> bool:
    """Return whether an objective has records with answers in text, which a decoder writes."""
    is_pair = objective in data_spec.PAIR_OBJECTIVES
    return is_pair and objective not in data_spec.ENCODER_OBJECTIVES


def _find_split_data(definition: Any, split: str) -> str | None:
    """Return the data that a split is read from; None if there is no such split."""
    if split == "train":
        return str(definition.data)
    if definition.eval_data is not None:
        return str(definition.eval_data)
    parts = data_spec.parse_parts(definition.data)
    has_own_splits = all(part.spec.kind in ("hf", "tfds") for part in parts)
    return str(definition.data) if has_own_splits else None


def _select_metrics(objective: str) -> list[Any]:
    """Return T5's metric functions of an objective."""
    if not _has_answers(objective):
        return []
    # Importing t5 registers configurables, which gin forbids after it has read its files.
    with gin.unlock_config():
        from t5.evaluation import metrics

    return [metrics.squad if objective == "squad" else metrics.accuracy]


def _select_scores(definition: Any) -> list[Any]:
    """Return the metrics that are computed from what the model says of the expected answers."""
    objective = definition.objective
    if objective in data_spec.ENCODER_OBJECTIVES:
        return [_ENCODER_METRICS.get(objective, encoder_metrics.TokenMetrics)]
    return [TargetLoss] if definition.scored and _has_answers(objective) else []


def _select_postprocessor(objective: str) -> Any:
    """Return T5's function that makes an answer of a target's text; None for the text itself."""
    if objective not in ("mnli", "squad"):
        return None
    with gin.unlock_config():
        from t5.data import postprocessors

    if objective == "squad":
        return postprocessors.qa
    return functools.partial(
        postprocessors.string_label_to_class_id, label_classes=list(task_records.MNLI_LABELS)
    )


def _read_records(
    split: str, shuffle_files: bool = False, seed: int | None = None, *, definition: Any
) -> tf.data.Dataset:
    """Return the records of a split as texts of inputs and targets, in the order of the data.

    SeqIO calls this function. The arguments that shuffle are not used.
    """
    del shuffle_files, seed
    is_squad = definition.objective == "squad"

    def read() -> Iterator[Mapping[str, Any]]:
        for part in data_spec.parse_parts(str(_find_split_data(definition, split))):
            for record in _read_worded_records(part.spec, definition, split):
                example: dict[str, Any] = {
                    "inputs": task_records.add_prefix(definition.input_prefix, record["inputs"]),
                    "targets": record["targets"],
                }
                if is_squad:
                    example["answers"] = np.array(record["answers"], object)
                    example["id"] = record["id"]
                else:
                    example["idx"] = _parse_index(record["idx"])
                if not definition.answered:
                    example[RECORD_NAME] = json.dumps(record["name"], default=str)
                yield example

    signature = {"inputs": tf.TensorSpec((), tf.string), "targets": tf.TensorSpec((), tf.string)}
    if not definition.answered:
        signature |= {RECORD_NAME: tf.TensorSpec((), tf.string)}
    if is_squad:
        signature |= {
            "answers": tf.TensorSpec((None,), tf.string),
            "id": tf.TensorSpec((), tf.string),
        }
    else:
        signature |= {"idx": tf.TensorSpec((), tf.int32)}
    return tf.data.Dataset.from_generator(remember_errors(read), output_signature=signature)


def remember_errors(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return a generator that adds each UserError to raised_errors.

    TensorFlow passes on only the text of an error.
    """

    @functools.wraps(read)
    def wrapped(*args: Any) -> Iterator[Any]:
        try:
            yield from read(*args)
        except UserError as error:
            raised_errors.append(error)
            raise

    return wrapped


def _read_worded_records(spec: Any, definition: Any, split: str) -> Iterator[Mapping[str, Any]]:
    """Yield the records of one part of the data, with texts of inputs and targets.

    Raises:
      UserError: the data is a token cache.
    """
    if spec.kind == "cache":
        raise UserError(
            "a token cache has no text to compare answers with",
            f"EVAL_DATA={spec}",
            "name the records themselves: jsonl:, tfds: or hf:",
            kind=UNSUPPORTED,
        )
    yield from task_records.read_examples(
        spec,
        definition.objective,
        split,
        answered=definition.answered,
        field=definition.text_field,
        labels=definition.labels,
    )


def _parse_index(idx: Any) -> int:
    """Return a record's index if it is a whole number of 32 bits, else 0."""
    return idx if isinstance(idx, int) and abs(idx) < 1 << 31 else 0


def _name_split(
    split: str, shuffle_files: bool = False, seed: int | None = None
) -> tf.data.Dataset:
    """Return a data set of one element, which has the name of the split.

    _read_rows makes the rows of it. The rows depend on the sequence lengths, which SeqIO gives only
    to preprocessors.
    """
    del shuffle_files, seed
    return tf.data.Dataset.from_tensors({"split": split})


def _read_labelled_rows(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], *, definition: Any
) -> tf.data.Dataset:
    """Return the records of a split with their tokens and their label, in the order of the data.

    SeqIO calls this function as a preprocessor. The label of a record without one is 0.

    Args:
      dataset: what _name_split returned.
      sequence_length: the lengths of inputs and targets, in tokens.
      definition: what the task is made from.
    """
    names = data_spec.parse_label_fields(definition.text_field)
    labelled_records.check_length(sequence_length["inputs"], len(names) - 1)
    text_names = [f"{name}_pretokenized" for name in ("inputs", "inputs_pair")[: len(names) - 1]]

    def read(split_name: bytes) -> Iterator[Mapping[str, Any]]:
        split = split_name.decode()
        data = str(_find_split_data(definition, split))
        count = 0
        for part in data_spec.parse_parts(data):
            for record in _read_worded_records(part.spec, definition, split):
                count += 1
                first, *rest = task_records.list_texts(record)
                texts = [task_records.add_prefix(definition.input_prefix, first), *rest]
                tokens = labelled_records.encode_texts(
                    texts, definition.vocab, sequence_length["inputs"]
                )
                row = {"inputs": tokens, "targets": np.array([record["label"]], np.int32)}
                row |= dict(zip(text_names, texts, strict=True))
                if not definition.answered:
                    row[RECORD_NAME] = json.dumps(record["name"], default=str)
                yield row
        if not count:
            raise UserError(
                "there is no record in the data",
                data,
                "name files with records in them",
                kind=MISSING,
            )

    signature = {side: tf.TensorSpec((None,), tf.int32) for side in ("inputs", "targets")}
    named = text_names if definition.answered else [*text_names, RECORD_NAME]
    signature |= {name: tf.TensorSpec((), tf.string) for name in named}
    return dataset.flat_map(
        lambda element: tf.data.Dataset.from_generator(
            remember_errors(read), args=(element["split"],), output_signature=signature
        )
    )


def _iterate_rows(source: Source) -> Iterator[Rows]:
    """Yield each row of a source once, or of each source of a mixture.

    Streams and synthetic data have no end, nor has a mixture with them. T5X reads as many batches
    as eval_steps says.
    """
    parts = source.sources if isinstance(source, mixtures.Mixture) else [source]
    row_counts: list[int] = [part.count for part in parts if hasattr(part, "count")]
    if len(row_counts) < len(parts):
        for number in itertools.count():
            yield source.read_rows(np.array([number]))
    elif isinstance(source, mixtures.Mixture):
        for part_number, number in source.list_draws_once(row_counts):
            yield parts[part_number].read_rows(np.array([number]))
    else:
        for number in range(row_counts[0]):
            yield source.read_rows(np.array([number]))


def _read_rows(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    *,
    definition: Any,
    sides: tuple[str, ...],
) -> tf.data.Dataset:
    """Return each row of a split once, in the order of the data, without padding.

    The rows of an encoder have padding. SeqIO calls this function as a preprocessor.

    Args:
      dataset: what _name_split returned.
      sequence_length: the lengths of inputs and targets, in tokens.
      definition: what the task is made from.
      sides: the features to return.
    """

    def read(split: bytes) -> Iterator[Mapping[str, Array]]:
        recipe = definition.make_recipe(
            sequence_length,
            data=_find_split_data(definition, split.decode()),
            split=split.decode(),
            seed=0,
            shuffle=False,
        )
        for rows in _iterate_rows(row_sources.open_sources(recipe)):
            tokens = {"inputs": rows.inputs[0], "targets": rows.targets[0]}
            # The places of an encoder's targets are those of its inputs.
            is_encoder = definition.objective in data_spec.ENCODER_OBJECTIVES
            yield {
                side: tokens[side] if is_encoder else tokens[side][tokens[side] != 0]
                for side in sides
            }

    signature = {side: tf.TensorSpec((None,), tf.int32) for side in sides}
    return dataset.flat_map(
        lambda element: tf.data.Dataset.from_generator(
            remember_errors(read), args=(element["split"],), output_signature=signature
        )
    )
