"""The machine that the checks of the doctor examine: its files, variables, GPUs and packages.

The checks read everything through a Machine, so that a test can replace all of it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import environment_info, lock_record, system_queries
from rosetta.core.errors import UserError
from rosetta.core.gpu_query import (
    UNKNOWN_CAPABILITY,
    DetectedGpu,
    parse_capability,
    select_visible_gpus,
)
from rosetta.core.value_parsing import asks_for_cpu, read_truth_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rosetta.core.system_queries import CommandResult, FileSystemSpace

_LONGEST_FILE = 1 << 20  # bytes: no file that the checks read is longer
_GPU_FIELDS = "name,compute_cap,driver_version,memory.total,memory.used"
_CONTAINER_FILES = (
    ("/.dockerenv", "docker"),
    ("/run/.containerenv", "podman"),
    ("/.singularity.d", "apptainer"),
)


@dataclass(frozen=True)
class NvidiaSmiReport:
    """The answer of nvidia-smi.

    Attributes:
      gpus: The GPUs of the machine.
      driver: The version of the driver.
      used: For each GPU, the share of its memory that is in use, from 0 to 1.
      failure: Why nvidia-smi failed, else "".
    """

    gpus: tuple[DetectedGpu, ...] = ()
    driver: str = ""
    used: tuple[float, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class Machine:
    """A machine, and the baked environment on it if there is one.

    Attributes:
      root: The folder that has /proc, /sys and /dev.
      environment: The variables of the run.
      quick: Run no command, ask no name server, and write no file.
      given_gpus: The GPUs, if the caller has detected them already.
      baked: Whether this Python is that of a baked environment.
      record: The lock record (lock.json) of the environment.
      pinned: Package -> version in the environment's constraints.txt.
      issues: The known issues (known_issues.json) of the environment.
      installed: Package -> installed versions, the one that Python imports first.
      run_command: See rosetta.core.system_queries, also for the functions below.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    quick: bool = False
    given_gpus: Sequence[DetectedGpu] | None = None
    baked: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    issues: Sequence[Mapping[str, Any]] = ()
    installed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    run_command: Callable[[Sequence[str], float], CommandResult | None] = system_queries.run_command
    resolve_host: Callable[[str], list[str]] = system_queries.resolve_host
    query_driver_cuda_version: Callable[[], int | None] = system_queries.query_driver_cuda_version
    query_free_space: Callable[[Path], FileSystemSpace | None] = system_queries.query_free_space
    probe_folder: Callable[[Path], float] = system_queries.probe_folder
    explain_refused_flags: Callable[[Sequence[str]], str] = system_queries.explain_refused_flags

    def read_text(self, path: str) -> str:
        """Return the text of a file below the root; "" if it cannot be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(_LONGEST_FILE).decode(errors="replace").strip()
        except OSError:
            return ""

    def find_paths(self, pattern: str) -> list[str]:
        """Return the paths that match a glob pattern, without the root."""
        try:
            return sorted(
                f"/{path.relative_to(self.root)}" for path in self.root.glob(pattern.lstrip("/"))
            )
        except OSError:
            return []

    def list_folder(self, folder: str) -> list[str]:
        """Return the names in a folder below the root; empty if it cannot be read."""
        try:
            return os.listdir(self.root / folder.lstrip("/"))
        except (OSError, ValueError):
            return []

    def path_exists(self, path: str) -> bool:
        """Return whether there is a file or folder of this path below the root."""
        # Path.exists raises an error if a folder cannot be entered.
        return os.path.exists(self.root / path.lstrip("/"))

    def is_on(self, name: str) -> bool:
        """Return whether a variable is on; a value that is not valid counts as off."""
        try:
            return read_truth_value(self.environment, name)
        except UserError:
            return False

    def find_version(self, package: str) -> str | None:
        """Return the version of a package that Python would import; None if it is missing."""
        return next(iter(self.installed.get(package, ())), None)

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the user asks for a run on the CPU."""
        return asks_for_cpu(self.environment.get("JAX_PLATFORMS", ""))

    @cached_property
    def cuda(self) -> int | None:
        """The major version of CUDA that this environment is for; None if it is for the CPU."""
        recorded = re.fullmatch(r"cuda(\d{1,3})", str(self.record.get("accelerator") or ""))
        if recorded:
            return int(recorded[1])
        plugins = re.findall(r"jax-cuda(\d+)-plugin", " ".join(self.installed))
        return int(plugins[0]) if plugins else None

    @cached_property
    def nvidia_smi(self) -> NvidiaSmiReport | None:
        """The answer of nvidia-smi; None if it was not run, or cannot be."""
        if self.quick:
            return None
        argv = ["nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
        result = self.run_command(argv, 60)
        return None if result is None else _parse_nvidia_smi(result)

    @cached_property
    def driver(self) -> str:
        """The version of the NVIDIA driver; "" if there is none."""
        loaded = re.search(
            r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)",
            self.read_text("/proc/driver/nvidia/version"),
        )
        if loaded:
            return loaded[1]
        reported = self.nvidia_smi.driver if self.nvidia_smi else ""
        return reported if reported[:1].isdecimal() else ""

    @cached_property
    def device_count(self) -> int:
        """The number of GPUs with a device file."""
        return len(self.find_paths("/dev/nvidia[0-9]*")) or int(self.path_exists("/dev/dxg"))

    @cached_property
    def all_gpus(self) -> list[DetectedGpu]:
        """The GPUs of the machine that nvidia-smi reports.

        If nvidia-smi reports none, they are those with a device file. The driver's files have
        their names, but not their compute capability.
        """
        if self.nvidia_smi and self.nvidia_smi.gpus:
            return list(self.nvidia_smi.gpus)
        names = []
        for path in self.find_paths("/proc/driver/nvidia/gpus/*/information"):
            model = re.search(r"^Model:\s+(.+?)\s*$", self.read_text(path), re.MULTILINE)
            if model:
                names.append(model[1])
        names.extend(["GPU"] * self.device_count)
        return [DetectedGpu(name, UNKNOWN_CAPABILITY) for name in names[: self.device_count]]

    @cached_property
    def gpus(self) -> list[DetectedGpu]:
        """The GPUs that a process of the run would see."""
        if self.given_gpus is not None:
            return list(self.given_gpus)
        return select_visible_gpus(self.all_gpus, self.environment.get("CUDA_VISIBLE_DEVICES"))

    @cached_property
    def container(self) -> str:
        """The kind of container that this is; "" if nothing shows that it is a container."""
        for path, kind in _CONTAINER_FILES:
            if self.path_exists(path):
                return kind
        if "ENROOT_ROOTFS" in self.environment:
            return "enroot"
        if "KUBERNETES_SERVICE_HOST" in self.environment:
            return "kubernetes"
        if re.search(r"/(docker|kubepods|libpod|lxc)[-/.]", self.read_text("/proc/1/cgroup")):
            return "container"
        return ""


