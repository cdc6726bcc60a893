"""Show how much of the files of a run's data was read, while all of it is read once.

The modules that read files report their positions here. Nothing is shown, and no position is
computed, unless `rosetta data check` asks for it.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING, Any

from rosetta.core import log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BYTES_PER_READ = 1 << 20
_MEGABYTE = 1_000_000

_shown: _Files | None = None  # the files whose reading is shown


class _Files:
    """The files that are read, and how much of each was read.

    Args:
        paths: The files, in any order.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.sizes = {path: os.path.getsize(path) for path in paths}
        self.total = sum(self.sizes.values())
        self._read = dict.fromkeys(self.sizes, 0)
        self._shown = -1

    def report(self, path: str, byte_count: int) -> None:
        """Show that the first bytes of a file were read; a file that is read again is ignored."""
        byte_count = min(byte_count, self.sizes.get(path, 0))
        if byte_count > self._read.get(path, byte_count):
            self._read[path] = byte_count
            self.show(sum(self._read.values()))

    def show(self, byte_count: int) -> None:
        """Show how many bytes of all files were read."""
        number = byte_count // _MEGABYTE
        if number != self._shown:
            self._shown = number
            log.show_progress("reading", number, self.total // _MEGABYTE, unit="MB")


class _CountedFile(io.FileIO):
    """A file that reports each reading."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path = path
        self._byte_count = 0

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, and return the number of bytes."""
        count = super().readinto(buffer) or 0
        self._byte_count += count
        report_bytes(self._path, self._byte_count)
        return count


@contextlib.contextmanager
def show_files(paths: Sequence[str]) -> Iterator[None]:
    """Show how much of the files was read: as a bar on a terminal, else in lines each 30 s.

    Args:
        paths: The files. If they have less than a megabyte, nothing is shown.
    """
    global _shown  # noqa: PLW0603 (one check of data in a process)
    files = _Files(paths)
    if files.total < _MEGABYTE:
        yield
        return
    _shown = files
    try:
        files.show(0)
        yield
        files.show(files.total)
    finally:
        _shown = None
        log.show_count("")


def is_shown() -> bool:
    """Return whether the reading of files is shown."""
    return _shown is not None


def report_bytes(path: str, byte_count: int) -> None:
    """Report that the first bytes of a file were read."""
    if _shown is not None:
        _shown.report(path, byte_count)


def report_part(path: str, number: int, total: int) -> None:
    """Report how many of the records of a file were read.

    Args:
        path: The file.
        number: The number of records that were read.
        total: The number of all records of the file.
    """
    if _shown is not None and total:
        _shown.report(path, _shown.sizes.get(path, 0) * number // total)


def open_file(path: str) -> io.BufferedReader[Any]:
    """Open a file for reading; its positions are reported if its reading is shown."""
    if _shown is None:
        return open(path, "rb")
    return io.BufferedReader(_CountedFile(path), _BYTES_PER_READ)
