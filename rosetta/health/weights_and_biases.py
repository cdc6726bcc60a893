"""Send the scalars that TensorBoard gets to Weights & Biases, if WANDB_API_KEY is set.

No error of Weights & Biases ends the run, and the key is never printed.
"""

from __future__ import annotations

import hashlib
import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rosetta.core import log
from rosetta.core.secrets import Mask
from rosetta.core.variables.setting_values import read_setting
from rosetta.health.error_text import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

API_KEY_VARIABLE = "WANDB_API_KEY"


class WandbRun:
    """A run in Weights & Biases; it does nothing if no key is set.

    The run's id is derived from the folder, so a resumed run continues the same curves.

    Args:
      folder: of the run; its last part is the name of the run.
      environment: the variables, with the key.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self._mask, self._run = Mask(environment), None
        if not environment.get(API_KEY_VARIABLE):
            return
        if find_spec("wandb") is None:
            line = f"{API_KEY_VARIABLE} is set, and wandb is not installed: pip install wandb"
            log.warn(line)
            return
        name = folder.rstrip("/").rpartition("/")[2]
        run_id = hashlib.sha256(folder.encode()).hexdigest()[:16]
        self._run = self._call_safely(
            lambda: importlib.import_module("wandb").init(
                project=read_setting(environment, "WANDB_PROJECT"),
                name=name,
                id=run_id,
                resume="allow",
            )
        )

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send the scalars of a step."""
        run: Any = self._run
        if run is not None:
            named = {f"rosetta/{name}": value for name, value in scalars.items()}
            self._call_safely(lambda: run.log(named, step=step))

    def close(self) -> None:
        """Send what is left, and end the run there."""
        run: Any = self._run
        if run is not None:
            self._call_safely(run.finish)
            self._run = None

    def _call_safely(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns; warn and send nothing more if it raises an error."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 (no error of this service is worth a run)
            line = (
                f"Weights & Biases gets nothing any more: {type(error).__name__}: "
                f"{first_line(error)}"
            )
            log.warn(self._mask.mask_text(line))
            self._run = None
            return None
