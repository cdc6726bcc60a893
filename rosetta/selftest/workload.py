"""What the selftest asks of a framework: how to train a tiny model with it, and where it left its
results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class TrainingCommand:
    """One process to run."""

    argv: list[str]
    env: dict[str, str]  # added to the caller's own


class Workload(Protocol):
    """A framework's tiny model."""

    @property
    def framework(self) -> str:
        """`t5x` or `pax`."""
        ...

    @property
    def packages(self) -> tuple[str, ...]:
        """The top-level packages the distribution ships, whose every module must import."""
        ...

    def write_data(self, workdir: Path) -> None:
        """Write the text to train on into `workdir` (made by the caller); the same text every
        time.
        """
        ...

    def make_command(self, workdir: Path, *, steps: int, devices: int) -> TrainingCommand:
        """Return the process that trains up to step `steps` in all, from the newest checkpoint in
        `workdir` if any.
        """
        ...

    def read_losses(self, workdir: Path) -> dict[int, float]:
        """Return step -> training loss, from the TensorBoard events that the framework itself wrote
        so far.
        """
        ...

    def list_checkpoint_steps(self, workdir: Path) -> list[int]:
        """Return the steps of the complete checkpoints in `workdir`, ascending."""
        ...
