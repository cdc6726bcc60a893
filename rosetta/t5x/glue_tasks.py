"""SeqIO tasks of GLUE and SuperGLUE over local files of JSON lines.

The texts, the postprocessors and the metrics are those of the tasks of the package t5. The data
comes from rosetta.data.glue_records, and the vocabulary is the run's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import seqio
import tensorflow as tf

from rosetta.data import glue_records
from rosetta.t5x import evaluation_data, seqio_tasks

if TYPE_CHECKING:
    from rosetta.data.glue_records import LocalTask

_INTEGER = tf.TensorSpec((), tf.int32)
_TEXT = tf.TensorSpec((), tf.string)
_TEXTS = tf.TensorSpec((None,), tf.string)


def register_tasks(
    name: str, data: str, vocabulary: seqio.Vocabulary
) -> seqio.Task | seqio.Mixture:
    """Register the tasks of local files with SeqIO, and return the task or the mixture of them.

    Args:
      name: the task or mixture of the package t5, such as "glue_cola_v002".
      data: the files, see glue_records.find_local_tasks.
      vocabulary: the vocabulary of inputs and targets.

    Raises:
      UserError: there is no such task or file.
    """
    local_tasks = glue_records.find_local_tasks(f"task:{name}", data)
    names = [local.local_name for local in local_tasks]
    for local in local_tasks:
        if local.local_name not in seqio.TaskRegistry.names():
            _register_task(local, vocabulary)
    if len(names) == 1:
        return seqio.TaskRegistry.get(names[0])
    benchmark = local_tasks[0].benchmark
    if benchmark not in seqio.MixtureRegistry.names():
        seqio.MixtureRegistry.add(benchmark, names, default_rate=1.0)
    return seqio.MixtureRegistry.get(benchmark)


def _register_task(local: LocalTask, vocabulary: seqio.Vocabulary) -> None:
    """Register the task of a file."""
    published = seqio_tasks.find_task(local.task.seqio_name)
    feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
    seqio.TaskRegistry.add(
        local.local_name,
        source=seqio.FunctionDataSource(
            dataset_fn=functools.partial(_read_rows, local=local),
            splits=["validation"],
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


def _read_rows(
    split: str, shuffle_files: bool = False, seed: int | None = None, *, local: LocalTask
) -> tf.data.Dataset:
    """Return the rows of a file, in its order. SeqIO calls this function."""
    del split, shuffle_files, seed
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
    read = evaluation_data.remember_errors(functools.partial(glue_records.read_rows, local))
    return tf.data.Dataset.from_generator(read, output_signature=signature)
