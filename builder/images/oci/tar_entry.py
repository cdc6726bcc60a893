"""What a layer holds: one entry of a tar."""

from __future__ import annotations

from dataclasses import dataclass

EPOCH = 315532800  # 1980-01-01T00:00:00Z, the time wheels carry: every entry of every layer has it


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder, link or device below the root of an image.

    `path` is relative to / and never empty. `kind` is "file", "dir", "link" (symbolic), "hard" (its
    target is the path of another entry), "char", "block" or "fifo". A file's content is `data`, or
    `size` bytes at `offset` of the file `source` on disk.
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
    mtime: int = (
        0  # in the tar that it comes from, in seconds since 1970; a layer of ours does not keep it
    )
    sha256: str = ""  # of `source`, where it is known: compared while the file is read


def make_file(path: str, data: bytes | str, mode: int = 0o644) -> Entry:
    """Return a file whose content is at hand."""
    raw = data.encode() if isinstance(data, str) else data
    return Entry(path, "file", mode, data=raw, size=len(raw))


def make_link(path: str, target: str) -> Entry:
    """Return a symbolic link."""
    return Entry(path, "link", 0o777, target=target)


def make_folder(path: str, mode: int = 0o755) -> Entry:
    """Return the entry of a folder."""
    return Entry(path, "dir", mode)
