"""Send the scalars that TensorBoard gets to a service that keeps runs.

No error of a service ends the run, and no secret of the environment is printed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from rosetta.core import log
from rosetta.core.secrets import Mask
from rosetta.health.error_text import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class TrackedRun:
    """A run in a service. Without `_run`, it does nothing.

    A subclass sets `service`, the service's name, begins the run, and sends and ends it.

    Args:
      folder: of the run; its last part is the name of the run.
      environment: the variables.
    """

    service = ""

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self._mask = Mask(environment)
        self._name = folder.rstrip("/").rpartition("/")[2]
        # A resumed run has the same folder, and continues the same curves.
        self._id = hashlib.sha256(folder.encode()).hexdigest()[:16]
        self._run: Any = None

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send the scalars of a step."""
        if self._run is not None:
            named = {f"rosetta/{name}": value for name, value in scalars.items()}
            self._call_safely(lambda: self._send(step, named))

    def close(self) -> None:
        """Send what is left, and end the run there."""
        if self._run is not None:
            self._call_safely(self._finish)
            self._run = None

    def _send(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send scalars by name."""
        raise NotImplementedError

    def _finish(self) -> None:
        """End the run in the service."""
        raise NotImplementedError

    def _call_safely(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns; warn and send nothing more if it raises an error."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 (no error of a service is worth a run)
            line = (
                f"{self.service} gets nothing any more: {type(error).__name__}: {first_line(error)}"
            )
            log.warn(self._mask.mask_text(line))
            self._run = None
            return None
