"""The tiny T5 that the selftest trains through `python -m t5x.train`."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.selftest import events, text
from rosetta.selftest.workload import Phase

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.selftest.workload import Workload

GIN = ("rosetta/t5x/gin/tiny.gin", "rosetta/t5x/gin/pretrain_text.gin")
REPORT_EVERY = 5  # steps


def literal(value: object) -> str:
    """Return a gin literal for a string, number, None, or a dict or tuple of them."""
    if isinstance(value, str):
        # JSON's escapes are Python's, which gin reads; its raw surrogates are not, but a path has none.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    return repr(value)


@dataclass(frozen=True)
class T5X:
    """Workload over gin files in rosetta/t5x/gin."""

    framework: str = "t5x"
    packages: tuple[str, ...] = ("t5x",)

    def prepare(self, workdir: Path) -> None:
        text.write_text(workdir / "train.txt")

    def train(self, workdir: Path, *, steps: int, devices: int) -> Phase:
        bindings: dict[str, object] = {
            "MODEL_DIR": str(workdir / "model"),
            "TRAIN_STEPS": steps,
            "TEXT_FILES": {"train": str(workdir / "train.txt")},
            "STATS_PERIOD": REPORT_EVERY,
        }
        if devices % 2 == 0:
            # On CPU T5X makes all devices the model axis whatever num_partitions says; a submesh of two gives both axes.
            bindings["partitioning.PjitPartitioner.num_partitions"] = None
            bindings["partitioning.PjitPartitioner.model_parallel_submesh"] = (1, 1, 1, 2)
        argv = [sys.executable, "-P", "-m", "t5x.train"]
        argv += [f"--gin_file={path}" for path in GIN]
        argv += [f"--gin.{name}={literal(value)}" for name, value in bindings.items()]
        return Phase(argv, {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"})

    def losses(self, workdir: Path) -> dict[int, float]:
        return events.scalars(workdir / "model" / "train", "loss_per_nonpadding_target_token")

    def checkpoint_steps(self, workdir: Path) -> list[int]:
        found = (
            re.fullmatch(r"checkpoint_(\d+)", path.name)
            for path in workdir.glob("model/*/")
            if (path / "state").is_dir()
        )
        return sorted(int(match[1]) for match in found if match)


WORKLOAD: Workload = T5X()
