"""The metrics of an encoder's evaluation: of hidden tokens, of classes and of numbers.

T5X asks the model for predictions and for figures of each row, which SeqIO hands to a metric here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import seqio

from rosetta.data import labelled_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SMALLEST = 1e-30  # a probability of 0 would have no logarithm


def measure_targets(logits: Any, targets: Any, prefix: str) -> dict[str, Any]:
    """Return the loss, the right predictions and the number of the targets of each row.

    Args:
      logits: [batch, length, classes].
      targets: int32 [batch, length], 0 where there is none.
      prefix: what the names of the figures begin with.

    Returns:
      "loss", "correct" and "count", float32 [batch], each a sum over the row.
    """
    weights = (targets != 0).astype(jnp.float32)
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    losses = -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    correct = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
    return {
        f"{prefix}loss": jnp.sum(losses * weights, axis=-1),
        f"{prefix}correct": jnp.sum(correct * weights, axis=-1),
        f"{prefix}count": jnp.sum(weights, axis=-1),
    }


@flax.struct.dataclass
class _RowMetrics(seqio.metrics.Metric):
    """What all metrics of encoders are computed from.

    Attributes:
      model_output_type: what SeqIO asks the model for.
      predictions: the predictions of all rows, see EncoderModel.predict_batch_with_aux.
      figures: the figures of all rows, each [rows].
    """

    model_output_type: Any = seqio.metrics.ModelOutputType.PREDICTION_WITH_AUX
    predictions: Any = None
    figures: Any = None

    @classmethod
    def from_model_output(
        cls,
        inputs: Iterable[Mapping[str, Any]],
        model_output: Any,
        features: Mapping[str, Any],
        target_field_name: str = "targets",
        mask: Any = None,
        indices_2d: Any = None,
    ) -> _RowMetrics:
        """Return the metric of predictions and figures. The other arguments are not used."""
        del inputs, features, target_field_name, mask, indices_2d
        predictions, figures = model_output
        return cls(predictions=predictions, figures=figures)


class TokenMetrics(_RowMetrics):
    """The loss and the accuracy of hidden tokens, and of how the texts of a row belong together."""

    def compute(self) -> dict[str, float]:
        """Return the metrics by name; the accuracy in percent."""
        metrics = {}
        for prefix in ("", "sentence_"):
            if f"{prefix}count" in self.figures:
                sums = {
                    name: float(np.sum(self.figures[f"{prefix}{name}"], dtype=np.float64))
                    for name in ("loss", "correct", "count")
                }
                count = max(sums["count"], 1)
                metrics[f"{prefix}loss"] = sums["loss"] / count
                metrics[f"{prefix}accuracy"] = 100 * sums["correct"] / count
        return metrics


class ClassMetrics(_RowMetrics):
    """The loss and the accuracy of classes; of two classes also F1 and Matthews' correlation."""

    def compute(self) -> dict[str, float]:
        """Return the metrics by name; all but the loss in percent."""
        targets = np.asarray(self.figures["target"])
        probabilities = np.asarray(self.predictions, np.float64)
        labelled_records.check_finite(probabilities)
        right = probabilities[np.arange(len(targets)), targets]
        predicted = np.argmax(probabilities, axis=-1)
        metrics = {
            "loss": float(-np.mean(np.log(np.maximum(right, _SMALLEST)))),
            "accuracy": 100 * float(np.mean(predicted == targets)),
        }
        if probabilities.shape[1] == 2:
            # The second class is the positive one, as in GLUE.
            true_positives = int(np.sum((predicted == 1) & (targets == 1)))
            positive_count = int(np.sum(predicted == 1) + np.sum(targets == 1))
            metrics["f1"] = 100 * 2 * true_positives / max(positive_count, 1)
            # By definition, Matthews' correlation of a constant prediction is 0.
            metrics["matthews_corrcoef"] = _correlate(targets, predicted, of_constant=0.0)
        return metrics


class NumberMetrics(_RowMetrics):
    """The mean squared error of numbers, and Pearson's and Spearman's correlation."""

    def compute(self) -> dict[str, float]:
        """Return the metrics by name; the correlations in percent."""
        targets = np.asarray(self.figures["target"], np.float64)
        predicted = np.asarray(self.predictions, np.float64)[:, 0]
        labelled_records.check_finite(predicted)
        return {
            "loss": float(np.mean(np.square(predicted - targets))),
            "pearson_corrcoef": _correlate(targets, predicted),
            "spearman_corrcoef": _correlate(_rank(targets), _rank(predicted)),
        }


def _rank(values: Any) -> Any:
    """Return the ranks of values; equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _correlate(first: Any, second: Any, of_constant: float = math.nan) -> float:
    """Return the correlation of two arrays in percent; `of_constant` if one is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return of_constant
    return 100 * float(np.corrcoef(first, second)[0, 1])
