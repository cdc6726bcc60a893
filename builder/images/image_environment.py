"""The environment of an image: the locked packages for its architecture and Python, laid out as
they will stand below PREFIX.

Nothing of it is run here: uv unpacks the wheels of the other platform, and bytecode is the same on
every architecture.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import bytecode
from builder.core.cache import Cache, stage_key
from builder.packages import dependency_check, lock_file, package_installation, python_interpreter
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from builder.packages.package_installation import Packages

PREFIX = "opt/rosetta/env"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_DATA_FOLDERS = (
    "bin",
    "share",
    "etc",
)  # of a wheel's data: belongs beside lib/, and uv's --target puts it into site-packages


def compute_key(wanted: Packages) -> str:
    """Return the cache key of the environment of these packages."""
    return stage_key("site", {**wanted.inputs(), "layout": 2})


def ensure_environment(cache: Cache, wanted: Packages, *, offline: bool) -> Path:
    """Return the folder of the finished environment; made if the cache lacks it.

    `wanted.python` is the base's own Python, run on this machine.
    """

    def make(folder: Path) -> None:
        site = folder / "lib" / f"python{wanted.python.version}" / "site-packages"
        site.mkdir(parents=True)
        target = (
            "--target",
            str(site),
            "--python-version",
            wanted.python.version,
            "--python-platform",
            f"{_MACHINES[wanted.architecture]}-manylinux_2_28",
        )
        package_installation.install(
            cache, wanted, site, *target, builder=python_interpreter.own(), offline=offline
        )
        (site / ".lock").unlink(missing_ok=True)  # uv's
        (folder / "bin").mkdir()
        for info in sorted(site.glob("*.dist-info")):
            _move_data_files(folder, site, info)
        for name in _DATA_FOLDERS:
            if (site / name).is_dir() and not any((site / name).iterdir()):
                (site / name).rmdir()
        _write_venv_files(folder, wanted)
        bytecode.install_bytecode(cache, wanted.python, site)
        here = lock_file.environment_of(
            wanted.python.version, wanted.python.full, wanted.architecture
        )
        dependency_check.require(
            dependency_check.findings(site, here), wanted.manifest, wanted.line
        )

    return cache.ensure_folder("env", compute_key(wanted), make)


def _write_venv_files(folder: Path, wanted: Packages) -> None:
    """Write what makes it a virtual environment of the base's Python; no path of this machine."""
    for name in ("python", "python3", f"python{wanted.python.version}"):
        (folder / "bin" / name).symlink_to(
            f"/usr/bin/python{wanted.python.version}" if name == "python" else "python"
        )
    (folder / "lib64").symlink_to("lib")
    settings = (
        "home = /usr/bin\nimplementation = CPython\nversion_info = "
        f"{wanted.python.full}\ninclude-system-site-packages = false\n"
    )
    (folder / "pyvenv.cfg").write_text(settings, encoding="ascii")


def _move_data_files(folder: Path, site: Path, info: Path) -> None:
    """Move what a wheel has beside its modules to where a virtual environment has it, point its
    programs at that Python, and say so in RECORD.
    """
    record = info / "RECORD"
    with open(record, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    moved = False
    for row in rows:
        first, _, rest = row[0].partition("/")
        if first not in _DATA_FOLDERS or not rest or (site / first / "__init__.py").exists():
            continue
        if ".." in Path(row[0]).parts:
            raise UserError(
                f"{info.name} would write to {row[0]!r}",
                str(record),
                "drop that package by an override",
                kind=INVALID,
                value=row[0],
            )
        source, target = site / row[0], folder / row[0]
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            if first == "bin":
                data = _point_at_image_python(source.read_bytes())
                source.unlink()  # it may be a link into uv's cache: never written in place
                target.write_bytes(data)
                target.chmod(0o755)
            else:
                os.rename(source, target)  # within a folder that is still being made
        elif not target.is_file():
            continue
        # Also where two packages bring it and the other one was first: uv's hash is that of a
        # program with a path of this machine.
        if first == "bin":
            data = target.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            row[1:3] = [f"sha256={digest}", str(len(data))]
        row[0] = f"../../../{row[0]}"
        moved = True
    if moved:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        record.unlink()
        record.write_text(text.getvalue(), encoding="utf-8")


def _point_at_image_python(data: bytes) -> bytes:
    """Return a console script with the image's Python in its first line; other programs stay as
    they are.
    """
    line, newline, rest = data.partition(b"\n")
    if line.startswith(b"#!") and b"python" in line:
        return b"#!/" + PREFIX.encode() + b"/bin/python" + newline + rest
    if line == b"#!/bin/sh" and rest.startswith(
        b"'''exec'"
    ):  # uv's form for a long path: three lines that both shells and Python read
        return b"#!/" + PREFIX.encode() + b"/bin/python\n" + rest.split(b"\n", 2)[2]
    return data
