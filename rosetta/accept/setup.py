"""What the processes of an acceptance are told: the machine, and what to measure on it."""

from __future__ import annotations

import importlib
import importlib.util
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rosetta.accept.records import Measurement, SkipCase, write_json
from rosetta.core import acceptance, gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rosetta.core.gpus import Feature, Gpu

FILE = "setup.json"
TURN_SECONDS = 0.03  # how long a function keeps the device busy in one turn
GPU_PLATFORM = "gpu"  # as JAX names it


@dataclass(frozen=True)
class Machine:
    """The machine that is measured. The field names are keys of the file of results.

    Attributes:
        gpu: The kind of device, as JAX names it.
        platform: "gpu" or "cpu".
        capability: The compute capability; 0.0 for a CPU.
        devices: The number of devices.
        jax: The version of JAX.
        jaxlib: The version of jaxlib.
        python: The version of Python.
    """

    gpu: str
    platform: str
    capability: str
    devices: int
    jax: str
    jaxlib: str
    python: str


@dataclass(frozen=True)
class Setup:
    """What to measure.

    Attributes:
        machine: The machine.
        tiny: Whether all shapes are tiny.
        plans: Files with predictions, see rosetta.accept.predictions.
        jobs: How many programs are compiled at the same time.
        dumps_autotuning: Whether XLA takes the flag that dumps results of autotuning.
    """

    machine: Machine
    tiny: bool
    plans: tuple[str, ...]
    jobs: int
    dumps_autotuning: bool

    @property
    def on_gpu(self) -> bool:
        """Whether the devices are GPUs."""
        return self.machine.platform == GPU_PLATFORM

    @property
    def patience(self) -> int:
        """The factor of all time limits."""
        return acceptance.TINY_PATIENCE if self.tiny else 1

    @property
    def turn_seconds(self) -> float:
        """How long a function of rosetta.bench.device_timing runs in one turn."""
        return 0.0 if self.tiny else TURN_SECONDS

    def find_gpu(self) -> Gpu | None:
        """Return the GPU, if the table of GPUs has it."""
        return gpus.find_gpu(self.machine.gpu)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability."""
        major, minor = self.machine.capability.split(".")
        return int(major), int(minor)

    def supports(self, feature: Feature) -> bool:
        """Return whether the GPU has a feature."""
        return feature.supported_by(self.capability)


@dataclass(frozen=True)
class Case:
    """A part of a row that is measured by itself.

    Attributes:
        name: Its name.
        measure: Measures it. The argument has the reason for each job of `compile_jobs` that
            failed.
        compile_jobs: Programs that other processes compile first, all at the same time, into JAX's
            cache of compiled programs.
    """

    name: str
    measure: Callable[[Mapping[str, str]], Measurement]
    compile_jobs: Mapping[str, Callable[[], None]]


def make_case(name: str, measure: Callable[[], Measurement]) -> Case:
    """Return a case that compiles nothing ahead."""
    return Case(name, lambda _: measure(), {})


def require_packages(*names: str) -> None:
    """Skip a case unless these Python packages are installed.

    Raises:
        SkipCase: One is missing.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise SkipCase(f"the Python package {name} is not installed")


def load_module(name: str, *packages: str) -> Any:
    """Return a module of rosetta that needs packages which are not everywhere.

    Args:
        name: The name of the module.
        packages: The packages.

    Raises:
        SkipCase: A package is missing.
    """
    require_packages(*packages)
    return importlib.import_module(name)


def write_setup(path: Path, setup: Setup) -> None:
    """Write the setup for the processes."""
    write_json(path, asdict(setup))


def read_setup(path: Path) -> Setup:
    """Return the setup that `write_setup` wrote."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    machine = Machine(**document.pop("machine"))
    return Setup(machine=machine, **{**document, "plans": tuple(document["plans"])})
