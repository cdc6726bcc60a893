"""SeqIO's feature converters for encoders, which evaluation during training reads rows with.

They make what rosetta.data.seqio_features.make_encoder_features makes for training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import seqio
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPEC = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)


class LabelFeatureConverter(seqio.FeatureConverter):
    """Features of rows with a label: the tokens of a text, and one target."""

    TASK_FEATURES: ClassVar[Any] = {"inputs": _SPEC, "targets": _SPEC}
    MODEL_FEATURES: ClassVar[Any] = dict.fromkeys(
        ("encoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"), _SPEC
    )
    PACKING_FEATURE_DTYPES: ClassVar[Any] = {}

    def _convert_features(
        self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
    ) -> tf.data.Dataset:
        """Return a data set of the model's features."""
        padded = seqio.trim_and_pad_dataset(ds, task_feature_lengths)
        return padded.map(self._convert_row, num_parallel_calls=tf.data.experimental.AUTOTUNE)

    def _convert_row(self, row: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the features of a row."""
        return _make_features(row["inputs"], row["targets"])

    def get_model_feature_lengths(
        self, task_feature_lengths: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the length of each feature of the model."""
        return {
            "encoder_input_tokens": task_feature_lengths["inputs"],
            "decoder_target_tokens": task_feature_lengths["targets"],
            "decoder_loss_weights": task_feature_lengths["targets"],
        }


class MaskedFeatureConverter(LabelFeatureConverter):
    """Features of masked language modelling. The first target is the label of a pair of texts."""

    MODEL_FEATURES: ClassVar[Any] = {
        **LabelFeatureConverter.MODEL_FEATURES,
        "sentence_labels": _SPEC,
    }

    def _convert_row(self, row: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the features of a row."""
        targets = row["targets"]
        tokens = tf.concat([tf.zeros_like(targets[:1]), targets[1:]], axis=0)
        return {**_make_features(row["inputs"], tokens), "sentence_labels": targets[:1]}

    def get_model_feature_lengths(
        self, task_feature_lengths: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the length of each feature of the model."""
        return {**super().get_model_feature_lengths(task_feature_lengths), "sentence_labels": 1}


def _make_features(inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the features that all encoders have."""
    return {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_loss_weights": tf.cast(targets != 0, tf.int32),
    }
