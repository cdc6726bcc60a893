"""SeqIO tasks of rosetta.data's sources: what evaluation and T5X's vocabulary check read."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import gin
import numpy as np
import seqio
import tensorflow as tf

from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.data import Array, data_spec, pipeline, task_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SPLITS = ("train", "validation")
RECORD_NAME = "record_name"  # the feature that has a record's own name for itself, as JSON
raised_errors: list[UserError] = []  # what the data of this process raised


def register_task(name: str, made: Any, vocabulary: seqio.Vocabulary) -> None:
    """Add the task to SeqIO's registry.

    Args:
      name: the task's.
      made: rosetta.t5x.dataset's description of it.
      vocabulary: of both sides.
    """
    feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
    sides = ("targets",) if made.objective == "lm" else ("inputs", "targets")
    pairs = made.objective in data_spec.PAIR_OBJECTIVES
    splits = [split for split in SPLITS if _find_split_data(made, split) is not None]
    if pairs:
        source: Any = functools.partial(_read_records, made=made)
        preprocessors: list[Any] = [
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos_after_trim,
        ]
    else:
        source = _name_split
        preprocessors = [functools.partial(_read_rows, made=made, sides=sides)]
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(dataset_fn=source, splits=splits, caching_permitted=False),
        preprocessors=preprocessors,
        output_features=dict.fromkeys(sides, feature),
        postprocess_fn=_select_postprocessor(made.objective),
        metric_fns=_select_metrics(made.objective),
    )


def _find_split_data(made: Any, split: str) -> str | None:
    """Return the data a split is read from, None where there is no such split."""
    if split == "train":
        return str(made.data)
    if made.eval_data is not None:
        return str(made.eval_data)
    return (
        str(made.data)
        if all(part.spec.kind in ("hf", "tfds") for part in data_spec.parse_parts(made.data))
        else None
    )


def _select_metrics(objective: str) -> list[Any]:
    if objective not in data_spec.PAIR_OBJECTIVES:
        return []
    with (
        gin.unlock_config()
    ):  # importing t5 registers configurables, and gin has read its files by now
        from t5.evaluation import metrics

    return [metrics.squad if objective == "squad" else metrics.accuracy]


def _select_postprocessor(objective: str) -> Any:
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
    split: str, shuffle_files: bool = False, seed: int | None = None, *, made: Any
) -> tf.data.Dataset:
    """Return worded records; their order is the data's own."""
    del shuffle_files, seed
    squad = made.objective == "squad"

    def read() -> Iterator[Mapping[str, Any]]:
        for part in data_spec.parse_parts(str(_find_split_data(made, split))):
            for record in _read_worded_records(part.spec, made, split):
                extra: dict[str, Any] = (
                    {"answers": np.array(record["answers"], object), "id": record["id"]}
                    if squad
                    else {"idx": _parse_index(record["idx"])}
                )
                if not made.answered:
                    extra[RECORD_NAME] = json.dumps(record["name"], default=str)
                yield {"inputs": record["inputs"], "targets": record["targets"], **extra}

    signature = {"inputs": tf.TensorSpec((), tf.string), "targets": tf.TensorSpec((), tf.string)}
    if not made.answered:
        signature |= {RECORD_NAME: tf.TensorSpec((), tf.string)}
    if squad:
        signature |= {
            "answers": tf.TensorSpec((None,), tf.string),
            "id": tf.TensorSpec((), tf.string),
        }
    else:
        signature |= {"idx": tf.TensorSpec((), tf.int32)}
    return tf.data.Dataset.from_generator(_remember_errors(read), output_signature=signature)


def _remember_errors(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return a generator that keeps what it raises for the user: TensorFlow hands on no more than
    its text.
    """

    @functools.wraps(read)
    def wrapped(*args: Any) -> Iterator[Any]:
        try:
            yield from read(*args)
        except UserError as error:
            raised_errors.append(error)
            raise

    return wrapped


def _read_worded_records(spec: Any, made: Any, split: str) -> Iterator[Mapping[str, Any]]:
    if spec.kind == "cache":
        raise UserError(
            "a token cache has no text to compare answers with",
            f"EVAL_DATA={spec}",
            "name the records themselves: jsonl:, tfds: or hf:",
            kind=UNSUPPORTED,
        )
    yield from task_records.read_examples(spec, made.objective, split, answered=made.answered)


def _parse_index(idx: Any) -> int:
    return idx if isinstance(idx, int) and abs(idx) < 1 << 31 else 0


def _name_split(
    split: str, shuffle_files: bool = False, seed: int | None = None
) -> tf.data.Dataset:
    """Return one element, the split's name: the rows depend on lengths, which only a preprocessor
    is told.
    """
    del shuffle_files, seed
    return tf.data.Dataset.from_tensors({"split": split})


def _read_rows(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    *,
    made: Any,
    sides: tuple[str, ...],
) -> tf.data.Dataset:
    """Return every row of the split once, in the data's own order: examples of inputs and targets
    without padding.
    """

    def read(split: bytes) -> Iterator[Mapping[str, Array]]:
        recipe = made.recipe(
            sequence_length,
            data=_find_split_data(made, split.decode()),
            split=split.decode(),
            seed=0,
            shuffle=False,
        )
        source = pipeline.open_sources(recipe)
        # A stream and synthetic data have no end: T5X takes as many batches as eval_steps says.
        count = getattr(source, "count", None)
        number = 0
        while count is None or number < count:
            rows = source.read_rows(np.array([number]))
            found = {"inputs": rows.inputs[0], "targets": rows.targets[0]}
            yield {side: found[side][found[side] != 0] for side in sides}
            number += 1

    signature = {side: tf.TensorSpec((None,), tf.int32) for side in sides}
    return dataset.flat_map(
        lambda element: tf.data.Dataset.from_generator(
            _remember_errors(read), args=(element["split"],), output_signature=signature
        )
    )
