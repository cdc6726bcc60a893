"""Make a pure Python wheel from a wheel with compiled files.

The result is for architectures for which the publisher has no wheel. The Python modules of such a
package work there without the compiled files.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from typing import TYPE_CHECKING

from builder.core import package_index
from builder.core.cache import Cache, stage_key
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.packages.lock_file import Pin
    from builder.packages.python_interpreter import Interpreter

_COMPILED = re.compile(r"\.so(\.[0-9.]+)?$|\.(pyd|dll|dylib|a|o)$")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date of the zip format


def ensure_wheel(cache: Cache, pin: Pin, python: Interpreter, *, offline: bool) -> Path:
    """Return the pure Python wheel of a package; make it if the cache lacks it.

    Args:
        cache: Keeps the wheel.
        pin: The locked package, with the hash of its amd64 wheel.
        python: The Python whose amd64 wheel is the source.
        offline: Fetch nothing from the network.
    """
    abi = "cp" + python.version.replace(".", "")
    key = stage_key(
        "strip", {"name": pin.name, "version": pin.version, "hashes": pin.hashes, "abi": abi}
    )

    def strip(folder: Path) -> None:
        source = package_index.fetch_file(
            pin.name,
            pin.version,
            frozenset(pin.hashes),
            cache.path("wheels", "compiled"),
            part=f"-{abi}-",
            offline=offline,
        )
        strip_wheel(source, folder / f"{pin.name.replace('-', '_')}-{pin.version}-py3-none-any.whl")

    folder = cache.ensure_folder("wheels", f"stripped-{key}", strip)
    return next(folder.glob("*.whl"))


def strip_wheel(source: Path, target: Path) -> None:
    """Write a py3-none-any wheel without the compiled files of another wheel.

    The same source gives the same bytes.

    Args:
        source: The wheel with compiled files.
        target: The path of the new wheel.
    """
    content = _read_pure_files(source)
    info = _find_dist_info(content, source)
    content[f"{info}/WHEEL"] = _pure_wheel_text(content[f"{info}/WHEEL"])
    content.pop(f"{info}/RECORD", None)
    content[f"{info}/RECORD"] = _record_text(content, info)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content[name])


def _read_pure_files(source: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(source) as archive:
        return {
            name: archive.read(name)
            for name in sorted(archive.namelist())
            if not name.endswith("/") and not _COMPILED.search(name)
        }


def _find_dist_info(content: dict[str, bytes], source: Path) -> str:
    paths = [name for name in content if re.fullmatch(r"[^/]+\.dist-info/WHEEL", name)]
    if len(paths) != 1:
        raise UserError("is not a wheel", str(source), "delete it and run again", kind=INVALID)
    return paths[0].rpartition("/")[0]


def _pure_wheel_text(text: bytes) -> bytes:
    """Return the file WHEEL with the tag of a pure Python wheel."""
    lines = [
        line
        for line in text.decode().splitlines()
        if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    return "\n".join([*lines, "Root-Is-Purelib: true", "Tag: py3-none-any", ""]).encode()


def _record_text(content: dict[str, bytes], info: str) -> bytes:
    """Return the file RECORD for the other files of a wheel."""
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name in sorted(content):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest())
        rows.writerow([name, f"sha256={digest.rstrip(b'=').decode()}", len(content[name])])
    rows.writerow([f"{info}/RECORD", "", ""])
    return record.getvalue().encode()
