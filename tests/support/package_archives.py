"""Projects on the loopback index: wheels for chosen systems and sdists, each with the requirements that a test wants."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.package_index import Index

PURE = "py3-none-any"


def format_metadata(name: str, version: str, requires: tuple[str, ...]) -> str:
    """A `requires` that starts with python is a Requires-Python."""
    fields = [
        f"Requires-Python: {text.removeprefix('python')}"
        if text.startswith("python>")
        else f"Requires-Dist: {text}"
        for text in requires
    ]
    lines = ["Metadata-Version: 2.2", f"Name: {name}", f"Version: {version}", *fields]
    return "\n".join(lines) + "\n"


def write_wheel(folder: Path, name: str, version: str, *requires: str, tag: str = PURE) -> Path:
    """A wheel of one empty module."""
    module = name.replace("-", "_")
    info, path = f"{module}-{version}.dist-info", folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", f"# {tag}\n")
        archive.writestr(f"{info}/METADATA", format_metadata(name, version, requires))
        tags = "".join(
            f"Tag: {tag.rpartition('-')[0]}-{platform}\n"
            for platform in tag.rpartition("-")[2].split(".")
        )
        archive.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\n{tags}"
        )
        archive.writestr(
            f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    return path


def publish_wheel(
    index: Index, folder: Path, name: str, version: str, *requires: str, tag: str = PURE
) -> str:
    """Put a wheel on the index; returns its sha256."""
    return index.add(name, write_wheel(folder, name, version, *requires, tag=tag))


def publish_sdist(
    index: Index, folder: Path, name: str, version: str, *requires: str, form: str = "tar.gz"
) -> str:
    """Put an sdist on the index whose requirements can be read without a build; returns its sha256."""
    files = {
        "PKG-INFO": format_metadata(name, version, requires),
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "none"\n',
    }
    root = f"{name}-{version}"
    return index.add(
        name,
        pack_sdist(
            folder / f"{root}.{form}", {f"{root}/{file}": text for file, text in files.items()}
        ),
    )


def pack_sdist(path: Path, files: Mapping[str, str]) -> Path:
    """Write these files as the archive that the name of `path` asks for; return it."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name, text in files.items():
                packed.writestr(name, text)
        return path
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path
