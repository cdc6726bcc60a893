"""Leave out files of installed packages, by the patterns of `strip` in the manifest.

RECORD no longer lists what is left out, so `pip` and `uv` can still remove or replace the package.
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

from builder.packages import licences, wheel_record
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.core.manifest import Strip

_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}


def strip_files(site: Path, entries: Iterable[Strip]) -> None:
    """Remove the files that the entries match, and their rows in RECORD.

    Args:
        site: The site-packages folder. Its files may be hard links, so none is written in place.
        entries: Entries with `files`. An entry for a project that is not installed is skipped.

    Raises:
        UserError: A pattern matches no file of its project. No file was removed.
    """
    entries_by_project: dict[str, list[Strip]] = {}
    for entry in entries:
        entries_by_project.setdefault(entry.name, []).append(entry)
    infos = {wheel_record.parse_project_name(info): info for info in site.glob("*.dist-info")}
    stripped_paths = {
        info: _find_paths(info, entries_by_project[project])
        for project, info in sorted(infos.items())
        if project in entries_by_project
    }
    for info, paths in stripped_paths.items():
        _remove_paths(info, paths)


def _find_paths(info: Path, entries: list[Strip]) -> set[str]:
    """Return the paths of a package's RECORD that the patterns match, except licence texts."""
    paths = [row[0] for row in _read_record(info) if not row[0].startswith(("../", "/"))]
    stripped: set[str] = set()
    for pattern in (pattern for entry in entries for pattern in entry.files):
        compiled = compile_pattern(pattern)
        matches = {path for path in paths if compiled.fullmatch(path)}
        if not matches:
            package = info.name.removesuffix(".dist-info")
            raise UserError(
                f"the pattern {pattern!r} matches no file of {package}",
                "manifest.yaml, strip",
                "remove the pattern, or give the path that the files have now",
                kind=MISSING,
                value=pattern,
            )
        stripped |= {path for path in matches if not licences.is_licence_text(path, info.name)}
    return stripped


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression for the whole of a path below site-packages.

    Args:
        pattern: A path with `*` and `**`. One that ends in `/` matches all that is below.
    """
    parts = re.split(r"(\*\*/|\*\*|\*)", pattern + "**" if pattern.endswith("/") else pattern)
    return re.compile("".join(_WILDCARDS.get(part) or re.escape(part) for part in parts))


def _read_record(info: Path) -> list[list[str]]:
    with open(info / "RECORD", encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file) if row]


def _remove_paths(info: Path, paths: set[str]) -> None:
    """Remove files of a package, the folders that become empty, and the rows of RECORD."""
    site = info.parent
    for path in paths:
        (site / path).unlink(missing_ok=True)
    folders = {parent for path in paths for parent in (site / path).parents}
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        if folder.is_relative_to(site) and folder != site and not any(folder.iterdir()):
            folder.rmdir()
    text = io.StringIO()
    rows = [row for row in _read_record(info) if row[0] not in paths]
    csv.writer(text, lineterminator="\n").writerows(rows)
    record = info / "RECORD"
    record.unlink()
    record.write_text(text.getvalue(), encoding="utf-8")
