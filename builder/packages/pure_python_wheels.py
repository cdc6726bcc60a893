"""A wheel without its compiled parts, for an architecture its publisher has none for: what is pure
Python in it works there all the same.
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
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date a zip can hold


def ensure_wheel(cache: Cache, pin: Pin, python: Interpreter, *, offline: bool) -> Path:
    """Return the pure wheel made of `pin`'s locked amd64 wheel for this Python."""
    abi = "cp" + python.version.replace(".", "")
    key = stage_key(
        "strip", {"name": pin.name, "version": pin.version, "hashes": pin.hashes, "abi": abi}
    )

    def make(folder: Path) -> None:
        source = package_index.fetch_file(
            pin.name,
            pin.version,
            frozenset(pin.hashes),
            cache.path("wheels", "compiled"),
            part=f"-{abi}-",
            offline=offline,
        )
        strip_wheel(source, folder / f"{pin.name.replace('-', '_')}-{pin.version}-py3-none-any.whl")

    folder = cache.ensure_folder("wheels", f"stripped-{key}", make)
    return next(folder.glob("*.whl"))


def strip_wheel(source: Path, target: Path) -> None:
    """Write `target`, a py3-none-any wheel of `source` without compiled files; the same bytes for
    the same source.
    """
    with zipfile.ZipFile(source) as archive:
        names = sorted(
            name
            for name in archive.namelist()
            if not name.endswith("/") and not _COMPILED.search(name)
        )
        infos = [name for name in names if re.fullmatch(r"[^/]+\.dist-info/WHEEL", name)]
        if len(infos) != 1:
            raise UserError("is not a wheel", str(source), "delete it and run again", kind=INVALID)
        content = {name: archive.read(name) for name in names}
    info = infos[0].rpartition("/")[0]
    kept = [
        line
        for line in content[f"{info}/WHEEL"].decode().splitlines()
        if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    content[f"{info}/WHEEL"] = "\n".join(
        [*kept, "Root-Is-Purelib: true", "Tag: py3-none-any", ""]
    ).encode()
    content.pop(f"{info}/RECORD", None)
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name in sorted(content):
        digest = (
            base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).rstrip(b"=").decode()
        )
        rows.writerow([name, f"sha256={digest}", len(content[name])])
    rows.writerow([f"{info}/RECORD", "", ""])
    content[f"{info}/RECORD"] = record.getvalue().encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content[name])
