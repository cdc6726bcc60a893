"""Read a hashed requirements file as uv writes it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rosetta.core.errors import DAMAGED, INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Pin:
    """One locked project.

    Attributes:
        name: The normalised name of the project.
        version: The version.
        marker: The environments that the pin is for, or "" for all.
        hashes: The sha256 of each file that may be installed.
    """

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The requirement without its hashes: `name==version ; marker`."""
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")

    def applies_to(self, environment: Mapping[str, str]) -> bool:
        """Return whether the pin is for an environment.

        Args:
            environment: The variables of PEP 508, see `marker_environment`.
        """
        return not self.marker or Marker(self.marker).evaluate(dict(environment))

    def requirement_lines(self) -> str:
        """Return the pin with its hashes, as lines of a requirements file."""
        hashes = [f"    --hash=sha256:{digest}" for digest in self.hashes]
        return " \\\n".join([self.text, *hashes]) + "\n"


def read_lock(path: Path) -> list[Pin]:
    """Return all pins of a lock.

    Raises:
        UserError: The file cannot be read, or a line is not `name==version` with sha256 hashes.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(
            f"cannot be read ({reason})", str(path), "make it: python build.py lock", kind=MISSING
        ) from error
    _check_digest(text, path)
    return [_parse_pin(line, f"{path}:{number}") for number, line in _join_lines(text, path)]


def _join_lines(text: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield each requirement with the number of its first line; a backslash continues a line."""
    first_number, joined = 1, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not joined:
            if not line or line.startswith("#"):
                continue
            first_number = number
        joined += " " + line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first_number, joined.strip()
            joined = ""
    if joined:
        raise UserError(
            "ends in the middle of a requirement",
            f"{path}:{first_number}",
            "the file is machine-owned: python build.py lock",
            kind=DAMAGED,
        )


def _check_digest(text: str, path: Path) -> None:
    """Check the sha256 in the head of a lock against the pins below it.

    Raises:
        UserError: A line was changed or lost.
    """
    head = re.search(r"(?m)^# pins: ([0-9a-f]{64})\n", text)
    if head and hashlib.sha256(text[head.end() :].encode()).hexdigest() != head[1]:
        raise UserError(
            "was edited or cut off since it was made",
            str(path),
            "the file is machine-owned: git checkout it, or python build.py lock",
            kind=DAMAGED,
        )


def hash_lock(path: Path) -> str:
    """Return the sha256 of a lock file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})",
            str(path),
            "make it: python build.py lock",
            kind=MISSING,
        ) from error


def _parse_pin(text: str, where: str) -> Pin:
    """Return a pin from its requirement and hashes. `where` is the place that errors name."""
    requirement, *options = re.split(r"\s+--hash=", text)
    hashes = tuple(
        re.sub(r"\s+#.*", "", option).strip().removeprefix("sha256:") for option in options
    )
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement as error:
        raise UserError(
            "is not a locked requirement",
            where,
            "the file is machine-owned: python build.py lock",
            kind=INVALID,
        ) from error
    versions = [spec.version for spec in parsed.specifier if spec.operator == "=="]
    if (
        parsed.url
        or len(versions) != 1
        or not hashes
        or any(not re.fullmatch(r"[0-9a-f]{64}", digest) for digest in hashes)
    ):
        raise UserError(
            f"{parsed.name} is not pinned by version and sha256",
            where,
            "the file is machine-owned: python build.py lock",
            kind=INVALID,
            value=parsed.name,
        )
    pin = Pin(canonicalize_name(parsed.name), versions[0], str(parsed.marker or ""), hashes)
    try:
        pin.applies_to(marker_environment("3.11", "3.11.0", "amd64"))
    except (UndefinedComparison, UndefinedEnvironmentName) as error:
        raise UserError(
            f"the marker of {parsed.name} means nothing: {pin.marker}",
            where,
            "the file is machine-owned: python build.py lock",
            kind=INVALID,
            value=parsed.name,
        ) from error
    return pin


def marker_environment(python: str, full: str, architecture: str) -> dict[str, str]:
    """Return the variables of environment markers (PEP 508) for CPython on Linux.

    Args:
        python: The Python version, as "3.11".
        full: The same with the micro version, as "3.11.2".
        architecture: "amd64" or "arm64".
    """
    return {
        "python_version": python,
        "python_full_version": full,
        "platform_machine": {"amd64": "x86_64", "arm64": "aarch64"}[architecture],
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


def describe_changes(old: Iterable[Pin], new: Iterable[Pin]) -> list[str]:
    """Return one line for each project that was added, was removed, or has other versions or
    files.
    """
    before, after = _group_by_name(old), _group_by_name(new)
    lines = [f"+ {name} {_join_versions(after[name])}" for name in after if name not in before]
    lines += [f"- {name} {_join_versions(before[name])}" for name in before if name not in after]
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            old_versions = _join_versions(before[name])
            new_versions = _join_versions(after[name])
            if old_versions == new_versions:
                lines.append(f"{name} {old_versions}: other files or environments")
            else:
                lines.append(f"{name} {old_versions} -> {new_versions}")
    return lines


def _group_by_name(pins: Iterable[Pin]) -> dict[str, frozenset[Pin]]:
    groups: dict[str, frozenset[Pin]] = {}
    for pin in pins:
        groups[pin.name] = groups.get(pin.name, frozenset()) | {pin}
    return groups


def _join_versions(pins: Iterable[Pin]) -> str:
    return ", ".join(sorted({pin.version for pin in pins}))
