"""Send the scalars that TensorBoard gets to Weights & Biases, if WANDB_API_KEY is set."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rosetta.core import log
from rosetta.core.variables.setting_values import read_setting
from rosetta.health.tracked_run import TrackedRun

if TYPE_CHECKING:
    from collections.abc import Mapping

API_KEY_VARIABLE = "WANDB_API_KEY"


class WandbRun(TrackedRun):
    """A run in Weights & Biases; it does nothing if no key is set. See TrackedRun."""

    service = "Weights & Biases"

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder, environment)
        if not environment.get(API_KEY_VARIABLE):
            return
        if find_spec("wandb") is None:
            line = f"{API_KEY_VARIABLE} is set, and wandb is not installed: pip install wandb"
            log.warn(line)
            return
        self._run = self._call_safely(
            lambda: importlib.import_module("wandb").init(
                project=read_setting(environment, "WANDB_PROJECT"),
                name=self._name,
                id=self._id,
                resume="allow",
            )
        )

    def _send(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send scalars by name."""
        self._run.log(scalars, step=step)

    def _finish(self) -> None:
        """End the run in the service."""
        self._run.finish()