def _parse_nvidia_smi(result: CommandResult) -> NvidiaSmiReport:
    """Return the report of nvidia-smi; one with a failure if the output is not as expected."""
    rows = [[cell.strip() for cell in line.split(",")] for line in result.out.splitlines()]
    is_complete = all(len(row) == len(_GPU_FIELDS.split(",")) for row in rows)
    if result.status or not is_complete:
        lines = [*result.out.splitlines(), *result.err.splitlines()]
        messages = [line for line in lines if line.strip()]
        return NvidiaSmiReport(
            failure=messages[0] if messages else f"nvidia-smi ended with status {result.status}"
        )
    return NvidiaSmiReport(
        gpus=tuple(DetectedGpu(row[0], parse_capability(row[1])) for row in rows),
        driver=rows[0][2] if rows else "",
        used=tuple(_compute_used_share(row[4], row[3]) for row in rows),
    )


def _compute_used_share(used: str, total: str) -> float:
    """Return the share of a GPU's memory that is in use; 0 if nvidia-smi does not report it."""
    if not (used.isdecimal() and total.isdecimal() and int(total)):
        return 0.0
    return int(used) / int(total)


def inspect_machine(
    environment: Mapping[str, str],
    *,
    quick: bool = False,
    gpus: Sequence[DetectedGpu] | None = None,
) -> Machine:
    """Return this machine with the baked environment of this Python.

    Args:
      environment: The variables of the run.
      quick: Run no command, ask no name server, and write no file.
      gpus: The GPUs, if the caller has detected them already.

    Raises:
      UserError: The lock record of the environment cannot be read.
    """
    installed = system_queries.find_installed_packages()
    lock_path = lock_record.get_lock_path()
    if not lock_path.exists():
        return Machine(environment=environment, quick=quick, given_gpus=gpus, installed=installed)
    constraints = lock_path.parent / "constraints.txt"
    text = constraints.read_text(encoding="utf-8") if constraints.exists() else ""
    return Machine(
        environment=environment,
        quick=quick,
        given_gpus=gpus,
        baked=True,
        record=lock_record.read_lock(),
        pinned=dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)),
        issues=environment_info.read_known_issues(),
        installed=installed,
    )
