"""The wheel of the bindings as a file: put together by us, or made elsewhere and checked.

Its bytes depend on nothing but its content.
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

PROJECT = "transformer_engine_jax"
NOTE = "rosetta-build.json"  # in its dist-info: what it was compiled from and with
_DATE = (1980, 1, 1, 0, 0, 0)
_MACHINES = {"amd64": 62, "arm64": 183}  # EM_X86_64, EM_AARCH64


@dataclass(frozen=True)
class Target:
    """What a wheel is for: "2.20.2", "cuda13", "amd64", "3.13"."""

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
        """The compiled module's place, as the package's own build has it."""
        abi = f"cpython-{self.python.replace('.', '')}"
        return f"transformer_engine/wheel_lib/{PROJECT}.{abi}-{TRIPLETS[self.architecture]}.so"


def adapt_metadata(text: str, accelerator: str) -> str:
    """Return the sdist's PKG-INFO, asking for the libraries of `accelerator` where it asks for
    those of the machine it was made on.
    """
    wanted = version_pins.library_project(accelerator).replace("-", "_")
    changed, count = re.subn(
        r"(?m)^(Requires-Dist: )transformer_engine_cu[0-9]+(==.*)$", rf"\g<1>{wanted}\g<2>", text
    )
    if count != 1:
        raise UserError(
            f"its metadata asks {count} times for its libraries, not once",
            "PKG-INFO",
            (
                "this release is not like those before: see "
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
    """Return the wheel with `content` (by its path below site-packages), in `folder`: sorted, with
    constant times, stored (another zlib would give other bytes).
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
    """Return the newest glibc whose symbols a compiled module wants, "2.34"; what is older cannot
    load it.
    """
    found = {
        tuple(int(part) for part in text.split(b"."))
        for text in re.findall(rb"\0GLIBC_([0-9]+\.[0-9]+)(?=[.\0])", module)
    }
    return ".".join(map(str, max(found, default=(2, 0))))


def check_wheel(path: Path, sha256: str, target: Target, inputs: str) -> str:
    """Return the name a wheel made elsewhere should have, once all that can be told of it is right.

    `inputs` is the key of what it must have been compiled against, held against the note in it.
    Raises UserError for another file than the sha256 says, another project, version, Python or
    architecture, a broken zip, missing libraries in its requirements.
    """
    where, do = (
        path.name,
        "make it by `build.py wheel transformer-engine` with the same manifest and locks",
    )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})",
            str(path),
            "give the path of the wheel",
            kind=MISSING,
        ) from error
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise UserError(
            f"has the sha256 {found}, not {sha256}",
            where,
            "get it again, or give the sha256 that its maker names",
            kind=DAMAGED,
            value=found,
        )
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise UserError(
            "is not the file name of a wheel", where, "keep the name it was made with", kind=INVALID
        ) from error
    if name != canonicalize_name(PROJECT) or str(version) != target.version:
        raise UserError(
            f"is {name} {version}, not {version_pins.SOURCE} {target.version}",
            where,
            do,
            kind=DIFFERS,
            value=f"{name} {version}",
        )
    interpreter, machine = target.tag.split("-")[0], target.tag.partition("linux_")[2]
    if not any(
        tag.interpreter == interpreter
        and tag.abi == interpreter
        and tag.platform.endswith(f"_{machine}")
        and "linux" in tag.platform
        for tag in tags
    ):
        raise UserError(
            f"is for {' '.join(sorted(map(str, tags)))}, not for {target.tag}",
            where,
            do,
            kind=DIFFERS,
            value=" ".join(sorted(map(str, tags))),
        )
    files = read_wheel_files(path)
    modules = [file for file in files if file.endswith(".so")]
    if modules != [target.module]:
        raise UserError(
            f"holds {', '.join(modules) or 'no compiled module'}, not {target.module}",
            where,
            do,
            kind=DIFFERS,
            value=", ".join(modules),
        )
    module = files[target.module][1]
    if (
        module[:6] != b"\x7fELF\x02\x01"
        or int.from_bytes(module[18:20], "little") != _MACHINES[target.architecture]
    ):
        raise UserError(
            f"its module is not compiled for {target.architecture}",
            where,
            do,
            kind=UNSUPPORTED,
            value=target.architecture,
        )
    info = f"{PROJECT}-{target.version}.dist-info"
    _check_requirements(
        files.get(f"{info}/METADATA", ("", b""))[1].decode("utf-8", "replace"), target, where, do
    )
    _check_note(files.get(f"{info}/{NOTE}", ("", b"{}"))[1], inputs, where, do)
    return target.file


def _check_requirements(text: str, target: Target, where: str, do: str) -> None:
    message = email.message_from_string(text)
    if (
        canonicalize_name(str(message.get("Name", ""))) != canonicalize_name(PROJECT)
        or message.get("Version") != target.version
    ):
        raise UserError(
            "its metadata names another project or version than its file name",
            where,
            do,
            kind=DIFFERS,
        )
    wanted = version_pins.library_project(target.accelerator)
    try:
        asked = {
            canonicalize_name(Requirement(str(line)).name)
            for line in message.get_all("Requires-Dist") or []
        }
    except InvalidRequirement as error:
        raise UserError(
            "its metadata holds a requirement that is none", where, do, kind=INVALID
        ) from error
    if others := {name for name in asked if name.startswith("transformer-engine")} - {wanted}:
        raise UserError(
            f"asks for {', '.join(sorted(others))}, not for {wanted}",
            where,
            do,
            kind=DIFFERS,
            value=", ".join(sorted(others)),
        )
    if wanted not in asked:
        raise UserError(f"does not ask for {wanted}", where, do, kind=MISSING, value=wanted)


def _check_note(raw: bytes, inputs: str, where: str, do: str) -> None:
    try:
        known = json.loads(raw).get("inputs", "")
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"its {NOTE} is broken", where, do, kind=DAMAGED) from error
    if not known:
        log.warn(
            f"{where} was not made by this builder: which JAX and CUDA it was compiled "
            "against cannot be told, only the sha256 vouches for it"
        )
    elif known != inputs:
        raise UserError(
            "was compiled from or against other packages than the locks name",
            where,
            do,
            kind=DIFFERS,
        )
