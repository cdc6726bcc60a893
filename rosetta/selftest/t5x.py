"""The tiny T5 that the selftest trains through `python -m t5x.train`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.selftest import sample_text, tensorboard_events
from rosetta.selftest.workload import TrainingCommand
from rosetta.t5x.run import gin_text

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.selftest.workload import Workload

GIN_FILES = ("rosetta/t5x/gin/t5_1_1/tiny.gin", "rosetta/t5x/gin/runs/pretrain.gin")
REPORT_EVERY = 5  # steps


@dataclass(frozen=True)
class T5X:
    """Workload over gin files in rosetta/t5x/gin."""

    framework: str = "t5x"
    packages: tuple[str, ...] = ("t5x",)

    def write_data(self, workdir: Path) -> None:
        sample_text.write_text(workdir / "train.txt")

    def make_command(self, workdir: Path, *, steps: int, devices: int) -> TrainingCommand:
        bindings: dict[str, object] = {
            "MODEL_DIR": str(workdir / "model"),
            "TRAIN_STEPS": steps,
            "DATA": f"text:{workdir / 'train.txt'}",
            "DTYPE": "float32",
            "TASK_FEATURE_LENGTHS": {"inputs": 64, "targets": 32},
            "BATCH_SIZE": 16,
            "LEARNING_RATE": 0.01,
            "WARMUP_STEPS": 5,
            "SCHEDULE_STEPS": 1000,  # the same rate at every step, however far a run goes
            "STATS_PERIOD": REPORT_EVERY,
            "NUM_PARTITIONS": 1 if devices % 2 else 2,
        }
        argv = [sys.executable, "-P", "-m", "t5x.train"]
        argv += [f"--gin_file={path}" for path in GIN_FILES]
        argv += [
            f"--gin.{name}={gin_text.format_literal(value)}" for name, value in bindings.items()
        ]
        return TrainingCommand(
            argv, {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        )

    def read_losses(self, workdir: Path) -> dict[int, float]:
        return tensorboard_events.read_scalars(
            workdir / "model" / "train", "loss_per_nonpadding_target_token"
        )

    def list_checkpoint_steps(self, workdir: Path) -> list[int]:
        found = (
            re.fullmatch(r"checkpoint_(\d+)", path.name)
            for path in workdir.glob("model/*/")
            if (path / "state").is_dir()
        )
        return sorted(int(match[1]) for match in found if match)


WORKLOAD: Workload = T5X()
