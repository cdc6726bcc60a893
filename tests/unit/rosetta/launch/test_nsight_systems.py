from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.launch import nsight_systems
from tests.support import errors


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


def test_named_by_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = program(tmp_path / "nsight/bin/nsys")
    for value in (there, there.parent, there.parent.parent):
        monkeypatch.setenv("NSYS", str(value))
        assert nsight_systems.find_nsys(()) == there
    monkeypatch.setenv("NSYS", str(tmp_path / "missing"))
    program(tmp_path / "path/nsys")
    with errors.expect_user_error(
        errors.MISSING, where="NSYS"
    ):  # never another than the one that was asked for
        nsight_systems.find_nsys(())


def test_on_path_before_the_usual_places(tmp_path: Path) -> None:
    usual = program(tmp_path / "cuda/bin/nsys")
    assert nsight_systems.find_nsys([f"{tmp_path}/cuda*/bin/nsys"]) == usual
    mine = program(tmp_path / "path/nsys")
    assert nsight_systems.find_nsys([f"{tmp_path}/cuda*/bin/nsys"]) == mine


def test_the_newest_of_the_usual_places(tmp_path: Path) -> None:
    for version in ("2024.9.1", "2025.10.1", "2025.2.1"):
        program(tmp_path / f"opt/nvidia/nsight-systems/{version}/bin/nsys")
    (tmp_path / "opt/nvidia/nsight-systems/2026.1.1/bin").mkdir(parents=True)
    (tmp_path / "opt/nvidia/nsight-systems/2026.1.1/bin/nsys").write_text("not a program")
    places = [f"{tmp_path}{place}" for place in nsight_systems.INSTALL_PATTERNS]
    assert (
        nsight_systems.find_nsys(places)
        == tmp_path / "opt/nvidia/nsight-systems/2025.10.1/bin/nsys"
    )


def test_none_says_how_to_mount_it(tmp_path: Path) -> None:
    with errors.expect_user_error(
        errors.MISSING, where="nsys", remedy=("-v", "/opt/nvidia/nsight-systems")
    ):
        nsight_systems.find_nsys([f"{tmp_path}/none*"])


def test_the_command_line(tmp_path: Path) -> None:
    there = program(tmp_path / "path/nsys")
    assert nsight_systems.make_profile_command(["python", "-m", "x"], "out") == [
        str(there),
        "profile",
        "-o",
        "out",
        "python",
        "-m",
        "x",
    ]
    assert nsight_systems.make_profile_command(["x"], None, marked=True) == [
        str(there),
        "profile",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "x",
    ]
    with errors.expect_user_error(errors.MISSING, where="rosetta profile"):
        nsight_systems.make_profile_command([], None)
