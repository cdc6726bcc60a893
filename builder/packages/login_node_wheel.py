"""Build the wheel for login nodes: the package and the program `rosetta`, without JAX.

The wheel works with Python 3.9 and newer, and requires only PyYAML.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from typing import TYPE_CHECKING

from builder import __version__

if TYPE_CHECKING:
    from pathlib import Path

NAME = f"rosetta_launcher-{__version__}-py3-none-any.whl"
_INFO = f"rosetta_launcher-{__version__}.dist-info"
_TEXTS = {
    "METADATA": f"""\
Metadata-Version: 2.1
Name: rosetta-launcher
Version: {__version__}
Summary: Starts runs of T5X and Paxml from a login node: rosetta run, submit, explain, doctor
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: PyYAML
""",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: rosetta\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "entry_points.txt": "[console_scripts]\nrosetta = rosetta.cli:main\n",
}
_DATE = (
    1980,
    1,
    1,
    0,
    0,
    0,
)  # the first date of the zip format; a constant keeps the wheel reproducible


def build_wheel(root: Path) -> bytes:
    """Return the bytes of the wheel; the same files give the same bytes.

    Args:
        root: The folder of the checkout.
    """
    package = root / "rosetta"
    files = {
        f"rosetta/{path.relative_to(package)}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files |= {f"{_INFO}/{name}": text.encode("ascii") for name, text in _TEXTS.items()}
    files[f"{_INFO}/LICENSE"] = (root / "LICENSE").read_bytes()
    record = [f"{name},{_record_hash(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{_INFO}/RECORD"] = "".join([*record, f"{_INFO}/RECORD,,\n"]).encode()
    return _pack_files(files)


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def _pack_files(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()
