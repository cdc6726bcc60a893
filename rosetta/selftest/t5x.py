"""The tiny T5 that the self-test trains with `python -m t5x.train`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.selftest import sample_text, tensorboard_events
from rosetta.selftest.workload import TrainingCommand, find_checkpoint_steps
from rosetta.t5x.run import gin_text

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.selftest.workload import Workload

GIN_FILES = ("rosetta/t5x/gin/t5_1_1/tiny.gin", "rosetta/t5x/gin/runs/pretrain.gin")
REPORT_EVERY = 5  # steps between two reports of the loss


@dataclass(frozen=True)
class T5X:
    """The self-test of T5X: gin files of rosetta/t5x/gin.

    Attributes:
        framework: The name of the framework.
        packages: The packages whose modules must be importable.
    """

    framework: str = "t5x"
    packages: tuple[str, ...] = ("t5x",)

    def write_data(self, workdir: Path) -> None:
        """Write the training text; see Workload."""
        sample_text.write_text(workdir / "train.txt")

    def make_command(
        self, workdir: Path, *, steps: int, devices: int, fp8: str = "off"
    ) -> TrainingCommand:
        """Return the training command; see Workload."""
        bindings: dict[str, object] = {
            "MODEL_DIR": str(workdir / "model"),
            "TRAIN_STEPS": steps,
            "DATA": f"text:{workdir / 'train.txt'}",
            "DTYPE": "float32" if fp8 == "off" else "bfloat16",
            "TASK_FEATURE_LENGTHS": {"inputs": 64, "targets": 32},
            "BATCH_SIZE": 16,
            "LEARNING_RATE": 0.01,
            "WARMUP_STEPS": 5,
            "SCHEDULE_STEPS": 1000,  # so that both processes have the same rate
            "STATS_PERIOD": REPORT_EVERY,
            "NUM_PARTITIONS": 1 if devices % 2 else 2,
            "network.T5Config.fp8": fp8,
            "network.T5Config.attention": "te" if fp8 == "te" else "xla",
        }
        argv = [sys.executable, "-P", "-m", "t5x.train"]
        argv += [f"--gin_file={path}" for path in GIN_FILES]
        argv += [
            f"--gin.{name}={gin_text.format_literal(value)}" for name, value in bindings.items()
        ]
        return TrainingCommand(
            argv, {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        )

    def find_fp8_problem(self) -> str:
        """Return "": every line of T5X has a JAX with FP8."""
        return ""

    def read_losses(self, workdir: Path) -> dict[int, float]:
        """Return the loss of each reported step; see Workload."""
        return tensorboard_events.read_scalars(
            workdir / "model" / "train", "loss_per_nonpadding_target_token"
        )

    def list_checkpoint_steps(self, workdir: Path) -> list[int]:
        """Return the steps of the complete checkpoints; see Workload."""
        return find_checkpoint_steps(workdir.glob("model/*/"))


WORKLOAD: Workload = T5X()
