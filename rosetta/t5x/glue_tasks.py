"""SeqIO tasks of GLUE and SuperGLUE over local files of JSON lines.

The texts, the postprocessors and the metrics are those of the tasks of the package t5. The data
comes from rosetta.data.glue_records, and the vocabulary is the run's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import seqio
import tensorflow as tf

from rosetta.data import glue_records
from rosetta.t5x import evaluation_data, seqio_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.data.glue_records import LocalTask

_INTEGER = tf.TensorSpec((), tf.int32)
_TEXT = tf.TensorSpec((), tf.string)
_TEXTS = tf.TensorSpec((None,), tf.string)


def register_tasks(
    name: str, files: Mapping[str, str], vocabulary: seqio.Vocabulary
) -> seqio.Task | seqio.Mixture:
    """Register the tasks of local files with SeqIO, and return the task or the mixture of them.

    A mixture draws its tasks in proportion to their records in the split "train".

    Args:
      name: the task or mixture of the package t5, such as "glue_cola_v002".
      files: split -> its files, see glue_records.find_local_tasks. The splits are "train" and
        "validation".
      vocabulary: the vocabulary of inputs and targets.

    Raises:
      UserError: there is no such task or file.
    """
    sources: dict[str, dict[str, LocalTask]] = {}  # name of a task -> split -> its file
    for split, data in files.items():
        for local in glue_records.find_local_tasks(f"task:{name}", data, split):
            sources.setdefault(local.local_name, {})[split] = local
    benchmark = ""
    for local_name, splits in sources.items():
        benchmark = next(iter(splits.values())).benchmark
        if local_name not in seqio.TaskRegistry.names():
            _register_task(local_name, splits, vocabulary)
    if len(sources) == 1:
        return seqio.TaskRegistry.get(next(iter(sources)))
    if benchmark not in seqio.MixtureRegistry.names():
        rates = [(local_name, _find_rate(splits)) for local_name, splits in sources.items()]
        seqio.MixtureRegistry.add(benchmark, rates)
    return seqio.MixtureRegistry.get(benchmark)


def _find_rate(splits: Mapping[str, LocalTask]) -> float:
    """Return the number of records of a task to train on; 1 if there is no file of them."""
    if "train" not in splits:
        return 1.0
    return float(sum(1 for _ in _select_rows("train", splits["train"])))


def _register_task(
    name: str, splits: Mapping[str, LocalTask], vocabulary: seqio.Vocabulary
) -> None:
    """Register the task of one or two files."""
    published = seqio_tasks.find_task(next(iter(splits.values())).task.seqio_name)
    feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(
            dataset_fn=functools.partial(_read_rows, splits=splits),
            splits=list(splits),
            caching_permitted=False,
        ),
        preprocessors=[
            step
            for step in published.preprocessors
            if not isinstance(step, seqio.CacheDatasetPlaceholder)
        ],
        output_features={"inputs": feature, "targets": feature},
        postprocess_fn=published.postprocess_fn,
        metric_fns=published.metric_fns,
    )


def _select_rows(split: str, local: LocalTask) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split, in the order of its file.

    WSC's task has the noun as its target, which only its true records have for an answer.
    """
    for row in glue_records.read_rows(local):
        if split != "train" or local.name != "wsc" or row["label"]:
            yield row


def _shuffle_rows(split: str, local: LocalTask, seed: int | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split in random order: files are often sorted by their labels."""
    rows = list(_select_rows(split, local))
    for number in np.random.default_rng(seed or 0).permutation(len(rows)):
        yield rows[number]


def _read_rows(
    split: str,
    shuffle_files: bool = False,
    seed: int | None = None,
    *,
    splits: Mapping[str, LocalTask],
) -> tf.data.Dataset:
    """Return the rows of a split. SeqIO calls this function."""
    local = splits[split]
    signature: dict[str, Any] = dict.fromkeys(local.task.fields, _TEXT)
    if local.name == "record":
        signature |= {"entities": _TEXTS, "answers": _TEXTS}
        signature["idx"] = {"passage": _INTEGER, "query": _INTEGER}
    else:
        is_number = not local.task.labels
        signature |= {"label": tf.TensorSpec((), tf.float32) if is_number else _INTEGER}
        signature["idx"] = _INTEGER
    if local.name == "multirc":
        signature["idx"] = {"paragraph": _INTEGER, "question": _INTEGER, "answer": _INTEGER}
    if local.name == "wsc":
        signature |= {"span1_index": _INTEGER, "span2_index": _INTEGER}
    read = functools.partial(_select_rows, split, local)
    if shuffle_files:
        read = functools.partial(_shuffle_rows, split, local, seed)
    return tf.data.Dataset.from_generator(
        evaluation_data.remember_errors(read), output_signature=signature
    )
