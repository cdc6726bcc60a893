"""A source's patches in their order: the folder with `series` and one file a patch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.upstream import patch_file
from rosetta.core.atomic_files import is_temporary
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from builder.upstream.patch_file import Patch

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*")


def find_name_problem(name: str) -> str | None:
    """Why `name` is no name of a patch."""
    if _NAME.fullmatch(name) and ".." not in name and not name.endswith(".patch"):
        return None
    return (
        f"{name!r} is no patch name (a letter first, then letters, digits and _.+-; without "
        ".patch; the order stands in series)"
    )


def read_names(folder: Path) -> list[str]:
    """Return the patches that `series` lists, in order."""
    file = folder / "series"
    if file.is_symlink() or not file.is_file():
        raise UserError(
            "is not there",
            str(file),
            "write the patches' names into it, one a line (it may be empty)",
            kind=MISSING,
        )
    found: list[str] = []
    for number, line in enumerate(read_text(file).split("\n"), 1):
        entry = line.split("#")[0].strip()
        if not entry:
            continue
        if problem := find_name_problem(entry):
            raise UserError(
                problem,
                f"{file}:{number}",
                "name the patch NAME.patch of this folder NAME",
                kind=INVALID,
                value=entry,
            )
        if entry in found:
            raise UserError(
                f"{entry} comes twice",
                f"{file}:{number}",
                "keep one of the two",
                kind=CONFLICT,
                value=entry,
            )
        found.append(entry)
    return found


def load_patches(folder: Path, *, tolerated: Collection[str] = ()) -> tuple[Patch, ...]:
    """All patches, read and linted.

    A file that is not in `series` is an error unless its name is among `tolerated`.
    """
    listed = [f"{name}.patch" for name in read_names(folder)]
    present = {entry.name for entry in folder.iterdir() if not is_temporary(entry.name)} - {
        "series"
    }
    for entry in listed:
        if entry not in present:
            raise UserError(
                f"lists {entry}, which is not there",
                str(folder / "series"),
                "add the file or drop the line",
                kind=MISSING,
                value=entry,
            )
        if (folder / entry).is_symlink() or not (folder / entry).is_file():
            raise UserError(
                "is not a plain file",
                str(folder / entry),
                "put the patch itself there",
                kind=INVALID,
            )
    if extra := sorted(present - set(listed) - set(tolerated)):
        raise UserError(
            "is not in series",
            str(folder / extra[0]),
            "list it there or remove the file",
            kind=UNKNOWN,
        )
    return tuple(
        patch_file.parse_patch(folder / entry, (folder / entry).read_bytes()) for entry in listed
    )


def read_text(file: Path) -> str:
    """Return a UTF-8 text file with LF line ends."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("is not UTF-8", str(file), "write it anew", kind=INVALID) from error
    if "\r" in text or "\0" in text:
        raise UserError(
            "has carriage returns or NUL bytes",
            str(file),
            "plain text with LF line ends",
            kind=INVALID,
        )
    return text
