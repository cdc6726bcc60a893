"""Send the scalars that TensorBoard gets to MLflow, if MLFLOW_TRACKING_URI is set."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import MISSING, UserError
from rosetta.core.variables.setting_values import read_setting
from rosetta.health.tracked_run import TrackedRun

if TYPE_CHECKING:
    from collections.abc import Mapping

URI_VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"
_ID_TAG = "rosetta.id"


def check_installed(environment: Mapping[str, str]) -> None:
    """Check that MLflow is installed if a run is to report to it.

    Raises:
      UserError: MLFLOW_TRACKING_URI is set, and MLflow is not installed.
    """
    if environment.get(URI_VARIABLE) and find_spec("mlflow") is None:
        raise UserError(
            "the package mlflow is not installed",
            URI_VARIABLE,
            "install it (pip install mlflow-skinny), or unset the variable",
            kind=MISSING,
        )


class MlflowRun(TrackedRun):
    """A run in MLflow; it does nothing if MLFLOW_TRACKING_URI is not set. See TrackedRun."""

    service = "MLflow"

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder, environment)
        self._mlflow: Any = None
        if environment.get(URI_VARIABLE):
            check_installed(environment)
            experiment = read_setting(environment, EXPERIMENT_VARIABLE)
            self._run = self._call_safely(
                lambda: self._begin(environment[URI_VARIABLE], experiment)
            )

    def _begin(self, uri: str, experiment: str) -> Any:
        """Return the run with this id in the experiment, or a new run."""
        self._mlflow = importlib.import_module("mlflow")
        self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment(experiment)
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
        self._mlflow.log_metrics(dict(scalars), step=step)

    def _finish(self) -> None:
        """End the run in the service."""
        self._mlflow.end_run()
