"""The machine as the checks see it: files below a root, an environment, commands.

Everything goes through here, so that a test can build another.
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


@dataclass(frozen=True)
class NvidiaSmiReport:
    """What nvidia-smi answered: the cards, the driver's version and the share of its memory that is
    used of each; or why it failed.
    """

    cards: tuple[DetectedGpu, ...] = ()
    driver: str = ""
    used: tuple[float, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class Machine:
    """A machine, and what was baked for it.

    Attributes:
      root: /proc, /sys and /dev lie below it.
      environment: the variables of the run.
      quick: no command is run, no name resolved, no file written.
      given: the cards, where the caller has asked for them already.
      baked: whether this is a baked environment; record, pinned and issues are of its lock.json,
        constraints.txt and known_issues.json.
      installed: see packages.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    quick: bool = False
    given: Sequence[DetectedGpu] | None = None
    baked: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    issues: Sequence[Mapping[str, Any]] = ()
    installed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    run: Callable[[Sequence[str], float], CommandResult | None] = system_queries.run_command
    addresses: Callable[[str], list[str]] = system_queries.resolve_host
    driver_api: Callable[[], int | None] = system_queries.query_driver_cuda_version
    room: Callable[[Path], FileSystemSpace | None] = system_queries.query_free_space
    written: Callable[[Path], float] = system_queries.probe_folder
    flags_refused: Callable[[Sequence[str]], str] = system_queries.explain_refused_flags

    def text(self, path: str) -> str:
        """Return a file below the root; "" where it cannot be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(_LONGEST_FILE).decode(errors="replace").strip()
        except OSError:
            return ""

    def names(self, pattern: str) -> list[str]:
        """Return the paths below the root that fit a pattern, as they are called on the machine."""
        try:
            return sorted(
                f"/{path.relative_to(self.root)}" for path in self.root.glob(pattern.lstrip("/"))
            )
        except OSError:
            return []

    def listing(self, folder: str) -> list[str]:
        """Return the names in a folder below the root; empty where it cannot be read."""
        try:
            return os.listdir(self.root / folder.lstrip("/"))
        except (OSError, ValueError):
            return []

    def there(self, path: str) -> bool:
        """Is there such a file below the root?"""
        return os.path.exists(
            self.root / path.lstrip("/")
        )  # Path.exists raises where a folder cannot be entered

    def on(self, name: str) -> bool:
        """Return whether a variable switches something on; no, where its value is not valid."""
        try:
            return read_truth_value(self.environment, name)
        except UserError:
            return False

    def version(self, package: str) -> str | None:
        """Return the version of a package that Python would import."""
        return next(iter(self.installed.get(package, ())), None)

    @cached_property
    def on_cpu(self) -> bool:
        """Was the CPU asked for?"""
        return asks_for_cpu(self.environment.get("JAX_PLATFORMS", ""))

    @cached_property
    def cuda(self) -> int | None:
        """The CUDA that this environment is built on, its major version; None where it has none."""
        named = re.fullmatch(r"cuda(\d{1,3})", str(self.record.get("accelerator") or ""))
        plugins = re.findall(r"jax-cuda(\d+)-plugin", " ".join(self.installed))
        return int(named[1]) if named else int(plugins[0]) if plugins else None

    @cached_property
    def asked(self) -> NvidiaSmiReport | None:
        """What nvidia-smi says; None where it was not asked, or there is none."""
        done = (
            None
            if self.quick
            else self.run(
                ["nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"], 60
            )
        )
        if done is None:
            return None
        rows = [[word.strip() for word in line.split(",")] for line in done.out.splitlines()]
        if done.status or not all(len(row) == len(_GPU_FIELDS.split(",")) for row in rows):
            lines = [
                line for line in (*done.out.splitlines(), *done.err.splitlines()) if line.strip()
            ]
            return NvidiaSmiReport(
                failure=lines[0] if lines else f"it ended with status {done.status}"
            )
        used = tuple(
            int(row[4]) / int(row[3])
            if row[3].isdecimal() and row[4].isdecimal() and int(row[3])
            else 0.0
            for row in rows
        )
        return NvidiaSmiReport(
            tuple(DetectedGpu(row[0], parse_capability(row[1])) for row in rows),
            rows[0][2] if rows else "",
            used,
        )

    @cached_property
    def driver(self) -> str:
        """The driver's version, "" where there is none."""
        found = re.search(
            r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)",
            self.text("/proc/driver/nvidia/version"),
        )
        return (
            found[1]
            if found
            else self.asked.driver
            if self.asked and self.asked.driver[:1].isdecimal()
            else ""
        )

    @cached_property
    def devices(self) -> int:
        """How many cards have a device file."""
        return len(self.names("/dev/nvidia[0-9]*")) or int(self.there("/dev/dxg"))

    @cached_property
    def all_cards(self) -> list[DetectedGpu]:
        """The cards of the machine, as nvidia-smi says, else as the driver's files and the device
        files say, without capability.
        """
        if self.asked and self.asked.cards:
            return list(self.asked.cards)
        texts = [self.text(path) for path in self.names("/proc/driver/nvidia/gpus/*/information")]
        models = [
            match[1]
            for match in (re.search(r"^Model:\s+(.+?)\s*$", text, re.MULTILINE) for text in texts)
            if match
        ]
        names = [*models, *["GPU"] * self.devices][: self.devices]
        return [DetectedGpu(name, UNKNOWN_CAPABILITY) for name in names]

    @cached_property
    def cards(self) -> list[DetectedGpu]:
        """The cards that a process of the run would see."""
        return (
            list(self.given)
            if self.given is not None
            else select_visible_gpus(self.all_cards, self.environment.get("CUDA_VISIBLE_DEVICES"))
        )

    @cached_property
    def container(self) -> str:
        """The kind of container that this is, "" where it is none that shows."""
        for path, kind in (
            ("/.dockerenv", "docker"),
            ("/run/.containerenv", "podman"),
            ("/.singularity.d", "apptainer"),
        ):
            if self.there(path):
                return kind
        if "ENROOT_ROOTFS" in self.environment:
            return "enroot"
        if "KUBERNETES_SERVICE_HOST" in self.environment:
            return "kubernetes"
        return (
            "container"
            if re.search(r"/(docker|kubepods|libpod|lxc)[-/.]", self.text("/proc/1/cgroup"))
            else ""
        )


def inspect_machine(
    environment: Mapping[str, str],
    *,
    quick: bool = False,
    cards: Sequence[DetectedGpu] | None = None,
) -> Machine:
    """Return this machine, with what was baked for it.

    Raises:
      UserError: that cannot be read any more.
    """
    installed = system_queries.find_installed_packages()
    if not lock_record.get_lock_path().exists():
        return Machine(environment=environment, quick=quick, given=cards, installed=installed)
    constraints = lock_record.get_lock_path().parent / "constraints.txt"
    text = constraints.read_text(encoding="utf-8") if constraints.exists() else ""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))
    return Machine(
        environment=environment,
        quick=quick,
        given=cards,
        baked=True,
        record=lock_record.read_lock(),
        pinned=pinned,
        issues=environment_info.read_known_issues(),
        installed=installed,
    )
