"""The record of which release of JAX each line has locked, and of the day of that release.

The day is that on which the package index got the locked file. The status page counts from it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from builder.core import log, package_index
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.core.manifest import Manifest
    from builder.packages.lock_file import Pin

RECORD = "locks/jax.json"


@dataclass(frozen=True)
class JaxRelease:
    """A release of JAX.

    Attributes:
        version: The version.
        released: The day of the upload in UTC, as YYYY-MM-DD, or None if the index does not tell.
    """

    version: str
    released: str | None


def load_record(file: Path) -> dict[str, JaxRelease]:
    """Return the release of JAX of each line, by the line's name.

    The result is empty if the file is missing or cannot be read: the builder makes it anew.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return {name: JaxRelease(**entry) for name, entry in document["lines"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def update_record(
    manifest: Manifest, pins_by_line: Mapping[str, Iterable[Pin]], *, offline: bool
) -> str:
    """Return the text of the record after some lines were locked, or "" if no line has JAX.

    Args:
        manifest: The manifest. A line that it no longer has is left out.
        pins_by_line: The pins of the common lock of each line that was locked.
        offline: Whether the network may not be used.
    """
    record = load_record(manifest.root / RECORD)
    releases: dict[str, JaxRelease | None] = dict(record)
    for line, pins in pins_by_line.items():
        releases[line] = _find_release(pins, record.get(line), offline=offline)
    lines = {
        name: asdict(release)
        for name, release in sorted(releases.items())
        if release and name in manifest.lines
    }
    return json.dumps({"schema": 1, "lines": lines}, indent=1) + "\n" if lines else ""


def _find_release(
    pins: Iterable[Pin], known: JaxRelease | None, *, offline: bool
) -> JaxRelease | None:
    """Return the release of JAX that a lock pins, or None if the lock does not pin JAX.

    Args:
        pins: The pins of the lock.
        known: What the record has for the line. It is kept if its version is still the locked one.
        offline: Whether the network may not be used.
    """
    jax = next((pin for pin in pins if pin.name == "jax"), None)
    if jax is None:
        return None
    if known and known.version == jax.version and known.released:
        return known
    return JaxRelease(jax.version, _find_release_day(jax, offline=offline))


def _find_release_day(jax: Pin, *, offline: bool) -> str | None:
    day, reason = None, "the network may not be used"
    if not offline:
        try:
            day = package_index.find_upload_day(jax.name, frozenset(jax.hashes))
            reason = "the package index does not tell"
        except UserError as error:
            reason = error.what
    if day is None:
        log.info(f"{jax.text}: the day of its release is not known: {reason}")
    return day


def find_problems(manifest: Manifest, pins_by_line: Mapping[str, Iterable[Pin]]) -> list[str]:
    """Return a problem for each line whose record is not of the JAX that its lock pins.

    Args:
        manifest: The manifest. Its folder has the record.
        pins_by_line: The pins of the common lock of each checked line.
    """
    record = load_record(manifest.root / RECORD)
    problems = []
    for line, pins in pins_by_line.items():
        locked = next((pin.version for pin in pins if pin.name == "jax"), None)
        recorded = record[line].version if line in record else None
        if locked != recorded:
            problems.append(
                f"{RECORD}: stale: line {line} has JAX {recorded or 'none'} in it, and "
                f"{locked or 'none'} in its lock"
            )
    return problems
