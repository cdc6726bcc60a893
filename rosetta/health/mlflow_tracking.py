"""Send the scalars that TensorBoard gets to MLflow, if MLFLOW_TRACKING_URI is set."""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rosetta.core import log
from rosetta.core.variables.setting_values import read_setting
from rosetta.health.tracked_run import TrackedRun

if TYPE_CHECKING:
    from collections.abc import Mapping

URI_VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"
# MLflow waits for minutes by default, and the end of a run waits for its last report.
REQUEST_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_ID_TAG = "rosetta.id"


class MlflowRun(TrackedRun):
    """A run in MLflow; it does nothing if MLFLOW_TRACKING_URI is not set. See TrackedRun.

    The first report begins the run, in the thread of the reports, so that no step waits for a
    server that does not answer.
    """

    service = "MLflow"

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder, environment)
        self._mlflow: Any = None
        self._uri = environment.get(URI_VARIABLE, "")  # "" after the run began
        self._experiment = read_setting(environment, EXPERIMENT_VARIABLE)
        if self._uri and find_spec("mlflow") is None:
            log.warn(
                f"{URI_VARIABLE} is set, and mlflow is not installed: pip install mlflow-skinny"
            )
            self._uri = ""

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send the scalars of a step."""
        if self._uri:
            self._run = self._call_safely(self._begin)
            self._uri = ""
        super().log_scalars(step, scalars)

    def _begin(self) -> Any:
        """Return the run with this id in the experiment, or a new run."""
        for name, value in REQUEST_LIMITS.items():
            os.environ.setdefault(name, value)
        self._mlflow = importlib.import_module("mlflow")
        self._mlflow.set_tracking_uri(self._uri)
        self._mlflow.set_experiment(self._experiment)
        earlier = self._mlflow.search_runs(
            filter_string=f"tags.`{_ID_TAG}` = '{self._id}'", max_results=1, output_format="list"
        )
        return self._mlflow.start_run(
            run_id=earlier[0].info.run_id if earlier else None,
            run_name=self._name,
            tags={_ID_TAG: self._id},
        )

    def _send(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send scalars by name."""
        self._mlflow.log_metrics(dict(scalars), step=step, run_id=self._run.info.run_id)

    def _finish(self) -> None:
        """End the run in the service."""
        # MLflow's end_run ends the run of its own thread, and another thread began this run.
        self._mlflow.MlflowClient().set_terminated(self._run.info.run_id)
