"""Write the wheel of the bindings, or check a wheel that was built elsewhere.

The same content gives the same bytes.
"""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import io
import json
import re
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builder.core import log
from builder.packages.transformer_engine import version_pins
from builder.packages.transformer_engine.header_packages import TRIPLETS
from builder.upstream.wheel_source import read_wheel_files
from rosetta.core.errors import DAMAGED, DIFFERS, INVALID, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from packaging.tags import Tag

PROJECT = "transformer_engine_jax"
NOTE = "rosetta-build.json"  # in the dist-info folder: the inputs and the compiler
_DATE = (1980, 1, 1, 0, 0, 0)
_MACHINES = {"amd64": 62, "arm64": 183}  # EM_X86_64, EM_AARCH64
_REBUILD = "build it with `build.py wheel transformer-engine` from the same manifest and locks"


@dataclass(frozen=True)
class Target:
    """What a wheel is for, for example "2.20.2", "cuda13", "amd64" and "3.13"."""

    version: str
    accelerator: str
    architecture: str
    python: str

    @property
    def tag(self) -> str:
        """The compatibility tag of the wheel."""
        short = self.python.replace(".", "")
        return f"cp{short}-cp{short}-linux_{TRIPLETS[self.architecture].partition('-')[0]}"

    @property
    def file(self) -> str:
        """The file name of the wheel."""
        return f"{PROJECT}-{self.version}-{self.tag}.whl"

    @property
    def module(self) -> str:
        """The path of the compiled module below site-packages, as in upstream's build."""
        abi = f"cpython-{self.python.replace('.', '')}"
        return f"transformer_engine/wheel_lib/{PROJECT}.{abi}-{TRIPLETS[self.architecture]}.so"


def adapt_metadata(text: str, accelerator: str) -> str:
    """Return the PKG-INFO of the sdist with a requirement for an accelerator's libraries.

    The original requires the libraries for the CUDA version of the machine that made the sdist.

    Raises:
        UserError: The text does not have exactly one such requirement.
    """
    project = version_pins.library_project(accelerator).replace("-", "_")
    changed, count = re.subn(
        r"(?m)^(Requires-Dist: )transformer_engine_cu[0-9]+(==.*)$", rf"\g<1>{project}\g<2>", text
    )
    if count != 1:
        raise UserError(
            f"its metadata requires its libraries {count} times, not once",
            "PKG-INFO",
            (
                "this release differs from earlier ones: see "
                "builder/packages/transformer_engine/wheel_file.py"
            ),
            kind=UNSUPPORTED,
            value=count,
        )
    return changed


def write_wheel(
    folder: Path,
    target: Target,
    content: Mapping[str, bytes],
    meta: str,
    licence: bytes,
    note: Mapping[str, Any],
) -> Path:
    """Write a wheel and return its path.

    The files are sorted and have constant times. They are stored without compression, because
    versions of zlib give different bytes.

    Args:
        folder: The folder of the wheel.
        target: What the wheel is for.
        content: The files by path below site-packages.
        meta: The text of METADATA.
        licence: The text of the licence.
        note: The content of `rosetta-build.json`.
    """
    info = f"{PROJECT}-{target.version}.dist-info"
    files = {
        **content,
        f"{info}/METADATA": meta.encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: rosetta\nRoot-Is-Purelib: false\nTag: {target.tag}\n\n"
        ).encode(),
        f"{info}/licenses/LICENSE": licence,
        f"{info}/top_level.txt": f"{PROJECT}\n".encode(),
        f"{info}/{NOTE}": (json.dumps(note, sort_keys=True, indent=1) + "\n").encode(),
    }
    rows = [
        (
            name,
            f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()}",
            len(data),
        )
        for name, data in sorted(files.items())
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
    files[f"{info}/RECORD"] = text.getvalue().encode()
    path = folder / target.file
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(
            files.items(), key=lambda item: (".dist-info/" in item[0], item[0])
        ):
            member = zipfile.ZipInfo(name, _DATE)
            member.external_attr = (0o100755 if ".dist-info/" not in name else 0o100644) << 16
            archive.writestr(member, data)
    return path


def find_required_glibc(module: bytes) -> str:
    """Return the oldest glibc that can load a compiled module, for example "2.34"."""
    versions = {
        tuple(int(part) for part in text.split(b"."))
        for text in re.findall(rb"\0GLIBC_([0-9]+\.[0-9]+)(?=[.\0])", module)
    }
    return ".".join(map(str, max(versions, default=(2, 0))))


