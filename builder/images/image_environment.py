"""The environment of an image: the locked packages, arranged as they will be below PREFIX.

No program of the environment runs on this machine: uv unpacks wheels of another platform, too, and
bytecode is the same on every architecture.
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
# Folders of a wheel's data. They belong beside lib/, and uv's --target puts them into
# site-packages.
_DATA_FOLDERS = ("bin", "share", "etc")


def compute_key(packages: Packages) -> str:
    """Return the cache key of the environment of these packages."""
    return stage_key("site", {**packages.inputs(), "layout": 2})


def ensure_environment(cache: Cache, packages: Packages, *, offline: bool) -> Path:
    """Return the folder of the finished environment; make it if the cache lacks it.

    Args:
        cache: The cache.
        packages: The packages; their Python is that of the base, which runs on this machine.
        offline: Whether packages may come from the cache only.
    """
    return cache.ensure_folder(
        "env",
        compute_key(packages),
        lambda folder: _make_environment(cache, packages, folder, offline=offline),
    )


def _make_environment(cache: Cache, packages: Packages, folder: Path, *, offline: bool) -> None:
    python = packages.python
    site_packages = folder / "lib" / f"python{python.version}" / "site-packages"
    site_packages.mkdir(parents=True)
    package_installation.install_packages(
        cache,
        packages,
        site_packages,
        *("--target", str(site_packages)),
        *("--python-version", python.version),
        *("--python-platform", f"{_MACHINES[packages.architecture]}-manylinux_2_28"),
        builder=python_interpreter.builder_interpreter(),
        offline=offline,
    )
    (site_packages / ".lock").unlink(missing_ok=True)  # uv's
    (folder / "bin").mkdir()
    for info in sorted(site_packages.glob("*.dist-info")):
        _move_data_files(folder, site_packages, info)
    for name in _DATA_FOLDERS:
        data_folder = site_packages / name
        if data_folder.is_dir() and not any(data_folder.iterdir()):
            data_folder.rmdir()
    _write_venv_files(folder, packages)
    bytecode.install_bytecode(cache, python, site_packages)
    environment = lock_file.marker_environment(python.version, python.full, packages.architecture)
    dependency_check.require_reasons(
        dependency_check.find_unmet_requirements(site_packages, environment),
        packages.manifest,
        packages.line,
    )


def _write_venv_files(folder: Path, packages: Packages) -> None:
    """Write what makes a folder a virtual environment of the base's Python.

    No file names a path of this machine.
    """
    version = packages.python.version
    (folder / "bin/python").symlink_to(f"/usr/bin/python{version}")
    for name in ("python3", f"python{version}"):
        (folder / "bin" / name).symlink_to("python")
    (folder / "lib64").symlink_to("lib")
    settings = (
        "home = /usr/bin\nimplementation = CPython\nversion_info = "
        f"{packages.python.full}\ninclude-system-site-packages = false\n"
    )
    (folder / "pyvenv.cfg").write_text(settings, encoding="ascii")


def _move_data_files(folder: Path, site_packages: Path, info: Path) -> None:
    """Move the files that a wheel has beside its modules to where a virtual environment has them.

    Programs get the image's Python in their first line. RECORD names the new paths.

    Args:
        folder: The environment.
        site_packages: Its site-packages.
        info: The .dist-info folder of the package.
    """
    record = info / "RECORD"
    with open(record, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    is_changed = False
    for row in rows:
        name = row[0]
        first_folder, _, rest = name.partition("/")
        is_module = (site_packages / first_folder / "__init__.py").exists()
        if first_folder not in _DATA_FOLDERS or not rest or is_module:
            continue
        if ".." in Path(name).parts:
            raise UserError(
                f"{info.name} would write to {name!r}",
                str(record),
                "drop that package by an override",
                kind=INVALID,
                value=name,
            )
        target = folder / name
        if (site_packages / name).is_file():
            _move_file(site_packages / name, target, is_program=first_folder == "bin")
        elif not target.is_file():
            continue
        if first_folder == "bin":
            # uv's hash is that of a program with a path of this machine. The hash is also wrong if
            # another package with the same program was first.
            row[1:3] = _describe_content(target.read_bytes())
        row[0] = f"../../../{name}"
        is_changed = True
    if is_changed:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        record.unlink()
        record.write_text(text.getvalue(), encoding="utf-8")


def _move_file(source: Path, target: Path, *, is_program: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not is_program:
        os.rename(source, target)  # within a folder that is still being made
        return
    data = _point_at_image_python(source.read_bytes())
    source.unlink()  # it may be a link into uv's cache: never written in place
    target.write_bytes(data)
    target.chmod(0o755)


def _describe_content(data: bytes) -> list[str]:
    """Return the hash and the size of a file as RECORD has them."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return [f"sha256={digest}", str(len(data))]


def _point_at_image_python(data: bytes) -> bytes:
    """Return a Python script with the image's Python in its first line; other programs as is."""
    first_line, newline, rest = data.partition(b"\n")
    image_python = b"#!/" + PREFIX.encode() + b"/bin/python"
    if first_line.startswith(b"#!") and b"python" in first_line:
        return image_python + newline + rest
    # uv's form for a long path: three lines that both shells and Python read.
    if first_line == b"#!/bin/sh" and rest.startswith(b"'''exec'"):
        return image_python + b"\n" + rest.split(b"\n", 2)[2]
    return data
