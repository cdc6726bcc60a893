"""A stripped wheel: pure, installable, the same bytes twice."""

from __future__ import annotations

import subprocess
import zipfile
from typing import TYPE_CHECKING

from builder.packages import pure_python_wheels, uv
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path


def _wheel(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thing/__init__.py", "X = 'pure'\n")
        archive.writestr("thing/_ops.so", b"\x7fELF")
        archive.writestr("thing.libs/libx.so.1.2", b"\x7fELF")
        archive.writestr(
            "thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n"
        )
        archive.writestr(
            "thing-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: cp311-cp311-manylinux2014_x86_64\n",
        )
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    return path


def test_installs_for_another_architecture(tmp_path: Path) -> None:
    made = tmp_path / "thing-1.0-py3-none-any.whl"
    pure_python_wheels.strip_wheel(
        _wheel(tmp_path / "thing-1.0-cp311-cp311-manylinux2014_x86_64.whl"), made
    )
    target = tmp_path / "site"
    platform = ("--python-platform", "aarch64-manylinux_2_28", "--python-version", "3.11")
    uv.run(
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--offline",
        *platform,
        "--target",
        str(target),
        str(made),
    )
    assert sorted(
        str(path.relative_to(target))
        for path in target.rglob("*")
        if path.is_file() and path.suffix in (".py", ".so", ".2")
    ) == ["thing/__init__.py"]
    done = subprocess.run(
        [
            "python3",
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(target)!r}); import thing; print(thing.X)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "pure\n"


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    source = _wheel(tmp_path / "thing-1.0-cp311-cp311-manylinux2014_x86_64.whl")
    pure_python_wheels.strip_wheel(source, tmp_path / "a.whl")
    pure_python_wheels.strip_wheel(source, tmp_path / "b.whl")
    assert (tmp_path / "a.whl").read_bytes() == (tmp_path / "b.whl").read_bytes()


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("x.py", "")
    with errors.expect_user_error(errors.INVALID, where="x.whl", remedy="delete"):
        pure_python_wheels.strip_wheel(tmp_path / "x.whl", tmp_path / "y.whl")