def check_wheel(path: Path, sha256: str, target: Target, inputs: str) -> str:
    """Check a wheel that was built elsewhere.

    Args:
        path: The wheel.
        sha256: The hash that the builder of the wheel gave.
        target: What the wheel has to be for.
        inputs: The key of the inputs that the wheel has to be compiled from and against.

    Returns:
        The file name of the wheel.

    Raises:
        UserError: The hash, the project, the version, the Python or the architecture differs, the
            zip is damaged, or the requirements lack the libraries.
    """
    _check_hash(path, sha256)
    _check_file_name(path.name, target)
    files = read_wheel_files(path)
    _check_module({name: data for name, (_, data) in files.items()}, path.name, target)
    info = f"{PROJECT}-{target.version}.dist-info"
    metadata = files.get(f"{info}/METADATA", ("", b""))[1].decode("utf-8", "replace")
    _check_requirements(metadata, target, path.name)
    _check_note(files.get(f"{info}/{NOTE}", ("", b"{}"))[1], inputs, path.name)
    return target.file


def _check_hash(path: Path, sha256: str) -> None:
    try:
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})",
            str(path),
            "give the path of the wheel",
            kind=MISSING,
        ) from error
    if actual != sha256:
        raise UserError(
            f"has the sha256 {actual}, not {sha256}",
            path.name,
            "copy the wheel again, or give the sha256 that its builder printed",
            kind=DAMAGED,
            value=actual,
        )


def _check_file_name(file_name: str, target: Target) -> None:
    try:
        name, version, _, tags = parse_wheel_filename(file_name)
    except InvalidWheelFilename as error:
        raise UserError(
            "is not the file name of a wheel",
            file_name,
            "keep the name that the build gave",
            kind=INVALID,
        ) from error
    if name != canonicalize_name(PROJECT) or str(version) != target.version:
        raise UserError(
            f"is {name} {version}, not {version_pins.SOURCE} {target.version}",
            file_name,
            _REBUILD,
            kind=DIFFERS,
            value=f"{name} {version}",
        )
    if not any(_tag_matches(tag, target) for tag in tags):
        tag_names = " ".join(sorted(map(str, tags)))
        raise UserError(
            f"is for {tag_names}, not for {target.tag}",
            file_name,
            _REBUILD,
            kind=DIFFERS,
            value=tag_names,
        )


def _tag_matches(tag: Tag, target: Target) -> bool:
    interpreter, machine = target.tag.split("-")[0], target.tag.partition("linux_")[2]
    return (
        tag.interpreter == interpreter
        and tag.abi == interpreter
        and tag.platform.endswith(f"_{machine}")
        and "linux" in tag.platform
    )


def _check_module(files: Mapping[str, bytes], where: str, target: Target) -> None:
    modules = [name for name in files if name.endswith(".so")]
    if modules != [target.module]:
        raise UserError(
            f"has {', '.join(modules) or 'no compiled module'}, not {target.module}",
            where,
            _REBUILD,
            kind=DIFFERS,
            value=", ".join(modules),
        )
    module = files[target.module]
    machine = int.from_bytes(module[18:20], "little")
    if module[:6] != b"\x7fELF\x02\x01" or machine != _MACHINES[target.architecture]:
        raise UserError(
            f"its module is not compiled for {target.architecture}",
            where,
            _REBUILD,
            kind=UNSUPPORTED,
            value=target.architecture,
        )


def _check_requirements(text: str, target: Target, where: str) -> None:
    message = email.message_from_string(text)
    if (
        canonicalize_name(str(message.get("Name", ""))) != canonicalize_name(PROJECT)
        or message.get("Version") != target.version
    ):
        raise UserError(
            "its metadata names another project or version than its file name",
            where,
            _REBUILD,
            kind=DIFFERS,
        )
    library = version_pins.library_project(target.accelerator)
    try:
        required = {
            canonicalize_name(Requirement(str(line)).name)
            for line in message.get_all("Requires-Dist") or []
        }
    except InvalidRequirement as error:
        raise UserError(
            "its metadata has an invalid requirement", where, _REBUILD, kind=INVALID
        ) from error
    others = {name for name in required if name.startswith("transformer-engine")} - {library}
    if others:
        raise UserError(
            f"requires {', '.join(sorted(others))}, not {library}",
            where,
            _REBUILD,
            kind=DIFFERS,
            value=", ".join(sorted(others)),
        )
    if library not in required:
        raise UserError(f"does not require {library}", where, _REBUILD, kind=MISSING, value=library)


def _check_note(raw: bytes, inputs: str, where: str) -> None:
    try:
        actual_inputs = json.loads(raw).get("inputs", "")
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"its {NOTE} is damaged", where, _REBUILD, kind=DAMAGED) from error
    if not actual_inputs:
        log.warn(
            f"{where} was not built by this builder: the JAX and CUDA versions that it was "
            "compiled against are unknown, and only its sha256 was checked"
        )
    elif actual_inputs != inputs:
        raise UserError(
            "was compiled from or against other packages than the locked ones",
            where,
            _REBUILD,
            kind=DIFFERS,
        )
