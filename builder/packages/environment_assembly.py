"""Put the finished parts together into a bare environment: a folder that runs where it stands and
may be moved as a whole.

The folder is written beside its final place and renamed, or, where it exists, part by part: each
part is prepared under `.rosetta/`, and the state file has the part without a key from before the
swap until after it, so that a killed run is finished by the next one.
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
    """A path below the output, the key of what belongs there, and how it is made in an empty
    place.
    """

    path: str
    key: str
    make: Callable[[Path], None]


def is_current(output: Path, parts: list[Part]) -> bool:
    """Return whether `output` holds exactly these parts."""
    keys = _read_keys(output)
    return keys == {part.path: part.key for part in parts} and all(
        (output / part.path).exists() for part in parts
    )


def has_part(output: Path, part: Part) -> bool:
    """Return whether `output` holds this part, as far as its state file says."""
    return _read_keys(output).get(part.path) == part.key and (output / part.path).exists()


def output_of(new: Path) -> Path:
    """Return the output that a part belongs to, of the empty place where the part is being made."""
    return new.parents[1]


def refuse_foreign_output(output: Path, distribution: str) -> None:
    """UserError, before anything is made, where `output` is not ours to write: another's files, or
    another distribution's environment.
    """
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UserError("is not a folder", str(output), "give another --output env:DIR")
    _refuse_foreign_files(output)
    try:
        known = json.loads((output / "opt/rosetta/lock.json").read_text(encoding="utf-8"))[
            "distribution"
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if known != distribution:
        raise UserError(
            f"holds the distribution {known}",
            str(output),
            f"give {distribution} another --output env:DIR, or delete this one",
            kind=CONFLICT,
            value=known,
        )


def refuse_unmarked(folder: Path, mark: str) -> None:
    """Raise UserError if a folder cannot be replaced: it holds files, and not the file `mark` that
    we put into every folder of its kind.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError("is not a folder", str(folder), "give another folder", kind=EXISTS)
    if folder.exists() and any(folder.iterdir()) and not (folder / mark).is_file():
        raise UserError(
            f"holds files that build.py did not write: it has no {mark}",
            str(folder),
            "give a new or an empty folder; nothing was touched",
            kind=EXISTS,
        )


def assemble_parts(output: Path, parts: list[Part]) -> list[str]:
    """Bring `output` to hold exactly these parts; returns the paths of those that changed."""
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UserError(
            "is not a folder", str(output), "give another --output env:DIR", kind=EXISTS
        )
    _refuse_foreign_files(output)
    fresh = not (output / STATE).is_file() and not os.path.ismount(output)
    where = output.with_name(f".{output.name}.rosetta-new") if fresh else output
    if fresh:
        _refuse_foreign_files(where)
        try:
            where.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot be made ({error.strerror})",
                str(output),
                "give another --output env:DIR",
                kind=DENIED,
            ) from error
    if not (where / STATE).is_file():
        _write_keys(where, {})
    changed = _update_parts(where, parts)
    if fresh:
        os.rename(where, output)  # onto nothing, or onto an empty folder
    return changed


def _refuse_foreign_files(folder: Path) -> None:
    if (
        folder.exists()
        and not (folder / STATE).is_file()
        and any(entry.name not in ("lost+found", ".rosetta") for entry in folder.iterdir())
    ):
        raise UserError(
            "holds files that are not an environment of rosetta's",
            str(folder),
            "give an empty or new folder; nothing was touched",
            kind=EXISTS,
        )


@contextlib.contextmanager
def lock_output(output: Path) -> Iterator[Path]:
    """One build at a time below the folder that holds `output`, whichever name and cache each uses;
    yields the output's own name.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot be made ({error.strerror})", str(output), "give another folder"
        ) from error
    own = output.parent.resolve() / output.name
    handle = os.open(own.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info(f"waiting for another build in {own.parent}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield own
    finally:
        os.close(handle)


@contextlib.contextmanager
def replace_path(place: Path) -> Iterator[Path]:
    """Yield a free path beside `place`; what is made there, a file or a folder, takes the place of
    what is at `place` if all went well.
    """
    new, old = (place.with_name(f".{place.name}.rosetta-{which}") for which in ("new", "old"))
    remove_path(new)
    remove_path(old)
    try:
        yield new
        if place.is_dir():
            os.rename(place, old)
        os.rename(new, place)
    except BaseException:
        remove_path(new)
        raise
    remove_path(old)


def _update_parts(where: Path, parts: list[Part]) -> list[str]:
    keys = _read_keys(where)
    wanted = {part.path: part for part in parts}
    for path in set(keys) - set(wanted):
        del keys[path]
        _write_keys(where, keys)
        remove_path(where / path)
    changed = []
    for part in parts:
        final = where / part.path
        if keys.get(part.path) == part.key and final.exists():
            continue
        new, old = where / ".rosetta" / "new", where / ".rosetta" / "old"
        remove_path(new)
        remove_path(old)
        new.parent.mkdir(exist_ok=True)
        part.make(new)
        keys[part.path] = (
            # Known, and not current: a kill between here and the end leaves nothing that no one
            # knows of.
            ""
        )
        _write_keys(where, keys)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists() or final.is_symlink():
            os.rename(final, old)
        os.rename(new, final)
        keys[part.path] = part.key
        _write_keys(where, keys)
        remove_path(old)
        changed.append(part.path)
    return changed


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
    # One name, since the output is locked: a kill leaves no litter.
    write_atomic(state, text, None, temporary=state.with_name("state.new"))
