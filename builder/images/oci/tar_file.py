"""Deterministic tar: ustar headers of our own make, pax records only for what ustar cannot hold,
one time for all; and reading the tars of others.
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
_MAGIC = b"ustar\x0000" + bytes(64)  # and no names of user and group: the numbers count


class Sink(Protocol):
    """Where a tar goes."""

    def write(self, data: bytes, /) -> object: ...

    def copy(self, descriptor: int, size: int, /) -> int:
        """Take `size` bytes of an open file, or what is left of it; returns how many came."""


class PlainSink:
    """A sink that is a binary file or pipe."""

    def __init__(self, out: IO[bytes]) -> None:
        self.out = out
        self.write = out.write

    def copy(self, descriptor: int, size: int) -> int:
        left = size
        while left and (data := os.read(descriptor, min(left, 1 << 20))):
            self.out.write(data)
            left -= len(data)
        return size - left


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _encode_pax_record(key: str, value: bytes) -> bytes:
    """One pax record: its length in decimal, counting itself, then key=value and a line feed."""
    rest = b" " + key.encode() + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(text := str(length)) + len(rest) != length:
        length = len(text) + len(rest)
    return text.encode() + rest


def _split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Return the name and prefix fields of ustar; None where they cannot hold it."""
    if len(name) <= 100:
        return name, b""
    cut = name.find(b"/", max(len(name) - 101, 1))
    return None if cut < 0 or cut > 155 or cut == len(name) - 1 else (name[cut + 1 :], name[:cut])


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
    before = b"%b%07o\0%07o\0%07o\0%011o\0%b" % (
        name.ljust(100, b"\0"),
        mode,
        uid,
        gid,
        size,
        _MTIME,
    )
    numbers = b"%07o\0%07o\0" % device if flag in b"34" else bytes(16)
    after = b"%b%b%b%b%b" % (
        flag,
        target.ljust(100, b"\0"),
        _MAGIC,
        numbers,
        prefix.ljust(167, b"\0"),
    )
    return b"%b%06o\0 %b" % (before, sum(before) + 256 + sum(after), after)


def encode_header(entry: Entry) -> bytes:
    """Return the 512 bytes before an entry's content, behind a pax header where they cannot say
    all.
    """
    size = entry.size if entry.kind == "file" else 0
    name, target = (
        _encode_text(entry.path + "/" if entry.kind == "dir" else entry.path),
        _encode_text(entry.target),
    )
    pax = [_encode_pax_record(_XATTR_PREFIX + key, value) for key, value in sorted(entry.xattrs)]
    place = _split_name(name) if name.isascii() else None
    if place is None:
        pax.append(_encode_pax_record("path", name))
        place = name[:100], b""
    if len(target) > 100 or not target.isascii():
        pax.append(_encode_pax_record("linkpath", target))
        target = target[:100]
    if size >= 8**11:
        pax.append(_encode_pax_record("size", str(size).encode()))
    for key, number in (("uid", entry.uid), ("gid", entry.gid)):
        if number >= 8**7:
            pax.append(_encode_pax_record(key, str(number).encode()))
    fields = _encode_ustar(
        *place,
        entry.mode & 0o7777,
        entry.uid if entry.uid < 8**7 else 0,
        entry.gid if entry.gid < 8**7 else 0,
        size if size < 8**11 else 0,
        _TYPE_FLAGS[entry.kind],
        target,
        entry.device,
    )
    if not pax:
        return fields
    body = b"".join(sorted(pax))
    return (
        _encode_ustar(b"././@PaxHeader", b"", 0o644, 0, 0, len(body), b"x", b"", (0, 0))
        + body
        + bytes(-len(body) % BLOCK_SIZE)
        + fields
    )


