"""Write deterministic tars, and read the tars of other programs.

The headers are ustar, with pax records only for what ustar cannot express. Every entry has the
same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tarfile
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Protocol, Self

from builder.images.oci.tar_entry import EPOCH, Entry
from rosetta.core.errors import CONFLICT, DAMAGED, INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

BLOCK_SIZE = 512
_COPY_SIZE = 1 << 20  # bytes that are read at once
_MAXIMUM_NAME = 100  # bytes; longer names need a prefix or a pax record
_MAXIMUM_PREFIX = 155  # bytes
_MAXIMUM_ID = 8**7  # first user and group number that ustar cannot express
_MAXIMUM_SIZE = 8**11  # first size in bytes that ustar cannot express
_END_OF_TAR = bytes(2 * BLOCK_SIZE)
_PADDING = bytes(BLOCK_SIZE)
_TYPE_FLAGS = {
    "file": b"0",
    "hard": b"1",
    "link": b"2",
    "char": b"3",
    "block": b"4",
    "dir": b"5",
    "fifo": b"6",
}
_KINDS_BY_FLAG = {flag: kind for kind, flag in _TYPE_FLAGS.items()} | {
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.GNUTYPE_SPARSE: "file",
}
_XATTR_PREFIX = "SCHILY.xattr."
_MTIME = b"%011o\0" % EPOCH
_MAGIC = b"ustar\x0000" + bytes(64)  # with empty names of user and group: the numbers count


class Sink(Protocol):
    """What a tar is written to."""

    def write(self, data: bytes, /) -> object:
        """Add bytes to the tar."""

    def copy(self, descriptor: int, size: int, /) -> int:
        """Add up to `size` bytes of an open file; return how many bytes the file had."""


class PlainSink:
    """A sink that writes to a binary file or pipe."""

    def __init__(self, out: IO[bytes]) -> None:
        self.out = out
        self.write = out.write

    def copy(self, descriptor: int, size: int) -> int:
        """Add up to `size` bytes of an open file; return how many bytes the file had."""
        left = size
        while left and (data := os.read(descriptor, min(left, _COPY_SIZE))):
            self.out.write(data)
            left -= len(data)
        return size - left


_LEAVE_CACHE_ALONE = "leave the cache alone while a build runs, and run again"


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _encode_pax_record(key: str, value: bytes) -> bytes:
    """Return a pax record: its length in decimal, which counts itself, key=value, a line feed."""
    rest = b" " + key.encode() + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(text := str(length)) + len(rest) != length:
        length = len(text) + len(rest)
    return text.encode() + rest


def _split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Return the name and prefix fields of ustar; None if they are too short for the name."""
    if len(name) <= _MAXIMUM_NAME:
        return name, b""
    cut = name.find(b"/", max(len(name) - _MAXIMUM_NAME - 1, 1))
    if cut < 0 or cut > _MAXIMUM_PREFIX or cut == len(name) - 1:
        return None
    return name[cut + 1 :], name[:cut]


def _encode_ustar(
    name: bytes,
    prefix: bytes,
    mode: int,
    uid: int,
    gid: int,
    size: int,
    flag: bytes,
    target: bytes,
    device: tuple[int, int],
) -> bytes:
    """Return a ustar header of 512 bytes."""
    before_checksum = b"%b%07o\0%07o\0%07o\0%011o\0%b" % (
        name.ljust(100, b"\0"),
        mode,
        uid,
        gid,
        size,
        _MTIME,
    )
    device_numbers = b"%07o\0%07o\0" % device if flag in b"34" else bytes(16)
    after_checksum = b"%b%b%b%b%b" % (
        flag,
        target.ljust(100, b"\0"),
        _MAGIC,
        device_numbers,
        prefix.ljust(167, b"\0"),
    )
    # The checksum counts its own field as eight spaces.
    checksum = sum(before_checksum) + 8 * ord(" ") + sum(after_checksum)
    return b"%b%06o\0 %b" % (before_checksum, checksum, after_checksum)


def encode_header(entry: Entry) -> bytes:
    """Return what precedes an entry's content: a ustar header, after a pax header if needed."""
    size = entry.size if entry.kind == "file" else 0
    name = _encode_text(entry.path + "/" if entry.kind == "dir" else entry.path)
    target = _encode_text(entry.target)
    split = _split_name(name) if name.isascii() else None
    fits_target = len(target) <= _MAXIMUM_NAME and target.isascii()
    pax = [_encode_pax_record(_XATTR_PREFIX + key, value) for key, value in sorted(entry.xattrs)]
    if split is None:
        pax.append(_encode_pax_record("path", name))
    if not fits_target:
        pax.append(_encode_pax_record("linkpath", target))
    if size >= _MAXIMUM_SIZE:
        pax.append(_encode_pax_record("size", str(size).encode()))
    for key, number in (("uid", entry.uid), ("gid", entry.gid)):
        if number >= _MAXIMUM_ID:
            pax.append(_encode_pax_record(key, str(number).encode()))
    header = _encode_ustar(
        *(split or (name[:_MAXIMUM_NAME], b"")),
        entry.mode & 0o7777,
        entry.uid if entry.uid < _MAXIMUM_ID else 0,
        entry.gid if entry.gid < _MAXIMUM_ID else 0,
        size if size < _MAXIMUM_SIZE else 0,
        _TYPE_FLAGS[entry.kind],
        target[:_MAXIMUM_NAME],
        entry.device,
    )
    return _encode_pax_header(pax) + header


