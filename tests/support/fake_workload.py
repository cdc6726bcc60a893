"""A workload of the self-test whose trainer is tests/support/fake_trainer.py."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from rosetta.selftest import tensorboard_events
from rosetta.selftest.workload import TrainingCommand

TRAINER = Path(__file__).with_name("fake_trainer.py")


@dataclass(frozen=True)
class FakeWorkload:
    """A workload that trains nothing.

    Attributes:
        fault: The fault of the trainer, "none" for none.
        fp8_problem: What `find_fp8_problem` returns.
    """

    fault: str
    framework: str = "fake"
    packages: tuple[str, ...] = ()
    fp8_problem: str = ""

    def write_data(self, workdir: Path) -> None:
        (workdir / "prepared").touch()

    def make_command(
        self, workdir: Path, *, steps: int, devices: int, fp8: str = "off"
    ) -> TrainingCommand:
        assert (workdir / "prepared").exists()
        argv = [sys.executable, str(TRAINER), str(workdir), str(steps), self.fault]
        return TrainingCommand(
            argv,
            {
                "FAKE_DEVICES": str(devices),
                "FAKE_FP8": fp8,
                "PYTHONPATH": str(TRAINER.parents[2]),
            },
        )

    def find_fp8_problem(self) -> str:
        return self.fp8_problem

    def read_losses(self, workdir: Path) -> dict[int, float]:
        return tensorboard_events.read_scalars(workdir / "events", "loss")

    def list_checkpoint_steps(self, workdir: Path) -> list[int]:
        return sorted(int(path.name[11:]) for path in workdir.glob("checkpoint_*"))
