"""Weights & Biases, where WANDB_API_KEY is set: the scalars that TensorBoard gets.

What goes wrong in it ends no run, and no key is printed.
"""

from __future__ import annotations

import hashlib
import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rosetta.core import log
from rosetta.core.secrets import Mask
from rosetta.core.variables.setting_values import read_setting
from rosetta.health import watchdog

if TYPE_CHECKING:
    from collections.abc import Mapping

API_KEY_VARIABLE = "WANDB_API_KEY"


class WandbRun:
    """A run there, by the folder's name, which goes on where the run does.

    Does nothing where no key is set.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self._mask, self._run = Mask(environment), None
        if not environment.get(API_KEY_VARIABLE):
            return
        if find_spec("wandb") is None:
            line = f"{API_KEY_VARIABLE} is set, and wandb is not installed: pip install wandb"
            log.warn(line, terminal=True)
            return
        name = folder.rstrip("/").rpartition("/")[2]
        known = hashlib.sha256(folder.encode()).hexdigest()[:16]
        self._run = self._quietly(
            lambda: importlib.import_module("wandb").init(
                project=read_setting(environment, "WANDB_PROJECT"),
                name=name,
                id=known,
                resume="allow",
            )
        )

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Give it the scalars of a step."""
        run: Any = self._run
        if run is not None:
            self._quietly(
                lambda: run.log(
                    {f"rosetta/{name}": value for name, value in scalars.items()}, step=step
                )
            )

    def close(self) -> None:
        """Have it send what is left."""
        run: Any = self._run
        if run is not None:
            self._quietly(run.finish)
            self._run = None

    def _quietly(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 (it is not worth a run)
            line = (
                f"Weights & Biases gets nothing any more: {type(error).__name__}: "
                f"{watchdog.first_line(error)}"
            )
            log.warn(self._mask.mask_text(line), terminal=True)
            self._run = None
            return None
