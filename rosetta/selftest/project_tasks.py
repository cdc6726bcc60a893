"""SeqIO tasks for the training steps of the projects built on T5X.

`text` has pairs of sentences as bytes, `spectrogram` has sequences of random frames with tokens.
The examples are the same on every machine, and need no download.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import seqio
import tensorflow as tf

from rosetta.selftest import sample_text

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = "rosetta_project_text"
SPECTROGRAMS = "rosetta_project_spectrograms"
EXAMPLES = 256
FRAMES, BINS, TOKENS = 32, 512, 16  # BINS is what MT3's spectrograms have


def _make_text(split: str, shuffle_files: bool = False, seed: int | None = None) -> tf.data.Dataset:
    """Return examples whose `targets` is the sentence after `inputs`."""
    del split, shuffle_files, seed
    sentences = list(sample_text.generate_sentences(2 * EXAMPLES, seed=0))
    return tf.data.Dataset.from_tensor_slices(
        {"inputs": sentences[0::2], "targets": sentences[1::2]}
    )


def _make_spectrograms(
    split: str, shuffle_files: bool = False, seed: int | None = None
) -> tf.data.Dataset:
    """Return examples with random frames and random tokens."""
    del split, shuffle_files, seed
    random = np.random.default_rng(0)
    frames = random.standard_normal((EXAMPLES, FRAMES, BINS), dtype=np.float32)
    tokens = random.integers(3, 100, (EXAMPLES, TOKENS), dtype=np.int32)
    return tf.data.Dataset.from_tensor_slices({"inputs": frames, "targets": tokens})


def _add_task(
    name: str, make: Any, preprocessors: Sequence[Any], features: dict[str, seqio.Feature]
) -> None:
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(make, splits=("train", "validation")),
        preprocessors=preprocessors,
        output_features=features,
        metric_fns=[],
    )


_byte_feature = functools.partial(seqio.Feature, seqio.ByteVocabulary(), add_eos=True)
_add_task(
    TEXT,
    _make_text,
    (seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim),
    {"inputs": _byte_feature(), "targets": _byte_feature()},
)
_add_task(
    SPECTROGRAMS,
    _make_spectrograms,
    (),
    {
        "inputs": seqio.ContinuousFeature(dtype=tf.float32, rank=2),
        "targets": seqio.Feature(seqio.PassThroughVocabulary(100), add_eos=False),
    },
)
