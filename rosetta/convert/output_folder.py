"""Create the folder that a conversion writes: complete, or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rosetta.core import path_checks
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import CONFLICT, EXISTS, FAILED, IN_USE, TOO_BIG, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PART_PREFIX = ".rosetta-part-"  # of the folder in which a conversion can be continued


def check_outside(folder: Path, source: Path) -> None:
    """Check that the folder to create is not the source of the conversion, or inside of the source.

    Args:
        folder: The folder to create.
        source: The folder or file that is converted.

    Raises:
        UserError: The folder is the source, or inside of the source.
    """
    resolved = folder.resolve()
    if source.resolve() in (resolved, *resolved.parents):
        raise UserError(
            f"is inside {source}, where nothing is written",
            str(folder),
            "name a folder elsewhere",
            kind=CONFLICT,
        )


@contextlib.contextmanager
def create_folder(folder: Path, needed: int) -> Iterator[Path]:
    """Give a folder to write into, and rename it to `folder` at the end of the block.

    The folder is in a new temporary folder beside `folder`. Nothing of another run or of the user
    is changed. If the block fails, nothing is left.

    Args:
        folder: The folder to create. It may exist if it is empty.
        needed: The bytes that the block will write.

    Raises:
        UserError: `folder` is not empty, is a mount point or cannot be created, or the disk has
            less than `needed` bytes free.
    """
    target = _check_target(folder)
    temporary = Path(tempfile.mkdtemp(prefix="rosetta-part-", dir=target.parent))
    try:
        # mkdtemp's permissions are narrow. A folder in it has those of the user's other folders.
        part = temporary / "out"
        part.mkdir()
        _check_free_space(part, needed, folder)
        yield part
        _move_into_place(part, target, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class PartFolder:
    """A folder that is being written, and a journal of what in it is finished.

    Attributes:
        path: The folder to write into.
        scratch: A folder for files that are removed at the end. It is empty at first.
        finished: The facts of each finished part, by the name of the part.
    """

    def __init__(self, state: Path, folder: Path, key: Mapping[str, Any]) -> None:
        """Continue what an earlier conversion left, if it had the same key; else begin.

        Args:
            state: The folder that has `path` and the journal.
            folder: The folder that the user named, for errors.
            key: What decides the result: equal keys mean equal files.
        """
        self.path = state / "out"
        self.scratch = state / "scratch"
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        self._folder, self._key = folder, json.loads(json.dumps(key))
        self._journal = state / "journal.json"
        self.finished: dict[str, dict[str, Any]] = self._read_journal()
        if not self.finished:
            shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(exist_ok=True)
        self._write_journal()

    def _read_journal(self) -> dict[str, dict[str, Any]]:
        """Return the finished parts of an earlier conversion with the same key."""
        try:
            journal = json.loads(self._journal.read_text())
            return dict(journal["finished"]) if journal["key"] == self._key else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _write_journal(self) -> None:
        """Write the journal."""
        text = json.dumps({"key": self._key, "finished": self.finished}, indent=1)
        write_atomic(self._journal, text)

    def finish(self, name: str, facts: Mapping[str, Any]) -> None:
        """Note that a part is finished.

        Args:
            name: The name of the part.
            facts: What a later conversion needs to know of the part, such as its checksum.
        """
        self.finished[name] = dict(facts)
        self._write_journal()

    def discard(self, name: str) -> None:
        """Note that a part has to be written again."""
        if self.finished.pop(name, None) is not None:
            self._write_journal()

    def check_free_space(self, needed: int) -> None:
        """Raise UserError if the disk has less than `needed` bytes free."""
        _check_free_space(self.path, needed, self._folder)


@contextlib.contextmanager
def resume_folder(folder: Path, key: Mapping[str, Any]) -> Iterator[PartFolder]:
    """Give a folder to write into, and rename its path to `folder` at the end of the block.

    If the process is killed in the block, the next call with an equal key continues. If the block
    raises an error, nothing is left.

    Args:
        folder: The folder to create. It may exist if it is empty.
        key: What decides the result, as JSON: equal keys mean equal files.

    Raises:
        UserError: `folder` is not empty, is a mount point or cannot be created, or another process
            is writing it.
    """
    target = _check_target(folder)
    state = target.parent / f"{PART_PREFIX}{target.name}"
    state.mkdir(exist_ok=True)
    with (state / "lock").open("w") as lock:
        if not _take_lock(lock):
            raise UserError(
                "another conversion is writing this folder",
                str(folder),
                "wait for it, or name another folder",
                kind=IN_USE,
            )
        try:
            part = PartFolder(state, folder, key)
            yield part
            _move_into_place(part.path, target, folder)
        except Exception:
            shutil.rmtree(state, ignore_errors=True)
            raise
        shutil.rmtree(state, ignore_errors=True)


def _take_lock(lock: TextIO) -> bool:
    """Lock an open file; return whether this process has the lock, and the file is still there.

    Another process may have ended between the opening and the locking, and removed the file.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
    except (BlockingIOError, FileNotFoundError):
        return False


def _check_target(folder: Path) -> Path:
    """Check that a folder can be created, make its parents, and return its resolved path.

    Args:
        folder: The folder. It may exist if it is empty.

    Raises:
        UserError: `folder` is not empty, is a mount point or cannot be created.
    """
    path_checks.check_local_folder_writable(str(folder.parent))
    is_empty_folder = folder.is_dir() and not any(folder.iterdir())
    if os.path.lexists(folder) and not is_empty_folder:
        raise UserError("already exists", str(folder), "name a new folder", kind=EXISTS)
    target = folder.resolve()
    if os.path.ismount(target):
        raise UserError(
            "is a mount point, which the finished folder cannot replace",
            str(folder),
            "name a new folder in it",
            kind=UNSUPPORTED,
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _check_free_space(part: Path, needed: int, folder: Path) -> None:
    """Check that the disk has room.

    Args:
        part: A folder on the disk.
        needed: The bytes that will be written.
        folder: The folder that the user named, for the error.

    Raises:
        UserError: The disk has less than `needed` bytes free.
    """
    free = shutil.disk_usage(part).free
    if free < needed:
        raise UserError(
            f"{needed / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free",
            str(folder.parent),
            "free some space, or name another folder",
            kind=TOO_BIG,
        )


def _move_into_place(part: Path, target: Path, folder: Path) -> None:
    """Rename a finished folder to `target`, which may be an empty folder.

    Args:
        part: The finished folder.
        target: The resolved path of `folder`.
        folder: The path that the user named.
    """
    try:
        part.rename(target)
    except OSError as error:
        is_taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        reason = f"the finished folder cannot be renamed ({error.strerror})"
        if is_taken:
            reason = "another program wrote to it during the conversion"
        raise UserError(
            reason,
            str(folder),
            "convert again, and name a new folder; nothing was left behind",
            kind=EXISTS if is_taken else FAILED,
        ) from None
