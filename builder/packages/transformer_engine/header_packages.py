"""The headers of Python that bindings are compiled with: Debian's package of them for each Python
and architecture, locked in locks/te-python.json.
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
    """The locked packages by Python ("3.13") and architecture, and a day on which Debian had
    them.
    """

    packages: dict[tuple[str, str], Deb]
    date: str


def load_packages(manifest: Manifest) -> dict[tuple[str, str], Deb]:
    """Return the locked packages by Python ("3.13") and architecture; none where there is no file
    yet.
    """
    return read_lock(manifest).packages


def read_lock(manifest: Manifest) -> HeaderLock:
    """Read locks/te-python.json; an empty lock where there is no file yet."""
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
    """Return the file's text: nothing of the machine that made it."""
    pythons = sorted({python for python, _ in locked})
    rows = {
        python: [vars(deb) for (each, _), deb in sorted(locked.items()) if each == python]
        for python in pythons
    }
    return (
        json.dumps({"schema": 1, **({"date": date} if date else {}), "pythons": rows}, indent=1)
        + "\n"
    )


def update_lock(manifest: Manifest, *, offline: bool) -> dict[str, list[str]]:
    """Lock today's packages anew; what changed, a line a package, by file.

    Nothing where the manifest has no Transformer Engine.
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
    known, after = read_lock(manifest), {}
    before = known.packages
    for python, base, architecture in _list_targets(manifest):
        with tempfile.TemporaryDirectory(prefix="rosetta-apt-") as scratch:
            found = debian_resolution.find_newest_package(
                manifest.bases[base].bootstrap,
                architecture,
                f"libpython{python}-dev",
                Path(scratch),
            )
        if found:
            after[python, architecture] = found
    date = known.date if after == before and known.date else debian_resolution.current_date()
    write_atomic(manifest.folder(FILE), render_lock(after, date))
    old, new = (
        {f"{deb.name} {deb.version} {deb.architecture}" for deb in each.values()}
        for each in (before, after)
    )
    return {
        FILE: [
            *(f"- {each}" for each in sorted(old - new)),
            *(f"+ {each}" for each in sorted(new - old)),
        ]
    }


def _list_targets(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Python, base and architecture of every image that may have it."""
    te = manifest.transformer_engine
    found = set()
    for each in manifest.distributions.values():
        line = manifest.lines[each.line]
        if (
            te
            and each.line in te.lines
            and line.base
            and set(te.accelerators) & set(each.accelerators)
        ):
            found |= {(line.python, line.base, architecture) for architecture in each.architectures}
    return sorted(found)


def find_problems(manifest: Manifest) -> list[str]:
    """Return what the lock lacks, as far as it can be told without asking anyone."""
    try:
        known = load_packages(manifest)
    except UserError as error:
        return [str(error)]
    lacking = [
        f"Python {python} on {architecture}"
        for python, _, architecture in _list_targets(manifest)
        if (python, architecture) not in known
    ]
    return [f"{FILE}: lacks the headers of {', '.join(lacking)}; {_REMAKE}"] if lacking else []


def require_package(manifest: Manifest, python: str, architecture: str) -> Deb:
    """Return the locked package; UserError where there is none for this Python."""
    known = load_packages(manifest)
    if (python, architecture) not in known:
        there = ", ".join(f"{each} on {other}" for each, other in sorted(known)) or "none"
        raise UserError(
            f"no headers of Python {python} for {architecture} are locked (locked: {there})",
            FILE,
            f"take one of these, or {_REMAKE}",
            kind=MISSING,
            value=python,
        )
    return known[python, architecture]


def find_current(manifest: Manifest, line: str, locked: Deb) -> Deb:
    """Return today's version of a locked package of headers that Debian has superseded."""
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
    """Return the package, unpacked: `usr/include/python3.X` and `usr/include` are what a compiler
    needs.

    `date` is the day of its lock, for the snapshot service.
    """

    def make(into: Path) -> None:
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

    return cache.ensure_folder("base", f"headers-{deb.sha256}", make)
