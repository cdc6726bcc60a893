"""The entry of a layer: a file, folder, link or device."""

from __future__ import annotations

from dataclasses import dataclass

# 1980-01-01T00:00:00Z, the time of files in wheels. Every entry of every layer has this time.
EPOCH = 315532800


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder, link or device below the root of an image.

    Attributes:
        path: The path relative to /; never empty.
        kind: "file", "dir", "link" (symbolic), "hard", "char", "block" or "fifo".
        mode: The permission bits.
        source: The file on disk that has the content, if `data` is None.
        data: The content of a file.
        target: What a symbolic link says, or the path of the entry that a hard link links to.
        size: The size of a file in bytes.
        uid: The number of the owner.
        gid: The number of the group.
        device: The major and minor number of a device.
        xattrs: Names and values of extended attributes.
        offset: Where in `source` the content begins, in bytes.
        mtime: The time in the tar that the entry was read from, in seconds since 1970. The
            builder's layers do not keep it.
        sha256: The checksum of `source`, if it is known; compared when the file is read.
    """

    path: str
    kind: str
    mode: int
    source: str = ""
    data: bytes | None = None
    target: str = ""
    size: int = 0
    uid: int = 0
    gid: int = 0
    device: tuple[int, int] = (0, 0)
    xattrs: tuple[tuple[str, bytes], ...] = ()
    offset: int = 0
    mtime: int = 0
    sha256: str = ""


def make_file(path: str, data: bytes | str, mode: int = 0o644) -> Entry:
    """Return the entry of a file with this content."""
    raw = data.encode() if isinstance(data, str) else data
    return Entry(path, "file", mode, data=raw, size=len(raw))


def make_link(path: str, target: str) -> Entry:
    """Return the entry of a symbolic link."""
    return Entry(path, "link", 0o777, target=target)


def make_folder(path: str, mode: int = 0o755) -> Entry:
    """Return the entry of a folder."""
    return Entry(path, "dir", mode)
