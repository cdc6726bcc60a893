"""The tiny GPT that the selftest trains through `python -m paxml.main`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from rosetta.pax.run.compilation_cache import cache_works
from rosetta.selftest import sample_text, tensorboard_events
from rosetta.selftest.workload import TrainingCommand

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.selftest.workload import Workload

EXPERIMENT = "rosetta.pax.gpt.Tiny"


def choose_mesh(devices: int) -> list[int]:
    """Return [replica, data, model], with a model axis of two where the devices allow one."""
    return [1, devices // 2, 2] if devices % 2 == 0 else [1, devices, 1]


@dataclass(frozen=True)
class Pax:
    """Workload over an experiment in rosetta/pax; the same for both lines of Pax."""

    framework: str = "pax"
    packages: tuple[str, ...] = ("praxis", "paxml")

    def write_data(self, workdir: Path) -> None:
        sample_text.write_text(workdir / "train.txt")

    def make_command(self, workdir: Path, *, steps: int, devices: int) -> TrainingCommand:
        values: dict[str, object] = {
            "DATA": f"text:{workdir / 'train.txt'}",
            "MAX_STEPS": steps,
            "ICI_MESH_SHAPE": choose_mesh(devices),
        }
        argv = [
            sys.executable,
            "-P",
            "-m",
            "paxml.main",
            f"--fdl_config={EXPERIMENT}",
            f"--job_log_dir={workdir / 'job'}",
        ]
        argv += [f"--fdl.{name}={value!r}" for name, value in values.items()]
        flags = f"--xla_force_host_platform_device_count={devices}"
        if cache_works(version("jax")):
            return TrainingCommand(argv, {"XLA_FLAGS": flags})
        # Every process compiles anew, which takes a seventh of the time when it need not be fast
        # code.
        flags += " --xla_backend_optimization_level=0"
        return TrainingCommand(argv, {"XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"})

    def read_losses(self, workdir: Path) -> dict[int, float]:
        return tensorboard_events.read_scalars(workdir / "job" / "summaries" / "train", "loss")

    def list_checkpoint_steps(self, workdir: Path) -> list[int]:
        found = (
            re.fullmatch(r"checkpoint_(\d+)", path.name)
            for path in workdir.glob("job/checkpoints/*/")
            if (path / "state").is_dir()
        )
        return sorted(int(match[1]) for match in found if match)


WORKLOAD: Workload = Pax()
