"""Fake machines for the tests of the doctor: a folder in place of /, an environment, and answers of commands, name servers and libcuda."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rosetta import doctor
from rosetta.core.system_queries import CommandResult, FileSystemSpace
from rosetta.doctor.finding import Finding
from rosetta.doctor.machine import Machine

GIB = 1 << 30
H100, A100, B200, V100 = (
    ("NVIDIA H100 80GB HBM3", "9.0"),
    ("NVIDIA A100-SXM4-80GB", "8.0"),
    ("NVIDIA B200", "10.0"),
    ("Tesla V100-SXM2-32GB", "7.0"),
)
INSTALLED = {
    "jax": ["0.10.2"],
    "jaxlib": ["0.10.2"],
    "jax-cuda13-plugin": ["0.10.2"],
    "jax-cuda13-pjrt": ["0.10.2"],
    "nvidia-cudnn-cu13": ["9.28.1.4"],
}
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             1000000              1000000              processes
Max open files            {files}              1048576              files
Max locked memory         {locked}            unlimited            bytes
"""
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Oct  5 2023\nGCC version:  gcc 11"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder)  Mon"


def write_files(root: Path, **files: str) -> None:
    """Write files; a key is a path with __ in place of /."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def make_machine(
    root: Path,
    *,
    gpus: Sequence[tuple[str, str]] = (H100,) * 8,
    driver: str = "580.82.07",
    version: str = OPEN,
    shm: int = 64 * GIB,
    files: str = "1048576",
    locked: str = "unlimited",
    used: int = 0,
    environment: dict[str, str] | None = None,
    **changes: Any,
) -> Machine:
    """Return a node with these GPUs, 4 TB of memory, 128 cores, and an environment for CUDA 13; an empty `driver` means none."""
    write_files(
        root,
        proc__self__limits=LIMITS.format(files=files, locked=locked),
        proc__meminfo=f"MemTotal:  {2 << 31} kB\n",
        proc__self__status="Cpus_allowed_list:\t0-127\n",
    )
    write_files(
        root,
        proc__self__cgroup="0::/\n",
        proc__mounts="overlay / overlay rw,relatime 0 0\n",
        proc__sys__kernel__hostname="n1\n",
        sys__class__net__eth0__x="",
        sys__class__net__lo__x="",
    )
    if driver:
        write_files(root, proc__driver__nvidia__version=version.format(driver))
        for number, (name, _) in enumerate(gpus):
            write_files(
                root,
                **{
                    f"dev__nvidia{number}": "",
                    f"proc__driver__nvidia__gpus__{number}__information": f"Model: \t\t {name}\nIRQ: 1\n",
                },
            )
        if gpus:
            write_files(root, **{"dev__nvidia-uvm": ""})
    rows = "".join(f"{name}, {capability}, {driver}, 81559, {used}\n" for name, capability in gpus)
    answers = {"nvidia-smi": CommandResult(0, rows, "")} if driver and gpus else {}
    (root / "home").mkdir(exist_ok=True)
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    examined = Machine(
        root=root,
        environment={
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "home"),
            **(environment or {}),
        },
        baked=True,
        record={"distribution": "t5x", "accelerator": "cuda13"},
        installed=INSTALLED,
        run_command=lambda argv, _: answers.get(argv[0]),
        resolve_host=lambda _: ["10.0.0.1"],
        query_driver_cuda_version=lambda: 13000,
        query_free_space=lambda path: (
            FileSystemSpace(shm, shm, 1000)
            if path.name == "shm"
            else FileSystemSpace(9000 * GIB, 5000 * GIB, 1000000)
        ),
        probe_folder=lambda _: 0.0,
        explain_refused_flags=lambda _: "",
    )
    return replace(examined, **changes)


def find_levels(examined: Machine, **options: Any) -> dict[str, str]:
    """Return id -> level of the findings about a machine."""
    return {finding.id: finding.level for finding in doctor.examine_machine(examined, **options)}


def find_finding(examined: Machine, name: str, **options: Any) -> Finding:
    """Return the only finding with an id."""
    (finding,) = (
        finding for finding in doctor.examine_machine(examined, **options) if finding.id == name
    )
    return finding
