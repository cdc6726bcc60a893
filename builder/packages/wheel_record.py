"""Compare installed files with the sha256 hashes in the RECORD of their wheels."""

from __future__ import annotations

import base64
import concurrent.futures
import csv
import hashlib
import os
import re
from typing import TYPE_CHECKING

from rosetta.core.errors import DENIED, UserError

if TYPE_CHECKING:
    from pathlib import Path

_SHA256 = "sha256="


def find_edited_files(site: Path) -> dict[str, str]:
    """Return the projects of a site-packages folder with an edited file, each with the first one.

    A file is edited if it is missing, or if its hash differs from the one in RECORD. If two wheels
    have the same file, either hash is accepted. Rows without a hash are skipped.

    Returns:
        The path of the file below `site`, by the project's normalised name.

    Raises:
        UserError: A file cannot be read.
    """
    recorded_digests: dict[str, set[str]] = {}  # by path
    project_of_path: dict[str, str] = {}
    for info in sorted(site.glob("*.dist-info")):
        project = parse_project_name(info)
        for path, digest in _read_rows(info / "RECORD"):
            recorded_digests.setdefault(path, set()).add(digest)
            project_of_path.setdefault(path, project)
    paths = sorted(recorded_digests)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        actual_digests = pool.map(lambda path: _hash_file(f"{site}/{path}"), paths)
    edited: dict[str, str] = {}
    for path, actual in zip(paths, actual_digests, strict=True):
        if actual not in recorded_digests[path]:
            edited.setdefault(project_of_path[path], path)
    return edited


def parse_project_name(info: Path) -> str:
    """Return the normalised name of a project from the path of its .dist-info folder."""
    name = info.name.removesuffix(".dist-info").rpartition("-")[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def require_unedited(site: Path, where: str) -> None:
    """Raise UserError if an installed file differs from its wheel.

    The files may be hard links into uv's cache, so an edited file is edited in the cache too.

    Args:
        site: The site-packages folder that uv installed into.
        where: The place that the error names.
    """
    if edited := find_edited_files(site):
        raise UserError(
            f"uv's cache has files that differ from the locked wheels: {describe_edits(edited)}",
            where,
            f"{make_clean_command(edited)}, and run again (without --offline)",
        )


def describe_edits(edited: dict[str, str]) -> str:
    """Return a text that names up to three of the files from `find_edited_files`."""
    files = [f"{path} of {project}" for project, path in sorted(edited.items())]
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def make_clean_command(edited: dict[str, str]) -> str:
    """Return the command that removes the edited projects from uv's cache."""
    return f"uv cache clean {' '.join(sorted(edited))}"


def _read_rows(record: Path) -> list[tuple[str, str]]:
    """Return the path and the sha256 of each row of a RECORD file that has a sha256."""
    with open(record, encoding="utf-8", newline="") as file:
        return [
            (row[0], row[1].removeprefix(_SHA256))
            for row in csv.reader(file)
            if len(row) > 1 and row[1].startswith(_SHA256)
        ]


def _hash_file(file: str) -> str:
    """Return the sha256 of a file in RECORD's encoding, base64 without padding.

    "" if there is no such file.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        with open(file, "rb") as content:
            raw = hashlib.file_digest(content, "sha256").digest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""
    except OSError as error:
        raise UserError(
            f"an installed file cannot be read ({error.strerror})",
            file,
            "make the file readable for this user, or check the disk",
            kind=DENIED,
        ) from error
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
