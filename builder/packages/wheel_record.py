"""Installed files compared with what their wheels say of them: the sha256 that each RECORD
lists.
"""

from __future__ import annotations

import base64
import concurrent.futures
import csv
import hashlib
import os
import re
from typing import TYPE_CHECKING

from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

_SHA256 = "sha256="


def find_edited_files(site: Path) -> dict[str, str]:
    """Return the projects below a site-packages folder that have a file which is not as RECORD
    lists it, each with such a file.

    A file that two wheels bring may be as either of them says. Rows without a hash say nothing.
    """
    digests: dict[str, set[str]] = {}
    projects: dict[str, str] = {}
    for info in sorted(site.glob("*.dist-info")):
        project = re.sub(
            r"[-_.]+", "-", info.name.removesuffix(".dist-info").rpartition("-")[0]
        ).lower()
        for path, digest in _read_rows(info / "RECORD"):
            digests.setdefault(path, set()).add(digest)
            projects.setdefault(path, project)
    paths = sorted(digests)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = pool.map(lambda path: _hash_file(f"{site}/{path}"), paths)
    wrong: dict[str, str] = {}
    for path, digest in zip(paths, found, strict=True):
        if digest not in digests[path]:
            wrong.setdefault(projects[path], path)
    return wrong


def require_unedited(site: Path, where: str) -> None:
    """Raise UserError where an installed file is not as its wheel says."""
    if wrong := find_edited_files(site):
        raise UserError(
            f"uv's cache holds files that are not the locked wheels': {describe_edits(wrong)}",
            where,
            f"{clean_command(wrong)}, and run again (without --offline)",
        )


def describe_edits(wrong: dict[str, str]) -> str:
    """Return the projects that `edited` gave, a few of them, each with its file."""
    named = [f"{path} of {project}" for project, path in sorted(wrong.items())]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


def clean_command(wrong: dict[str, str]) -> str:
    """Return the command that takes these projects out of uv's cache."""
    return f"uv cache clean {' '.join(sorted(wrong))}"


def _read_rows(record: Path) -> list[tuple[str, str]]:
    with open(record, encoding="utf-8", newline="") as file:
        return [
            (row[0], row[1].removeprefix(_SHA256))
            for row in csv.reader(file)
            if len(row) > 1 and row[1].startswith(_SHA256)
        ]


def _hash_file(file: str) -> str:
    """Return the sha256 of a file in RECORD's form; "" where it is not there."""
    try:
        with open(file, "rb") as content:
            raw = hashlib.file_digest(content, "sha256").digest()
    except OSError:
        return ""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
