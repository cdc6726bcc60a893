"""SeqIO tasks over local text files, made where gin asks for them: importing this module registers none."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import seqio
import tensorflow as tf
from t5.data import preprocessors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_made_from: dict[str, tuple[object, ...]] = {}


def _lines(lines: tf.data.Dataset) -> tf.data.Dataset:
    return lines.map(lambda line: {"inputs": "", "targets": line}, num_parallel_calls=tf.data.AUTOTUNE)


def span_corruption(
    files: Mapping[str, str | Sequence[str]],
    vocabulary: seqio.Vocabulary,
    *,
    name: str = "span_corruption",
    mean_noise_span_length: float = 3.0,
    noise_density: float = 0.15,
) -> seqio.Task:
    """Return T5's pretraining task over text, registered under `name`; the same one when called again for the same.

    Args:
      files: split ("train", "validation") -> path or glob of UTF-8 text files, one example a line.
      vocabulary: must have `extra_ids` for the sentinels.
      name: what the task is called in logs and TensorBoard.
      mean_noise_span_length: tokens a masked span has on average (20 for bytes, 3 for SentencePiece).
      noise_density: share of the tokens that is masked.
    """
    made_from = (dict(files), mean_noise_span_length, noise_density)
    if name in seqio.TaskRegistry.names():
        # Gin calls this once for each data set of a run, and T5X looks evaluation's up by name.
        if _made_from.get(name) != made_from:
            raise ValueError(f"a task named {name} was made from something else: give this one another name")
        return seqio.TaskRegistry.get(name)
    feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
    seqio.TaskRegistry.add(
        name,
        source=seqio.TextLineDataSource(split_to_filepattern=dict(files)),
        preprocessors=[
            _lines,
            seqio.preprocessors.tokenize,
            functools.partial(
                preprocessors.span_corruption,
                mean_noise_span_length=mean_noise_span_length,
                noise_density=noise_density,
            ),
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={"inputs": feature, "targets": feature},
        metric_fns=[],
    )
    _made_from[name] = made_from
    return seqio.TaskRegistry.get(name)
