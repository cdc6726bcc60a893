"""What the self-test needs from a framework: a tiny model to train, and where its results are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True)
class TrainingCommand:
    """The command of one training process.

    Attributes:
        argv: The program and its arguments.
        env: Environment variables to add to those of every child process.
    """

    argv: list[str]
    env: dict[str, str]


class Workload(Protocol):
    """A framework's tiny model, and how to train it."""

    @property
    def framework(self) -> str:
        """The name of the framework, "t5x" or "pax"."""
        ...

    @property
    def packages(self) -> tuple[str, ...]:
        """The top-level packages of the framework; every module of them must be importable."""
        ...

    def write_data(self, workdir: Path) -> None:
        """Write the training text into a folder that exists. The text is always the same."""
        ...

    def make_command(
        self, workdir: Path, *, steps: int, devices: int, fp8: str = "off"
    ) -> TrainingCommand:
        """Return the command that trains up to a step, from the newest checkpoint if there is one.

        Args:
            workdir: The folder of the training text, the checkpoints and the events.
            steps: The step at which the training ends, counted from the very first step.
            devices: The number of devices; on the CPU, virtual ones.
            fp8: What computes the projections in FP8: "off", "xla", or "te" for Transformer
                Engine, which then computes attention too.
        """
        ...

    def find_fp8_problem(self) -> str:
        """Return why no version of this environment's JAX can train in FP8; "" if it can."""
        ...

    def read_losses(self, workdir: Path) -> dict[int, float]:
        """Return the training loss of each reported step so far.

        It comes from the TensorBoard events that the framework wrote.
        """
        ...

    def list_checkpoint_steps(self, workdir: Path) -> list[int]:
        """Return the steps of the complete checkpoints, ascending."""
        ...


def find_checkpoint_steps(folders: Iterable[Path]) -> list[int]:
    """Return the steps of the folders checkpoint_STEP that have a folder `state`, ascending."""
    steps = []
    for folder in folders:
        match = re.fullmatch(r"checkpoint_(\d+)", folder.name)
        if match and (folder / "state").is_dir():
            steps.append(int(match[1]))
    return sorted(steps)
