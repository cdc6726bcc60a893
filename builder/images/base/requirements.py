"""The facts of a base, found without running it: its C library, its Python, and what it lacks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.images.base import root_file_system
from rosetta.core.errors import UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.images.oci.tar_entry import Entry

MINIMUM_GLIBC = (2, 28)  # the version that the wheels in the locks are built for
_LIBC = re.compile(r"(usr/)?lib(64|/[\w-]+-linux-gnu)?/(libc\.so\.6|libc-[\d.]+\.so)")
_PYTHON = re.compile(r"usr/(bin/python3\.\d+|lib(64|/[\w-]+-linux-gnu)?/libpython3\.\d+\.so[\d.]*)")
_RELEASE = re.compile(r"(etc|usr/lib)/os-release")
# Parts of the standard library that Linux distributions put into separate packages. A trainer needs
# all of them.
_REQUIRED_MODULES = (
    "os.py",
    "json/__init__.py",
    "ctypes/__init__.py",
    "sqlite3/__init__.py",
    "ssl.py",
    "multiprocessing/__init__.py",
    "lib-dynload",
)
_MACHINES = {62: "amd64", 183: "arm64"}  # e_machine of ELF


@dataclass(frozen=True)
class BaseFacts:
    """What is known of a base."""

    glibc: str  # such as "2.41"
    python: str  # such as "3.13"
    python_full: str  # such as "3.13.5"
    release: str  # the name that the system gives itself


def scan_layers(blobs: Iterable[Path]) -> dict[str, Entry]:
    """Return the entries that layers show, with the contents that `find_facts` reads.

    Args:
        blobs: The blobs of the layers, from the bottom up.
    """
    return root_file_system.merge_layers(
        blobs,
        lambda entry: bool(
            _LIBC.fullmatch(entry.path)
            or _PYTHON.fullmatch(entry.path)
            or _RELEASE.fullmatch(entry.path)
        ),
    )


def find_facts(
    view: Mapping[str, Entry], name: str, architecture: str, pythons: Sequence[str]
) -> BaseFacts:
    """Return the facts of a base.

    Args:
        view: The entries of the base, from `scan_layers`.
        name: The name of the base, for errors.
        architecture: "amd64" or "arm64".
        pythons: The accepted Python versions; the first one that the base has is used.

    Raises:
        UserError: The base lacks something. The error lists all that is missing.
    """
    release = _find_release(view)
    glibc, machine = _find_glibc(view)
    missing = _list_missing_glibc(glibc)
    if machine and machine != architecture:
        missing.append(f"programs for {architecture} (its are for {machine})")
    python, python_full = _find_first_python(view, pythons)
    if not python:
        missing.append(
            f"Python {' or '.join(sorted(pythons))} in /usr/bin (it has "
            f"{', '.join(_list_pythons(view)) or 'none'})"
        )
    elif missing_modules := _list_missing_modules(view, python):
        missing.append(
            f"of Python {python}'s standard library: {', '.join(missing_modules)} (Debian and "
            "Ubuntu: the package python3)"
        )
    if missing:
        shown_release = f" ({release})" if release else ""
        raise UserError(
            f"this base{shown_release} cannot be used for an image: it lacks {'; '.join(missing)}",
            name,
            "give another --base; Debian 12 or 13 and NVIDIA's CUDA images of Ubuntu 24.04 will do",
            kind=UNSUPPORTED,
        )
    return BaseFacts(glibc, python, python_full, release)


def _list_missing_glibc(glibc: str) -> list[str]:
    if not glibc:
        return ["glibc (wheels need it; musl is another C library)"]
    if tuple(map(int, glibc.split("."))) < MINIMUM_GLIBC:
        return [f"glibc {MINIMUM_GLIBC[0]}.{MINIMUM_GLIBC[1]} or newer (it has {glibc})"]
    return []


def _read_file(view: Mapping[str, Entry], path: str) -> bytes:
    """Return the content of the file that a path leads to; empty if the view lacks the content."""
    entry = view.get(root_file_system.resolve_path(view, path))
    while entry is not None and entry.kind == "hard":
        entry = view.get(entry.target)
    return entry.data or b"" if entry is not None and entry.kind == "file" else b""


def _find_release(view: Mapping[str, Entry]) -> str:
    """Return the name that the system gives itself in os-release."""
    content = _read_file(view, "etc/os-release") or _read_file(view, "usr/lib/os-release")
    match = re.search(r'(?m)^PRETTY_NAME="?([^"\n]*)', content.decode("utf-8", "replace"))
    return match[1][:80] if match else ""


def _find_glibc(view: Mapping[str, Entry]) -> tuple[str, str]:
    """Return the version in the C library's banner, and the architecture that it is built for."""
    for path in sorted(view):
        if not _LIBC.fullmatch(path):
            continue
        content = _read_file(view, path)
        banner = re.search(rb"GNU C Library [^\n]{0,80}release version (\d+\.\d+)", content)
        if banner:
            machine = int.from_bytes(content[18:20], "little")
            return banner[1].decode(), _MACHINES.get(machine, "another architecture")
    return "", ""


def _find_first_python(view: Mapping[str, Entry], versions: Sequence[str]) -> tuple[str, str]:
    """Return the version and full version of the first Python that the base has; empty if none."""
    for version in versions:
        if full_version := _find_full_version(view, version):
            return version, full_version
    return "", ""


def _list_pythons(view: Mapping[str, Entry]) -> list[str]:
    versions = {
        path.rpartition("python")[2] for path in view if re.fullmatch(r"usr/bin/python3\.\d+", path)
    }
    return sorted(versions, key=lambda version: int(version.partition(".")[2]))


def _find_full_version(view: Mapping[str, Entry], version: str) -> str:
    """Return the full version that a Python's program or library contains; empty if none does."""
    if f"usr/bin/python{version}" not in view:
        return ""
    libraries = sorted(
        path for path in view if path.startswith("usr/lib") and f"/libpython{version}.so" in path
    )
    # The text is a string of its own, or a linker has made it the end of another one, such as the
    # folder in which Python was built.
    pattern = rb"(?<![\d.])(" + re.escape(version).encode() + rb"\.\d+(?:(?:a|b|rc)\d+)?)\+?\0"
    for path in (f"usr/bin/python{version}", *libraries):
        if match := re.search(pattern, _read_file(view, path)):
            return match[1].decode()
    return ""


def _list_missing_modules(view: Mapping[str, Entry], version: str) -> list[str]:
    return [
        module.removesuffix("/__init__.py").removesuffix(".py")
        for module in _REQUIRED_MODULES
        if f"usr/lib/python{version}/{module}" not in view
    ]