def _write_content(entry: Entry, sink: Sink) -> None:
    try:
        descriptor = os.open(entry.source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise UserError(
            "the file is gone while it was put into a layer",
            entry.source,
            "leave the cache alone while a build runs, and run again",
            kind=CONFLICT,
        ) from error
    try:
        if entry.offset:
            os.lseek(descriptor, entry.offset, os.SEEK_SET)
        came = (
            _copy_verified(entry, descriptor, sink)
            if entry.sha256
            else sink.copy(descriptor, entry.size)
        )
        state = os.fstat(descriptor)
        if (
            came != entry.size
            or (state.st_size != entry.size and not entry.offset)
            or not stat.S_ISREG(state.st_mode)
        ):
            raise UserError(
                "the file changed while it was put into a layer",
                entry.source,
                "leave the cache alone while a build runs, and run again",
                kind=CONFLICT,
            )
    finally:
        os.close(descriptor)


def _copy_verified(entry: Entry, descriptor: int, sink: Sink) -> int:
    """Write a file whose sha256 is known; returns how many bytes came.

    Raises UserError where it is another.
    """
    digest = hashlib.sha256()
    left = entry.size
    while left and (data := os.read(descriptor, min(left, 1 << 20))):
        digest.update(data)
        sink.write(data)
        left -= len(data)
    if digest.hexdigest() != entry.sha256:
        raise UserError(
            "is damaged: its content is not what its name says",
            entry.source,
            "delete that file and run again: it is made again",
            kind=DAMAGED,
        )
    return entry.size - left


def write_tar(entries: Iterable[Entry], sink: Sink) -> None:
    """Write a whole tar of the entries, in their order."""
    for entry in entries:
        sink.write(encode_header(entry))
        if entry.kind == "file" and entry.size:
            if entry.data is None:
                _write_content(entry, sink)
            else:
                sink.write(entry.data)
            if rest := -entry.size % BLOCK_SIZE:
                sink.write(_PADDING[:rest])
    sink.write(_END_OF_TAR)


def walk_folder(folder: str | Path, prefix: str) -> Iterator[Entry]:
    """Entries of what lies below `folder`, as it will lie below `prefix`: modes 0755 or 0644 by the
    owner's x, symbolic links kept.

    Files that are one on disk are several here, for the cache links what is equal. Raises
    UserError for devices, sockets and pipes.
    """
    with os.scandir(folder) as found:
        here = sorted(found, key=lambda item: item.name)
    for item in here:
        path = f"{prefix}/{item.name}" if prefix else item.name
        if item.is_symlink():
            yield Entry(path, "link", 0o777, target=os.readlink(item.path))
        elif item.is_dir():
            yield Entry(path, "dir", 0o755)
            yield from walk_folder(item.path, path)
        elif item.is_file():
            state = item.stat()
            yield Entry(
                path,
                "file",
                0o755 if state.st_mode & stat.S_IXUSR else 0o644,
                source=item.path,
                size=state.st_size,
            )
        else:
            raise UserError(
                "is neither file, folder nor link, and no layer holds such a thing",
                item.path,
                "remove it",
                kind=INVALID,
            )


class _StrictTarInfo(tarfile.TarInfo):
    """tarfile takes a broken or missing header for the end; here only a block of zeros is one."""

    # Not `frombuf`: since a security update (Debian's 3.11.2-6+deb12u9 has it) tarfile does not
    # call that.
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
    kind = _KINDS_BY_FLAG.get(member.type)
    path, target = member.name.lstrip("/"), member.linkname
    while path.startswith("./"):
        path = path[2:].lstrip("/")
    if kind == "hard":
        target = target.lstrip("/")
        target = target.removeprefix("./")
    if kind is None or ".." in path.split("/") or "\0" in path:
        raise UserError(
            f"the tar has an entry {member.name!r} of type {member.type!r} that no layer may have",
            "",
            "build the image that it comes from again",
            kind=INVALID,
            value=member.name,
        )
    xattrs = [
        (key[len(_XATTR_PREFIX) :], _encode_text(value))
        for key, value in member.pax_headers.items()
        if key.startswith(_XATTR_PREFIX)
    ]
    device = (member.devmajor, member.devminor) if kind in ("char", "block") else (0, 0)
    size = member.size if kind == "file" else 0
    mode = 0o777 if kind == "link" else member.mode & 0o7777
    path = path.rstrip("/")
    return Entry(
        "" if path == "." else path,
        kind,
        mode,
        target=target if kind in ("link", "hard") else "",
        size=size,
        uid=member.uid,
        gid=member.gid,
        device=device,
        xattrs=tuple(sorted(xattrs)),
        mtime=int(member.mtime),
    )


def read_tar(stream: IO[bytes]) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    """Yield the entries of a plain tar, each file with an object to read it from before the next is
    asked for; whiteouts are files named `.wh.*`.

    Raises UserError where the tar is none, is cut off, or names a place outside of it.
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
    """Yield the entries of a plain tar that comes once, in any order, their contents in the file
    `temporary` while the context lasts.

    Of two entries with one path the later counts, as in unpacking. Hard links point at the first
    path of their file in the order of the paths.
    """
    try:
        with open(temporary, "w+b") as spool:
            shutil.copyfileobj(stream, spool, 1 << 20)
            spool.seek(0)
            found: dict[str, Entry] = {}
            try:
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
                            entry = replace(entry, source=str(temporary), offset=member.offset_data)
                        if entry.path:
                            found[entry.path] = entry
            except (tarfile.TarError, EOFError) as error:
                raise _unreadable_tar(error) from error
        yield _resolve_hard_links(found)
    finally:
        temporary.unlink(missing_ok=True)


def _resolve_hard_links(found: dict[str, Entry]) -> list[Entry]:
    """Sorted by path; each hard link after the file that it shares."""
    groups: dict[str, list[str]] = {}
    for path, entry in found.items():
        if entry.kind == "hard":
            first = entry.target
            while first in found and found[first].kind == "hard":
                first = found[first].target
            groups.setdefault(first, []).append(path)
    for first, others in groups.items():
        if first not in found:
            raise UserError(
                f"the tar has a hard link to {first!r}, which it does not hold",
                others[0],
                "build the image that it comes from again",
                kind=INVALID,
                value=first,
            )
        head, *rest = sorted([first, *others])
        owner = found[first]
        found[head] = replace(owner, path=head)
        for path in rest:
            found[path] = Entry(path, "hard", owner.mode, target=head, uid=owner.uid, gid=owner.gid)
    return [found[path] for path in sorted(found)]
