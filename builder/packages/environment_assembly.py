"""Assemble finished parts into an environment: a folder that runs in place and can be moved.

A new folder is written beside its final path and renamed. An existing folder is updated part by
part: each part is prepared below `.rosetta/` and swapped in. During the swap, the state file has an
empty key for the part, so that the next build finishes what a killed build began.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.cache import remove_path
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import CONFLICT, DENIED, EXISTS, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STATE = ".rosetta/state.json"


@dataclass(frozen=True)
class Part:
    """One file or folder of an environment.

    Attributes:
        path: Its path below the environment.
        key: The hash of its inputs.
        make: Writes the part to a path that does not exist yet.
    """

    path: str
    key: str
    make: Callable[[Path], None]


def is_current(output: Path, parts: list[Part]) -> bool:
    """Return whether an environment consists of exactly these parts, all of them current."""
    keys = _read_keys(output)
    return keys == {part.path: part.key for part in parts} and all(
        (output / part.path).exists() for part in parts
    )


def has_part(output: Path, part: Part) -> bool:
    """Return whether an environment has a part in its current form, by its state file."""
    return _read_keys(output).get(part.path) == part.key and (output / part.path).exists()


def output_of(new: Path) -> Path:
    """Return the environment for which a part is being made at the path `new`."""
    return new.parents[1]


def refuse_foreign_output(output: Path, distribution: str) -> None:
    """Refuse a folder that cannot become or stay an environment of a distribution.

    Raises:
        UserError: The folder has other files, or the environment of another distribution.
    """
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UserError("is not a folder", str(output), "give another --output env:DIR")
    _refuse_foreign_files(output)
    try:
        existing = json.loads((output / "opt/rosetta/lock.json").read_text(encoding="utf-8"))[
            "distribution"
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if existing != distribution:
        raise UserError(
            f"has the distribution {existing}",
            str(output),
            f"give {distribution} another --output env:DIR, or delete this one",
            kind=CONFLICT,
            value=existing,
        )


def refuse_unmarked(folder: Path, mark: str) -> None:
    """Refuse to replace a folder that build.py did not write.

    Args:
        folder: The folder; it may be missing or empty.
        mark: The name of the file that every folder of its kind has.

    Raises:
        UserError: The folder has files, and the file `mark` is not one of them.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError("is not a folder", str(folder), "give another folder", kind=EXISTS)
    if folder.exists() and any(folder.iterdir()) and not (folder / mark).is_file():
        raise UserError(
            f"has files that build.py did not write: the file {mark} is missing",
            str(folder),
            "give a new or an empty folder; nothing was changed",
            kind=EXISTS,
        )


def assemble_parts(output: Path, parts: list[Part]) -> list[str]:
    """Make an environment consist of exactly these parts; return the paths of changed parts."""
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UserError(
            "is not a folder", str(output), "give another --output env:DIR", kind=EXISTS
        )
    _refuse_foreign_files(output)
    is_new = not (output / STATE).is_file() and not os.path.ismount(output)
    folder = output.with_name(f".{output.name}.rosetta-new") if is_new else output
    if is_new:
        _refuse_foreign_files(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot be made ({error.strerror})",
                str(output),
                "give another --output env:DIR",
                kind=DENIED,
            ) from error
    if not (folder / STATE).is_file():
        _write_keys(folder, {})
    changed = _update_parts(folder, parts)
    if is_new:
        os.rename(folder, output)  # there is nothing at `output`, or an empty folder
    return changed


def _refuse_foreign_files(folder: Path) -> None:
    if (
        folder.exists()
        and not (folder / STATE).is_file()
        and any(entry.name not in ("lost+found", ".rosetta") for entry in folder.iterdir())
    ):
        raise UserError(
            "has files that are not part of an environment of rosetta",
            str(folder),
            "give a new or an empty folder; nothing was changed",
            kind=EXISTS,
        )


@contextlib.contextmanager
def lock_output(output: Path) -> Iterator[Path]:
    """Let only one build at a time write environments into the parent folder of `output`.

    Yields:
        The path of the output with its parent resolved.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot be made ({error.strerror})", str(output), "give another folder"
        ) from error
    resolved = output.parent.resolve() / output.name
    handle = os.open(resolved.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info(f"waiting for another build in {resolved.parent}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield resolved
    finally:
        os.close(handle)


@contextlib.contextmanager
def replace_path(path: Path) -> Iterator[Path]:
    """Replace a file or a folder with what the body of the `with` statement writes.

    Yields:
        A free path beside `path`. After an exception, `path` is unchanged.
    """
    new, old = (path.with_name(f".{path.name}.rosetta-{suffix}") for suffix in ("new", "old"))
    remove_path(new)
    remove_path(old)
    try:
        yield new
        if path.is_dir():
            os.rename(path, old)
        os.rename(new, path)
    except BaseException:
        remove_path(new)
        raise
    remove_path(old)


def _update_parts(folder: Path, parts: list[Part]) -> list[str]:
    keys = _read_keys(folder)
    _remove_unknown_parts(folder, keys, {part.path for part in parts})
    changed = []
    for part in parts:
        if keys.get(part.path) == part.key and (folder / part.path).exists():
            continue
        _replace_part(folder, part, keys)
        changed.append(part.path)
    return changed


def _remove_unknown_parts(folder: Path, keys: dict[str, str], wanted: set[str]) -> None:
    for path in set(keys) - wanted:
        del keys[path]
        _write_keys(folder, keys)
        remove_path(folder / path)


def _replace_part(folder: Path, part: Part, keys: dict[str, str]) -> None:
    """Make a part beside its final path, swap it in, and record its key."""
    final = folder / part.path
    new, old = folder / ".rosetta" / "new", folder / ".rosetta" / "old"
    remove_path(new)
    remove_path(old)
    new.parent.mkdir(exist_ok=True)
    part.make(new)
    # An empty key means that the part is known but not current. If the build is killed during the
    # swap, the next build finishes it.
    keys[part.path] = ""
    _write_keys(folder, keys)
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists() or final.is_symlink():
        os.rename(final, old)
    os.rename(new, final)
    keys[part.path] = part.key
    _write_keys(folder, keys)
    remove_path(old)


def _read_keys(output: Path) -> dict[str, str]:
    try:
        keys: dict[Any, Any] = dict(
            json.loads((output / STATE).read_text(encoding="utf-8"))["parts"]
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return {
        path: key
        for path, key in keys.items()
        if isinstance(path, str)
        and isinstance(key, str)
        and re.fullmatch(r"bin|opt(/[\w.-]*\w)+", path)
    }


def _write_keys(output: Path, keys: dict[str, str]) -> None:
    state = output / STATE
    text = json.dumps({"schema": 1, "parts": keys}, indent=1)
    # The output is locked, so one temporary name is enough. A killed build leaves at most one file.
    write_atomic(state, text, None, temporary=state.with_name("state.new"))
