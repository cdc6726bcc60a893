"""Compare installed files with the sha256 hashes in the RECORD of their wheels."""

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
    """Return an edited file for each project of a site-packages folder that has one.

    A file is edited if its hash differs from the one in RECORD. If two wheels have the same file,
    either hash is accepted. Rows without a hash are skipped.
    """
    digests: dict[str, set[str]] = {}
    projects: dict[str, str] = {}
    for info in sorted(site.glob("*.dist-info")):
        project = _project_name(info)
        for path, digest in _read_rows(info / "RECORD"):
            digests.setdefault(path, set()).add(digest)
            projects.setdefault(path, project)
    paths = sorted(digests)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        actual_digests = pool.map(lambda path: _hash_file(f"{site}/{path}"), paths)
    edited: dict[str, str] = {}
    for path, actual in zip(paths, actual_digests, strict=True):
        if actual not in digests[path]:
            edited.setdefault(projects[path], path)
    return edited


def _project_name(info: Path) -> str:
    name = info.name.removesuffix(".dist-info").rpartition("-")[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def require_unedited(site: Path, where: str) -> None:
    """Raise UserError if an installed file differs from its wheel."""
    if edited := find_edited_files(site):
        raise UserError(
            f"uv's cache has files that differ from the locked wheels: {describe_edits(edited)}",
            where,
            f"{clean_command(edited)}, and run again (without --offline)",
        )


def describe_edits(edited: dict[str, str]) -> str:
    """Return a text with up to three of the files that `find_edited_files` returned."""
    files = [f"{path} of {project}" for project, path in sorted(edited.items())]
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def clean_command(edited: dict[str, str]) -> str:
    """Return the command that removes the edited projects from uv's cache."""
    return f"uv cache clean {' '.join(sorted(edited))}"


def _read_rows(record: Path) -> list[tuple[str, str]]:
    """Return the path and the hash of each row that has one."""
    with open(record, encoding="utf-8", newline="") as file:
        return [
            (row[0], row[1].removeprefix(_SHA256))
            for row in csv.reader(file)
            if len(row) > 1 and row[1].startswith(_SHA256)
        ]


def _hash_file(file: str) -> str:
    """Return the sha256 of a file in the form of RECORD; "" if it is missing."""
    try:
        with open(file, "rb") as content:
            raw = hashlib.file_digest(content, "sha256").digest()
    except OSError:
        return ""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
