"""Read the patch series of a source: a folder with the file `series` and one file per patch."""

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
    """Return why `name` is not a valid name of a patch; None if it is valid."""
    if _NAME.fullmatch(name) and ".." not in name and not name.endswith(".patch"):
        return None
    return (
        f"{name!r} is not a valid patch name (a letter, then letters, digits and _ . + -, "
        "without '..' and without .patch at the end)"
    )


def read_names(folder: Path) -> list[str]:
    """Return the names of the patches that `series` lists, in order."""
    file = folder / "series"
    if file.is_symlink() or not file.is_file():
        raise UserError(
            "does not exist",
            str(file),
            "create it, with the names of the patches, one per line (it may be empty)",
            kind=MISSING,
        )
    names: list[str] = []
    for number, line in enumerate(read_text(file).split("\n"), 1):
        entry = line.split("#")[0].strip()
        if not entry:
            continue
        if problem := find_name_problem(entry):
            raise UserError(
                problem,
                f"{file}:{number}",
                "write NAME for the file NAME.patch in this folder",
                kind=INVALID,
                value=entry,
            )
        if entry in names:
            raise UserError(
                f"{entry} is listed twice",
                f"{file}:{number}",
                "remove one of the two lines",
                kind=CONFLICT,
                value=entry,
            )
        names.append(entry)
    return names


def load_patches(folder: Path, *, tolerated: Collection[str] = ()) -> tuple[Patch, ...]:
    """Return the patches of a series, in order.

    Args:
        folder: The folder of the series.
        tolerated: Names of files that may be in the folder without being listed in `series`.

    Raises:
        UserError: a patch breaks a rule, or `series` and the folder do not have the same patches.
    """
    listed = [f"{name}.patch" for name in read_names(folder)]
    present = {file.name for file in folder.iterdir() if not is_temporary(file.name)}
    present.discard("series")
    for entry in listed:
        if entry not in present:
            raise UserError(
                f"lists {entry}, which does not exist",
                str(folder / "series"),
                "add the file or drop the line",
                kind=MISSING,
                value=entry,
            )
        if (folder / entry).is_symlink() or not (folder / entry).is_file():
            raise UserError(
                "is a symbolic link, or not a regular file",
                str(folder / entry),
                "replace it by the patch file",
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
    """Return the content of a UTF-8 text file with LF line ends."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("is not UTF-8", str(file), "save it as UTF-8", kind=INVALID) from error
    if "\r" in text or "\0" in text:
        raise UserError(
            "has carriage returns or NUL bytes",
            str(file),
            "save it as plain text with LF line ends",
            kind=INVALID,
        )
    return text
