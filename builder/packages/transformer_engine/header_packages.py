"""Lock and fetch Debian's packages with the headers of Python, for compiling bindings.

locks/te-python.json has one package for each Python version and architecture.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import subprocesses
from builder.packages import debian_lock, debian_resolution
from builder.packages.debian_lock import BaseLock, Deb
from builder.packages.debian_resolution import Replacement
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import INVALID, MISSING, UserError

if TYPE_CHECKING:
    from builder.core.cache import Cache
    from builder.core.manifest import Manifest

FILE = "locks/te-python.json"
TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
_REMAKE = "python build.py lock --base"


@dataclass(frozen=True)
class HeaderLock:
    """The content of locks/te-python.json.

    Attributes:
        packages: The packages by Python version, for example "3.13", and architecture.
        date: A day on which Debian had these packages; empty if it is not known.
    """

    packages: dict[tuple[str, str], Deb]
    date: str


def load_packages(manifest: Manifest) -> dict[tuple[str, str], Deb]:
    """Return the locked packages by Python version and architecture; none if there is no lock."""
    return read_lock(manifest).packages


def read_lock(manifest: Manifest) -> HeaderLock:
    """Read locks/te-python.json; return an empty lock if there is no file yet."""
    file = manifest.folder(FILE)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return HeaderLock({}, "")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            "cannot be read", str(file), f"git checkout it, or {_REMAKE}", kind=MISSING
        ) from error
    try:
        if data["schema"] != 1:
            raise ValueError(data["schema"])
        packages = {
            (python, deb.architecture): deb
            for python, rows in data["pythons"].items()
            for deb in map(debian_lock.parse_package, rows)
        }
        return HeaderLock(packages, debian_lock.check_date(data.get("date", "")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "is not a lock of Python's headers",
            str(file),
            f"git checkout it, or {_REMAKE}",
            kind=INVALID,
        ) from error


def render_lock(locked: dict[tuple[str, str], Deb], date: str = "") -> str:
    """Return the text of the lock, which is the same on every machine."""
    pythons = sorted({python for python, _ in locked})
    rows = {
        python: [vars(deb) for (version, _), deb in sorted(locked.items()) if version == python]
        for python in pythons
    }
    return (
        json.dumps({"schema": 1, **({"date": date} if date else {}), "pythons": rows}, indent=1)
        + "\n"
    )


def update_lock(manifest: Manifest, *, offline: bool) -> dict[str, list[str]]:
    """Lock the packages that Debian has today.

    Returns:
        The changes by lock file: a line that begins with "-" or "+" for each package. Nothing if
        the manifest has no Transformer Engine.
    """
    te = manifest.transformer_engine
    if te is None:
        return {}
    if offline:
        raise UserError(
            "the headers of Python cannot be looked up offline",
            FILE,
            f"{_REMAKE}, without --offline",
            kind=MISSING,
        )
    old_lock = read_lock(manifest)
    old_packages, new_packages = old_lock.packages, dict[tuple[str, str], Deb]()
    for python, base, architecture in _list_targets(manifest):
        with tempfile.TemporaryDirectory(prefix="rosetta-apt-") as scratch:
            package = debian_resolution.find_newest_package(
                manifest.bases[base].bootstrap,
                architecture,
                f"libpython{python}-dev",
                Path(scratch),
            )
        if package:
            new_packages[python, architecture] = package
    is_unchanged = new_packages == old_packages
    date = old_lock.date if is_unchanged and old_lock.date else debian_resolution.current_date()
    write_atomic(manifest.folder(FILE), render_lock(new_packages, date))
    return {FILE: _list_changes(old_packages, new_packages)}


def _list_changes(
    old_packages: dict[tuple[str, str], Deb], new_packages: dict[tuple[str, str], Deb]
) -> list[str]:
    old, new = (
        {f"{deb.name} {deb.version} {deb.architecture}" for deb in packages.values()}
        for packages in (old_packages, new_packages)
    )
    removed = [f"- {package}" for package in sorted(old - new)]
    added = [f"+ {package}" for package in sorted(new - old)]
    return [*removed, *added]


def _list_targets(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Return the Python, base and architecture of every image that can have Transformer Engine."""
    te = manifest.transformer_engine
    targets = set()
    for distribution in manifest.distributions.values():
        line = manifest.lines[distribution.line]
        if (
            te
            and distribution.line in te.lines
            and line.base
            and set(te.accelerators) & set(distribution.accelerators)
        ):
            targets |= {
                (line.python, line.base, architecture)
                for architecture in distribution.architectures
            }
    return sorted(targets)


def find_problems(manifest: Manifest) -> list[str]:
    """Return the errors of the lock that can be found without the network."""
    try:
        locked = load_packages(manifest)
    except UserError as error:
        return [str(error)]
    missing = [
        f"Python {python} on {architecture}"
        for python, _, architecture in _list_targets(manifest)
        if (python, architecture) not in locked
    ]
    return [f"{FILE}: lacks the headers of {', '.join(missing)}; {_REMAKE}"] if missing else []


def require_package(manifest: Manifest, python: str, architecture: str) -> Deb:
    """Return the locked package; raise UserError if there is none for the Python version."""
    locked = load_packages(manifest)
    if (python, architecture) not in locked:
        targets = ", ".join(f"{version} on {locked_for}" for version, locked_for in sorted(locked))
        raise UserError(
            f"no headers of Python {python} for {architecture} are locked "
            f"(locked: {targets or 'none'})",
            FILE,
            f"use one of these, or {_REMAKE}",
            kind=MISSING,
            value=python,
        )
    return locked[python, architecture]


def find_current(manifest: Manifest, line: str, locked: Deb) -> Deb:
    """Return the package that supersedes a locked package of headers in Debian today."""
    base = manifest.bases[manifest.lines[line].base or ""].bootstrap
    with tempfile.TemporaryDirectory(prefix="rosetta-apt-") as scratch:
        current = debian_resolution.find_newest_package(
            base, locked.architecture, locked.name, Path(scratch)
        )
    if current is None:
        raise UserError(
            f"{base} has no {locked.name}", f"Debian {base} for {locked.architecture}", _REMAKE
        )
    debian_resolution.refuse_older(
        Replacement(locked.name, locked.version, current.version),
        f"Debian {base} for {locked.architecture}",
    )
    return current


def ensure_headers(cache: Cache, deb: Deb, date: str = "", *, offline: bool) -> Path:
    """Return a folder with the unpacked package; its headers are below usr/include.

    Args:
        cache: Keeps the folder.
        deb: The locked package.
        date: The day of its lock, for Debian's snapshot service.
        offline: Fetch nothing from the network.
    """

    def unpack(into: Path) -> None:
        files = debian_lock.fetch_packages(
            cache,
            BaseLock("te-python", "Debian", deb.architecture, packages=(deb,), date=date),
            offline=offline,
        )
        argv = ["dpkg-deb", "-x", str(files / deb.file), str(into)]
        subprocesses.run_program(
            argv,
            where=deb.filename,
            what="does not unpack",
            do="delete the cache's folder debs and run again",
        )

    return cache.ensure_folder("base", f"headers-{deb.sha256}", unpack)
