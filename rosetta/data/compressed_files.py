"""Compressed files: read what they hold, and notice a file that is cut short or damaged."""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import zlib
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import DAMAGED, MISSING, UserError
from rosetta.data import reading_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUFFIXES = (".gz", ".zst", ".bz2", ".xz")


def _make_zstd_decompressor() -> Any:
    """Return a decompressor of one zstd frame."""
    return _import_zstandard().ZstdDecompressor().decompressobj()


def _import_zstandard() -> Any:
    """Return the package zstandard.

    Raises:
        UserError: The package is not in this environment.
    """
    try:
        import zstandard
    except ImportError:
        raise UserError(
            "reading .zst files needs the package zstandard",
            "zstandard",
            "pip install zstandard, or decompress the files (zstd -d)",
            kind=MISSING,
            value="zstandard",
        ) from None
    return zstandard


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": _make_zstd_decompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}


class _DecompressedFile(io.RawIOBase):
    """The content of a compressed file, which may have several compressed frames.

    It raises EOFError if the file ends within a frame. Some of the libraries' own readers take that
    for the end of the file, and also ignore a damaged frame after a whole one.
    """

    def __init__(self, path: str, make_decompressor: Callable[[], Any]) -> None:
        self.make_decompressor = make_decompressor
        self.frame: Any = None  # the decompressor of the current frame
        self.compressed = b""  # bytes of the file that were read and not decompressed yet
        self.content = b""  # decompressed bytes that were not handed out yet
        self.file = reading_progress.open_file(path)  # closed by close

    def readable(self) -> bool:
        """Return True, as the class of a readable file must."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with content, and return the number of bytes; 0 at the end."""
        while not self.content:
            self.compressed = self.compressed or self.file.read(1 << 16)
            if not self.compressed:
                if self.frame:
                    raise EOFError("the file ends within a compressed frame")
                return 0
            if not self.frame:
                # Some programs pad a file with zeros after a frame.
                self.compressed = self.compressed.lstrip(b"\0")
                if not self.compressed:
                    continue
                self.frame = self.make_decompressor()
            self.content = self.frame.decompress(self.compressed)
            self.compressed = b""
            if self.frame.eof:
                self.compressed = self.frame.unused_data
                self.frame = None
        count = min(len(self.content), len(buffer))
        buffer[:count] = self.content[:count]
        self.content = self.content[count:]
        return count

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        super().close()


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[io.BufferedReader[Any]]:
    """Open a file for reading, and decompress it if its name ends as a compressed file's does.

    Args:
        path: The file; SUFFIXES lists the endings of compressed files.

    Raises:
        UserError: A package is missing, or the file is damaged. The latter can be raised while the
            caller reads.
    """
    make_decompressor = next(
        (make for suffix, make in _DECOMPRESSORS.items() if path.endswith(suffix)), None
    )
    damage_errors: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
    if path.endswith(".zst"):
        damage_errors = (*damage_errors, _import_zstandard().ZstdError)
    opened: io.BufferedReader[Any]
    if make_decompressor:
        opened = io.BufferedReader(_DecompressedFile(path, make_decompressor), 1 << 20)
    else:
        opened = reading_progress.open_file(path)
    with opened as file:
        try:
            yield file
        except damage_errors as error:
            # An error of the file system has a number; an OSError of bz2 has none.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise UserError(
                f"the file is damaged: {error}", path, "copy it again", kind=DAMAGED
            ) from None
