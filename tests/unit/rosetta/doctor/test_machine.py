from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.doctor.machine import Machine
from tests.support.fake_machine import OPEN, PROPRIETARY, make_machine, write_files


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (PROPRIETARY.format("535.129.03"), "535.129.03"),
        (OPEN.format("580.82.07"), "580.82.07"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release",
            "570.86.15",
        ),
        ("nonsense\x00", ""),
        ("", ""),
    ],
)
def test_the_version_of_the_driver(tmp_path: Path, text: str, driver: str) -> None:
    write_files(tmp_path, proc__driver__nvidia__version=text)
    assert Machine(root=tmp_path, quick=True).driver == driver


def test_the_driver_version_of_nvidia_smi(tmp_path: Path) -> None:
    examined = make_machine(tmp_path)
    (tmp_path / "proc/driver/nvidia/version").unlink()
    assert examined.driver == "580.82.07"


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({}, {}, ""),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run__.containerenv": ""}, {}, "podman"),
        ({}, {"ENROOT_ROOTFS": "/x"}, "enroot"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc__1__cgroup": "4:memory:/docker/0123"}, {}, "container"),
    ],
)
def test_containers(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], kind: str
) -> None:
    write_files(tmp_path, **files)
    assert Machine(root=tmp_path, environment=environment).container == kind


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe a\n")
    examined = Machine(root=tmp_path)
    assert (
        examined.read_text("/folder"),
        examined.read_text("/nowhere"),
        examined.find_paths("/nowhere/*"),
        examined.list_folder("/bytes"),
    ) == ("", "", [], [])
    assert examined.read_text("/bytes").endswith("a")


@pytest.mark.parametrize(
    ("record", "installed", "cuda"),
    [
        ({"accelerator": "cuda12"}, {}, 12),
        ({}, {"jax-cuda13-plugin": ["1"]}, 13),
        ({"accelerator": "cpu"}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_cuda_of_an_environment(
    record: dict[str, str], installed: dict[str, list[str]], cuda: int | None
) -> None:
    assert Machine(record=record, installed=installed).cuda == cuda