def _encode_pax_header(records: list[bytes]) -> bytes:
    """Return the header and the content of a pax entry with these records; empty without any."""
    if not records:
        return b""
    content = b"".join(sorted(records))
    header = _encode_ustar(b"././@PaxHeader", b"", 0o644, 0, 0, len(content), b"x", b"", (0, 0))
    return header + content + bytes(-len(content) % BLOCK_SIZE)


def _write_content(entry: Entry, sink: Sink) -> None:
    """Write the content of a file on disk. Raises UserError if the file changed meanwhile."""
    try:
        descriptor = os.open(entry.source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise UserError(
            "the file is gone while it was put into a layer",
            entry.source,
            _LEAVE_CACHE_ALONE,
            kind=CONFLICT,
        ) from error
    try:
        if entry.offset:
            os.lseek(descriptor, entry.offset, os.SEEK_SET)
        if entry.sha256:
            count = _copy_verified(entry, descriptor, sink)
        else:
            count = sink.copy(descriptor, entry.size)
        state = os.fstat(descriptor)
        is_part = bool(entry.offset)
        if (
            count != entry.size
            or (state.st_size != entry.size and not is_part)
            or not stat.S_ISREG(state.st_mode)
        ):
            raise UserError(
                "the file changed while it was put into a layer",
                entry.source,
                _LEAVE_CACHE_ALONE,
                kind=CONFLICT,
            )
    finally:
        os.close(descriptor)


def _copy_verified(entry: Entry, descriptor: int, sink: Sink) -> int:
    """Write a file whose checksum is known; return how many bytes the file had.

    Raises:
        UserError: The file has another checksum.
    """
    checksum = hashlib.sha256()
    left = entry.size
    while left and (data := os.read(descriptor, min(left, _COPY_SIZE))):
        checksum.update(data)
        sink.write(data)
        left -= len(data)
    if checksum.hexdigest() != entry.sha256:
        raise UserError(
            "is damaged: its content is not what its name says",
            entry.source,
            "delete that file and run again: the builder makes the file again",
            kind=DAMAGED,
        )
    return entry.size - left


def write_tar(entries: Iterable[Entry], sink: Sink) -> None:
    """Write a complete tar of the entries, in their order."""
    for entry in entries:
        sink.write(encode_header(entry))
        if entry.kind == "file" and entry.size:
            if entry.data is None:
                _write_content(entry, sink)
            else:
                sink.write(entry.data)
            sink.write(_PADDING[: -entry.size % BLOCK_SIZE])
    sink.write(_END_OF_TAR)


def walk_folder(folder: str | Path, prefix: str) -> Iterator[Entry]:
    """Yield entries for what is below a folder, sorted by name.

    Modes become 0755 or 0644, by whether the owner may execute. Symbolic links stay. Files that
    are hard links to each other become several files: the cache links files that are equal.

    Args:
        folder: The folder.
        prefix: The path in the layer that stands for the folder; "" for the root.

    Raises:
        UserError: There is a device, a socket or a pipe.
    """
    with os.scandir(folder) as scanned:
        items = sorted(scanned, key=lambda item: item.name)
    for item in items:
        path = f"{prefix}/{item.name}" if prefix else item.name
        if item.is_symlink():
            yield Entry(path, "link", 0o777, target=os.readlink(item.path))
        elif item.is_dir():
            yield Entry(path, "dir", 0o755)
            yield from walk_folder(item.path, path)
        elif item.is_file():
            state = item.stat()
            mode = 0o755 if state.st_mode & stat.S_IXUSR else 0o644
            yield Entry(path, "file", mode, source=item.path, size=state.st_size)
        else:
            raise UserError(
                "is not a file, folder or link, so no layer can have it",
                item.path,
                "remove it",
                kind=INVALID,
            )


class _StrictTarInfo(tarfile.TarInfo):
    """A member of a tar that may end with a block of zeros only.

    tarfile itself takes a broken or missing header for the end of the tar.
    """

    # Not `frombuf`: since a security update, which Debian's 3.11.2-6+deb12u9 has, tarfile does not
    # call `frombuf`.
    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # typeshed leaves it out
            raise
        except tarfile.HeaderError as error:
            raise _unreadable_tar(error) from error


def _unreadable_tar(error: Exception) -> UserError:
    return UserError(
        f"the tar cannot be read ({error})",
        "",
        "run again; if it happens again, the engine's storage is damaged",
        kind=DAMAGED,
    )


def _convert_member(member: tarfile.TarInfo) -> Entry:
    """Return the entry of a member of a tar, without its content; the path of the root is empty.

    Raises:
        UserError: No layer may have such a member.
    """
    kind = _KINDS_BY_FLAG.get(member.type)
    path, target = member.name.lstrip("/"), member.linkname
    while path.startswith("./"):
        path = path[2:].lstrip("/")
    if kind is None or ".." in path.split("/") or "\0" in path:
        raise UserError(
            f"the tar has an entry {member.name!r} of type {member.type!r} that no layer may have",
            "",
            "build the image that it comes from again",
            kind=INVALID,
            value=member.name,
        )
    if kind == "hard":
        target = target.lstrip("/").removeprefix("./")
    elif kind != "link":
        target = ""
    path = path.rstrip("/")
    xattrs = [
        (key.removeprefix(_XATTR_PREFIX), _encode_text(value))
        for key, value in member.pax_headers.items()
        if key.startswith(_XATTR_PREFIX)
    ]
    return Entry(
        "" if path == "." else path,
        kind,
        0o777 if kind == "link" else member.mode & 0o7777,
        target=target,
        size=member.size if kind == "file" else 0,
        uid=member.uid,
        gid=member.gid,
        device=(member.devmajor, member.devminor) if kind in ("char", "block") else (0, 0),
        xattrs=tuple(sorted(xattrs)),
        mtime=int(member.mtime),
    )


def read_tar(stream: IO[bytes]) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    """Yield the entries of an uncompressed tar, and for files an object to read the content from.

    The content has to be read before the next entry. Whiteouts are files named `.wh.*`.

    Raises:
        UserError: The stream is not a tar, is incomplete, or names a path outside of the tar.
    """
    try:
        with tarfile.open(
            fileobj=stream,
            mode="r|",
            tarinfo=_StrictTarInfo,
            encoding="utf-8",
            errors="surrogateescape",
        ) as archive:
            for member in archive:
                entry = _convert_member(member)
                if entry.path:
                    yield entry, archive.extractfile(member) if entry.kind == "file" else None
    except (tarfile.TarError, EOFError) as error:
        raise _unreadable_tar(error) from error


@contextlib.contextmanager
def spool_tar(stream: IO[bytes], temporary: Path) -> Iterator[list[Entry]]:
    """Yield the entries of an uncompressed tar, sorted by path.

    The contents are in the file `temporary` until the context ends. If two entries have one path,
    the later one counts, as in unpacking. Hard links point to the first path of their file.

    Args:
        stream: The tar; it is read once, from beginning to end.
        temporary: The file to write.

    Raises:
        UserError: The stream is not a tar, is incomplete, or names a path outside of the tar.
    """
    try:
        with open(temporary, "w+b") as spool:
            shutil.copyfileobj(stream, spool, _COPY_SIZE)
            spool.seek(0)
            try:
                entries = _read_spool(spool, str(temporary))
            except (tarfile.TarError, EOFError) as error:
                raise _unreadable_tar(error) from error
        yield _resolve_hard_links(entries)
    finally:
        temporary.unlink(missing_ok=True)


def _read_spool(spool: IO[bytes], name: str) -> dict[str, Entry]:
    """Return the entries of a tar by path; their contents are parts of the file `name`."""
    entries: dict[str, Entry] = {}
    with tarfile.open(
        fileobj=spool,
        mode="r:",
        tarinfo=_StrictTarInfo,
        encoding="utf-8",
        errors="surrogateescape",
    ) as archive:
        for member in archive:
            entry = _convert_member(member)
            if entry.kind == "file" and member.issparse():
                content = archive.extractfile(member)
                entry = replace(entry, data=content.read() if content else b"")
            elif entry.kind == "file":
                entry = replace(entry, source=name, offset=member.offset_data)
            if entry.path:
                entries[entry.path] = entry
    return entries


def _resolve_hard_links(entries: dict[str, Entry]) -> list[Entry]:
    """Return entries sorted by path, where the first path of a file has its content."""
    groups: dict[str, list[str]] = {}
    for path, entry in entries.items():
        if entry.kind == "hard":
            target = entry.target
            while target in entries and entries[target].kind == "hard":
                target = entries[target].target
            groups.setdefault(target, []).append(path)
    for target, links in groups.items():
        if target not in entries:
            raise UserError(
                f"the tar has a hard link to {target!r}, which the tar lacks",
                links[0],
                "build the image that it comes from again",
                kind=INVALID,
                value=target,
            )
        first, *others = sorted([target, *links])
        file = entries[target]
        entries[first] = replace(file, path=first)
        for path in others:
            entries[path] = Entry(path, "hard", file.mode, target=first, uid=file.uid, gid=file.gid)
    return [entries[path] for path in sorted(entries)]
