"""Report the metrics of answers: to the terminal, to progress.jsonl, and in the table at the end.

A gin file names MetricReport among the loggers of SeqIO's evaluator.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import jax
import seqio

from rosetta.health import progress, run_results
from rosetta.t5x import best_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVALUATION_FOLDER = "inference_eval"  # T5X's, in the folder of a run


class MetricReport(seqio.Logger):
    """Reports the metrics of a task when SeqIO has computed them.

    Args:
      output_dir: the folder of the metrics. It is in MODEL_DIR in training, and in OUTPUT_DIR in an
        evaluation.
    """

    def __init__(self, output_dir: str) -> None:
        super().__init__(output_dir)
        folder, name = os.path.split(output_dir.rstrip("/"))
        run_folder = folder if name == _EVALUATION_FOLDER else output_dir
        is_first = jax.process_index() == 0
        self._writer = progress.ProgressWriter(run_folder) if is_first else None

    def __call__(
        self,
        task_name: str,
        step: int | None,
        metrics: Mapping[str, Any],
        dataset: Any = None,
        inferences: Any = None,
        targets: Any = None,
    ) -> None:
        """Report the metrics that are numbers. The arguments are those of seqio.Logger."""
        del dataset, inferences, targets
        values = {
            name: float(metric.value)
            for name, metric in metrics.items()
            if isinstance(metric, seqio.metrics.Scalar)
        }
        if not values or self._writer is None:
            return
        progress.write_evaluation(self._writer, step or 0, task_name, values)
        run_results.add_metrics(task_name, values)
        if tracker := best_checkpoint.get_tracker():
            tracker.record(step or 0, task_name, values)
