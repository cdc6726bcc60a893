"""The tiny GPT that the self-test trains with `python -m paxml.main`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from rosetta.pax.run import experiment_checks
from rosetta.pax.run.compilation_cache import cache_works
from rosetta.selftest import sample_text, tensorboard_events
from rosetta.selftest.workload import TrainingCommand, find_checkpoint_steps

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.selftest.workload import Workload

EXPERIMENT = "rosetta.pax.gpt.Tiny"


def choose_mesh(devices: int) -> list[int]:
    """Return the sizes of the mesh axes replica, data and model.

    The model axis has two devices if their number is even.
    """
    model = 2 if devices % 2 == 0 else 1
    return [1, devices // model, model]


@dataclass(frozen=True)
class Pax:
    """The self-test of Pax: the tiny experiment of rosetta/pax, for both lines of Pax.

    A line is the set of packages that a distribution shares: pax and pax-1.4 are lines of Pax.

    Attributes:
        framework: The name of the framework.
        packages: The packages whose modules must be importable.
    """

    framework: str = "pax"
    packages: tuple[str, ...] = ("praxis", "paxml")

    def write_data(self, workdir: Path) -> None:
        """Write the training text; see Workload."""
        sample_text.write_text(workdir / "train.txt")

    def make_command(
        self, workdir: Path, *, steps: int, devices: int, fp8: str = "off"
    ) -> TrainingCommand:
        """Return the training command; see Workload."""
        values: dict[str, object] = {
            "DATA": f"text:{workdir / 'train.txt'}",
            "MAX_STEPS": steps,
            "ICI_MESH_SHAPE": choose_mesh(devices),
            "ENABLE_TE": fp8 == "te",
            "ENABLE_FP8": fp8 != "off",
        }
        if fp8 != "off":
            values["FPROP_DTYPE"] = "bfloat16"
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
        # Every process compiles again, which takes a seventh of the time without optimization.
        flags += " --xla_backend_optimization_level=0"
        return TrainingCommand(argv, {"XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"})

    def find_fp8_problem(self) -> str:
        """Return why the JAX of this line cannot train in FP8; "" if it can."""
        return experiment_checks.find_switch_problem(version("jax"))

    def read_losses(self, workdir: Path) -> dict[int, float]:
        """Return the loss of each reported step; see Workload."""
        return tensorboard_events.read_scalars(workdir / "job" / "summaries" / "train", "loss")

    def list_checkpoint_steps(self, workdir: Path) -> list[int]:
        """Return the steps of the complete checkpoints; see Workload."""
        return find_checkpoint_steps(workdir.glob("job/checkpoints/*/"))


WORKLOAD: Workload = Pax()
