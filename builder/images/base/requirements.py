"""What is known of a base without running anything of it: its C library, its Pythons, whether an
image can stand on it.
"""

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

MINIMUM_GLIBC = (2, 28)  # what the wheels in the locks are built for
_LIBC = re.compile(r"(usr/)?lib(64|/[\w-]+-linux-gnu)?/(libc\.so\.6|libc-[\d.]+\.so)")
_PYTHON = re.compile(r"usr/(bin/python3\.\d+|lib(64|/[\w-]+-linux-gnu)?/libpython3\.\d+\.so[\d.]*)")
_RELEASE = re.compile(r"(etc|usr/lib)/os-release")
# Parts of the standard library that distributions put into packages of their own; a trainer needs
# them all.
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
    """`glibc` "2.41", `python` "3.13", `python_full` "3.13.5", `release` as the system calls
    itself.
    """

    glibc: str
    python: str
    python_full: str
    release: str


def scan_layers(blobs: Iterable[Path]) -> dict[str, Entry]:
    """Return what the layers show, with the contents that `facts` reads."""
    return root_file_system.merge_layers(
        blobs,
        lambda entry: bool(
            _LIBC.fullmatch(entry.path)
            or _PYTHON.fullmatch(entry.path)
            or _RELEASE.fullmatch(entry.path)
        ),
    )


def find_facts(
    shown: Mapping[str, Entry], name: str, architecture: str, pythons: Sequence[str]
) -> BaseFacts:
    """Return the facts of a base; of its Pythons the first that `pythons` names.

    One UserError that lists all that is missing.
    """
    missing = []
    release = _find_release(shown)
    glibc, machine = _find_glibc(shown)
    if not glibc:
        missing.append("glibc (wheels need it; musl is another C library)")
    elif tuple(map(int, glibc.split("."))) < MINIMUM_GLIBC:
        missing.append(f"glibc {MINIMUM_GLIBC[0]}.{MINIMUM_GLIBC[1]} or newer (it has {glibc})")
    if machine and machine != architecture:
        missing.append(f"programs for {architecture} (its are for {machine})")
    found = next((each for version in pythons if (each := _find_python(shown, version))), None)
    if found is None:
        present = sorted(
            {
                path.rpartition("python")[2]
                for path in shown
                if re.fullmatch(r"usr/bin/python3\.\d+", path)
            },
            key=lambda each: int(each[2:]),
        )
        missing.append(
            f"Python {' or '.join(sorted(pythons))} in /usr/bin (it has "
            f"{', '.join(present) or 'none'})"
        )
    elif lacking := _list_missing_modules(shown, found[0]):
        missing.append(
            f"of Python {found[0]}'s standard library: {', '.join(lacking)} (Debian and "
            "Ubuntu: the package python3)"
        )
    if missing:
        raise UserError(
            (
                f"no image can stand on this base{f' ({release})' if release else ''}: it lacks "
                f"{'; '.join(missing)}"
            ),
            name,
            "give another --base; Debian 12 or 13 and NVIDIA's CUDA images of Ubuntu 24.04 will do",
            kind=UNSUPPORTED,
        )
    return BaseFacts(glibc, *(found or ("", "")), release)


def _read_file(shown: Mapping[str, Entry], path: str) -> bytes:
    """Return the content of the file that a path leads to; nothing where it was not kept."""
    entry = shown.get(root_file_system.resolve_path(shown, path))
    while entry is not None and entry.kind == "hard":
        entry = shown.get(entry.target)
    return entry.data or b"" if entry is not None and entry.kind == "file" else b""


def _find_release(shown: Mapping[str, Entry]) -> str:
    text = (_read_file(shown, "etc/os-release") or _read_file(shown, "usr/lib/os-release")).decode(
        "utf-8", "replace"
    )
    name = re.search(r'(?m)^PRETTY_NAME="?([^"\n]*)', text)
    return name[1][:80] if name else ""


def _find_glibc(shown: Mapping[str, Entry]) -> tuple[str, str]:
    """Return the version in the library's own banner, and the architecture it is built for."""
    for path in sorted(shown):
        if _LIBC.fullmatch(path) and (
            banner := re.search(
                rb"GNU C Library [^\n]{0,80}release version (\d+\.\d+)",
                data := _read_file(shown, path),
            )
        ):
            return banner[1].decode(), _MACHINES.get(
                int.from_bytes(data[18:20], "little"), "another architecture"
            )
    return "", ""


def _find_python(shown: Mapping[str, Entry], version: str) -> tuple[str, str] | None:
    """Version and full version of a Python; the latter is what its program or its library says."""
    if f"usr/bin/python{version}" not in shown:
        return None
    libraries = sorted(
        path for path in shown if path.startswith("usr/lib") and f"/libpython{version}.so" in path
    )
    for path in (f"usr/bin/python{version}", *libraries):
        # The string stands alone, or a linker has made it the end of another one, such as the
        # folder it was built in.
        if full := re.search(
            rb"(?<![\d.])(" + re.escape(version).encode() + rb"\.\d+(?:(?:a|b|rc)\d+)?)\+?\0",
            _read_file(shown, path),
        ):
            return version, full[1].decode()
    return None


def _list_missing_modules(shown: Mapping[str, Entry], version: str) -> list[str]:
    return [
        part.removesuffix("/__init__.py").removesuffix(".py")
        for part in _REQUIRED_MODULES
        if f"usr/lib/python{version}/{part}" not in shown
    ]
