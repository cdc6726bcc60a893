"""Folders that are whole or not there, and the small documents in them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import path_checks
from rosetta.core.errors import DAMAGED, EXISTS, FAILED, MISSING, TOO_BIG, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator


def read_document(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file.

    UserError where the file holds something else, or names a field twice.
    """
    try:
        found = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=reject_duplicate_fields
        )
        if isinstance(found, dict):
            return found
    except FileNotFoundError:
        raise UserError(
            "it is not there",
            str(path),
            "name the folder with the model's files in it",
            kind=MISSING,
        ) from None
    except (ValueError, RecursionError):
        pass
    raise UserError(
        "not a JSON document with an object in it",
        str(path),
        "download or copy it again",
        kind=DAMAGED,
    )


def reject_duplicate_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object; ValueError where a name stands there twice, since one of
    the two would be dropped.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name stands there twice")
    return fields


def write_document(path: Path, value: Any) -> None:
    """Write a JSON document."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def find_listed_file(folder: Path, name: Any) -> Path:
    """Return the path of a file that a document of the folder names.

    UserError where it leads elsewhere or is missing.
    """
    if not isinstance(name, str) or os.path.basename(name) != name:
        raise UserError(
            f"its index names {name!r}, which is no file of the folder",
            str(folder),
            "download or copy it again",
            kind=MISSING,
            value=name,
        )
    if not (folder / name).is_file():
        raise UserError(
            f"the file {name!r} is not there",
            str(folder),
            "download or copy it again",
            kind=MISSING,
            value=name,
        )
    return folder / name


@contextlib.contextmanager
def create_folder(folder: Path, needed: int) -> Iterator[Path]:
    """Give a folder to write into that becomes `folder` when all is written.

    It lies in a temporary folder of this run, beside `folder`: nothing that another run or the user
    made is touched.

    Raises:
      UserError: `folder` holds something or cannot be made, or there is less room than the `needed`
        bytes.
    """
    path_checks.check_local_folder_writable(str(folder.parent))
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError("it is there already", str(folder), "name a new folder", kind=EXISTS)
    target = folder.resolve()
    if os.path.ismount(target):
        raise UserError(
            "it is a mount point, whose place no finished folder can take",
            str(folder),
            "name a new folder in it",
            kind=UNSUPPORTED,
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="rosetta-part-", dir=target.parent))
    try:
        part = temporary / "out"
        # With the permissions that the user's new folders have; those of `temporary` are narrower.
        part.mkdir()
        free = shutil.disk_usage(part).free
        if free < needed:
            raise UserError(
                f"{needed / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free",
                str(folder.parent),
                "make room or name another folder",
                kind=TOO_BIG,
            )
        yield part
        _move_into_place(part, target, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_into_place(part: Path, target: Path, folder: Path) -> None:
    """Give a finished folder its name; an empty folder there is replaced, and anything else is
    kept.
    """
    try:
        part.rename(target)
    except OSError as error:
        taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        what = (
            "another program wrote to it during the conversion"
            if taken
            else f"the finished folder cannot get its name ({error.strerror})"
        )
        raise UserError(
            what,
            str(folder),
            "convert again, and name a new folder; nothing was left behind",
            kind=EXISTS if taken else FAILED,
        ) from None
