"""Small Debian packages and small file systems, for tests that need no network and no Debian."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder.core import manifest
from builder.images.oci.tar_entry import Entry, make_file
from builder.packages.debian_lock import BaseLock, Deb

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PROGRAM = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
REAL = Path(__file__).parents[2] / "manifest.yaml"
ELF = b"\x7fELF".ljust(18, b"\0") + (62).to_bytes(2, "little")  # 62: x86_64
FACTS = {
    "libc": ELF + b"..GNU C Library (Debian GLIBC 2.41-12) stable release version 2.41.\n..",
    "python": b"\x7fELF..\x003.13.5\x00..",
}
STDLIB = (
    "os.py",
    "json/__init__.py",
    "ctypes/__init__.py",
    "sqlite3/__init__.py",
    "ssl.py",
    "multiprocessing/__init__.py",
    "lib-dynload/x.so",
)


def need_programs(*programs: str) -> None:
    """Skip, loudly, where a program is missing."""
    for program in programs:
        if not (shutil.which(program) or Path(program).is_file()):
            pytest.skip(f"NOT CHECKED: {program} is not on this machine")


def load_manifest(folder: Path) -> manifest.Manifest:
    """The real manifest, in a folder of the test's own for the locks."""
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    shutil.copy(REAL, folder / "manifest.yaml")
    return manifest_of(folder)


def manifest_of(folder: Path) -> manifest.Manifest:
    return manifest.load(folder / "manifest.yaml")


@dataclass
class Mirror:
    """A folder laid out as a Debian archive, with the packages that a test makes."""

    folder: Path
    packages: list[Deb] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"file:{self.folder}"

    def add(
        self, name: str, version: str = "1.0", layer: str = "os", content: str = "hello\n"
    ) -> Deb:
        tree = self.folder.parent / f"deb-{name}"
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "usr/share" / name).mkdir(parents=True)
        (tree / "usr/share" / name / "file").write_text(content)
        (tree / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <nobody@example.invalid>\nPriority: extra\nDescription: {name}\n of a test\n"
        )
        filename = f"pool/main/{name[0]}/{name}/{name}_{version}_all.deb"
        target = self.folder / filename
        target.parent.mkdir(parents=True)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "--build", tree, target],
            check=True,
            capture_output=True,
        )
        data = target.read_bytes()
        self.packages.append(
            Deb(name, version, "all", filename, hashlib.sha256(data).hexdigest(), len(data), layer)
        )
        return self.packages[-1]

    def lock(self, base: str = "trixie", architecture: str = "amd64") -> BaseLock:
        return BaseLock(base, base, architecture, "", (), tuple(self.packages))


def list_system_files(
    *,
    libc: bytes = FACTS["libc"],
    version: str = "3.13",
    python: bytes = FACTS["python"],
    stdlib: tuple[str, ...] = STDLIB,
) -> list[Entry]:
    """The files of a base that are looked at; what is empty is left out."""
    found = [
        make_file("usr/lib/os-release", 'PRETTY_NAME="A test"\n'),
        Entry("etc/os-release", "link", 0o777, target="../usr/lib/os-release"),
        Entry("lib", "link", 0o777, target="usr/lib"),
    ]
    if libc:
        found.append(make_file("usr/lib/x86_64-linux-gnu/libc.so.6", libc, 0o755))
    if python:
        found.append(make_file(f"usr/bin/python{version}", python, 0o755))
    return [
        *found,
        *(make_file(f"usr/lib/python{version}/{name}", b"") for name in stdlib),
        Entry(f"usr/lib/python{version}/lib-dynload", "dir", 0o755),
    ]


def _strip_library(path: Path) -> bytes:
    """Return a shared library without the symbols that only debuggers read."""
    if not shutil.which("strip"):
        return path.read_bytes()
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["strip", "--strip-unneeded", "-o", out.name, path], check=True)
        return Path(out.name).read_bytes()


# Parts of a standard library that no test starts.
_LEFT_OUT = {
    "test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "idlelib",
    "ensurepip",
    "lib2to3",
    "tkinter",
    "turtledemo",
    "pydoc_data",
    "unittest",
    "distutils",
}


def list_running_python_files() -> Iterator[Entry]:
    """Program, standard library and shared libraries of the Python that runs this.

    Without the static library that embeds a Python, which is half of all the bytes, and as
    Debian has them without symbols for debuggers, which are half of the rest.
    """
    yield make_file(f"usr/bin/python{HERE}", PROGRAM.read_bytes(), 0o755)
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*")):
        parts = path.relative_to(library).parts
        if path.is_file() and path.suffix != ".a" and not _LEFT_OUT.intersection(parts):
            content = _strip_library(path) if path.suffix == ".so" else path.read_bytes()
            yield make_file(f"usr/lib/python{HERE}/{path.relative_to(library)}", content)
    needed = set(
        re.findall(
            r"(/\S+)",
            subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout,
        )
    )
    folder = f"usr/lib/{platform.machine()}-linux-gnu"
    for name in sorted(needed):
        yield make_file(
            name.lstrip("/") if "ld-linux" in name else f"{folder}/{os.path.basename(name)}",
            _strip_library(Path(name)),
            0o755,
        )
