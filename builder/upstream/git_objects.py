"""Read and write git objects: blobs, trees and commits.

Every object is hashed when it is read, and written whole or not at all. The module also lists the
files of a tree, and makes trees from a list of files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import subprocess
import tempfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self, cast

from builder.upstream.git import build_command, extract_error
from builder.upstream.path_rules import check_name, check_path
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import CONFLICT, DAMAGED, INVALID, MISSING, TOO_BIG, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from builder.upstream.git import Git

FILE, EXECUTABLE, LINK, TREE, SUBMODULE = "100644", "100755", "120000", "40000", "160000"
# Limits against a mirror or a server that sends too much. Sizes are in bytes. The largest file of
# an upstream has some hundred KB.
LARGEST_OBJECT = 64 << 20
_LARGEST_COMMIT = 512 << 20
_MOST_FILES = 100_000
# The most seconds without output from git. A slow disk may keep git waiting.
_SILENCE = 60


class MissingObjectError(UserError):
    """The object is neither in the repository nor in its alternates."""


@dataclass(frozen=True)
class Entry:
    """A file of a tree.

    Attributes:
        path: The path from the root of the tree.
        mode: The mode as git writes it: 100644, 100755 or 120000.
        sha: The name of the blob with its content.
    """

    path: str
    mode: str
    sha: str


class _PipeReader:
    """Reads the output of a process by line or by length.

    If the process sends nothing for a minute, the output counts as ended. git stops in the middle
    of a damaged blob, and then waits.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._buffer = pipe, bytearray()
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def read_line(self) -> bytes:
        """Return the next line with its newline, or nothing if the output ended before."""
        while (end := self._buffer.find(b"\n")) < 0 and self._fill():
            pass
        return self._cut(end + 1)

    def read_bytes(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer if the output ended before."""
        while len(self._buffer) < size and self._fill():
            pass
        return self._cut(size)

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()

    def _cut(self, size: int) -> bytes:
        """Remove bytes from the front of the buffer, and return them."""
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _fill(self) -> bool:
        """Read what the process has sent. Return False at the end of its output."""
        data = os.read(self._pipe.fileno(), 1 << 16) if self._poll.poll(_SILENCE * 1000) else b""
        self._buffer += data
        return bool(data)


class Reader:
    """Reads objects of one repository through one process of `git cat-file --batch`.

    The reader hashes every object before it returns its content.

    Args:
        git: The repository.
        where: The repository's name in errors; empty for a repository in the builder's cache.
        collected: Gets the objects that were read, by name, as their kind and content.
    """

    def __init__(
        self, git: Git, where: str = "", collected: dict[str, tuple[str, bytes]] | None = None
    ) -> None:
        self._git, self.where, self._collected, self._size = (
            git,
            where or str(git.git_dir),
            collected,
            0,
        )
        self._remedy = (
            "use another copy; the cache has nothing of this one"
            if where
            else "delete that folder, which is only a cache, and run again"
        )
        self._running: tuple[subprocess.Popen[bytes], IO[bytes], _PipeReader, IO[bytes]] | None = (
            None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._running is None:
            return
        process, requests, answers, stderr = self._running
        self._running = None
        with contextlib.suppress(OSError):
            requests.close()
        if error:
            process.kill()
        # The pipe is closed before the wait, because a process that still writes then ends.
        answers.close()
        process.wait()
        stderr.close()

    def read(self, sha: str, kind: str) -> bytes:
        """Return the content of an object.

        Args:
            sha: The name of the object.
            kind: "blob", "tree" or "commit".

        Raises:
            MissingObjectError: The object is missing.
            UserError: The object is of another kind or too large, it cannot be read, or its content
                does not have this hash.
        """
        requests, answers = self._start_process()
        place = f"{self.where}, object {sha}"
        try:
            requests.write(f"{sha}\n".encode())
            requests.flush()
        except BrokenPipeError:
            raise self._unreadable(place) from None
        header = answers.read_line().decode("ascii", "replace").split()
        if len(header) == 2 and header[1] == "missing":
            raise MissingObjectError("is missing", place, self._remedy, kind=MISSING)
        if len(header) != 3 or header[0] != sha or not header[2].isdecimal():
            raise self._unreadable(place)
        size = int(header[2])
        if size > LARGEST_OBJECT:
            raise UserError(
                f"is larger ({size} bytes) than any file of a source may be",
                place,
                "choose another source",
                kind=TOO_BIG,
                value=size,
            )
        data = answers.read_bytes(size + 1)[:size]
        if len(data) != size:
            raise self._unreadable(place)
        if header[1] != kind:
            raise UserError(
                f"is a {header[1]}, not a {kind}",
                place,
                f"name a {kind}",
                kind=INVALID,
                value=header[1],
            )
        if hash_object(kind, data) != sha:
            raise UserError(
                "is corrupt: its content does not have this hash", place, self._remedy, kind=DAMAGED
            )
        if self._collected is not None:
            self._size += size if sha not in self._collected else 0
            if self._size > _LARGEST_COMMIT:
                raise UserError(
                    f"has a commit of more than {_LARGEST_COMMIT >> 20} MiB",
                    self.where,
                    "choose a smaller source",
                )
            self._collected[sha] = (kind, data)
        return data

    def _start_process(self) -> tuple[IO[bytes], _PipeReader]:
        """Start git unless it runs, and return where to write requests and read answers."""
        if self._running is None:
            # git allocates as much memory as an object's header claims. The limit turns a false
            # claim into an error.
            env = self._git.environment() | {"GIT_ALLOC_LIMIT": str(2 * LARGEST_OBJECT)}
            stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
            try:
                process = subprocess.Popen(
                    build_command("cat-file", "--batch"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=env,
                    bufsize=0,
                )
            except FileNotFoundError as error:
                stderr.close()
                raise UserError(
                    "git is not installed",
                    "git",
                    "install git 2.34 or newer (apt-get install git)",
                    kind=MISSING,
                ) from error
            self._running = (
                process,
                cast("IO[bytes]", process.stdin),
                _PipeReader(cast("IO[bytes]", process.stdout)),
                stderr,
            )
        return self._running[1:3]

    def _unreadable(self, place: str) -> UserError:
        """Return the error for an object at which git stopped, with git's reason."""
        stderr = b""
        if self._running:
            self._running[0].kill()
            self._running[0].wait()
            self._running[3].seek(0)
            stderr = self._running[3].read()
        reason = extract_error(stderr) if stderr.strip() else "git stopped in the middle"
        return UserError(f"cannot be read ({reason})", place, self._remedy, kind=DAMAGED)


def hash_object(kind: str, data: bytes) -> str:
    """Return the name of an object in git: the SHA-1 of its kind, length and content."""
    return hashlib.sha1(
        b"%s %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False
    ).hexdigest()


def loose_object_path(git_dir: Path, sha: str) -> Path:
    """Return the path of an object that has a file of its own. The file may be missing."""
    return git_dir / "objects" / sha[:2] / sha[2:]


def write_object(git_dir: Path, kind: str, data: bytes) -> str:
    """Store an object as a file of its own, whole or not at all, and return the object's name.

    Raises:
        UserError: The file cannot be written.
    """
    sha = hash_object(kind, data)
    path = loose_object_path(git_dir, sha)
    if path.exists():
        return sha
    body = zlib.compress(b"%s %d\0" % (kind.encode(), len(data)) + data, 1)
    # git removes an old file with such a name when it prunes.
    temporary = path.with_name(f"tmp_obj_{sha[2:10]}_{os.getpid()}")
    try:
        write_atomic(path, body, 0o444, temporary=temporary)
    except OSError as error:
        raise UserError(
            f"an object cannot be written ({error.strerror})",
            str(git_dir),
            "free space there, or set ROSETTA_CACHE, and run again",
        ) from error
    return sha


def list_tree_files(reader: Reader, tree_sha: str) -> list[Entry]:
    """Return all files below a tree, sorted by path.

    Raises:
        UserError: The tree has a submodule, an unsafe name, a name twice, or too many files, or an
            object cannot be read.
    """
    files: list[Entry] = []
    _collect_files(reader, tree_sha, "", files)
    return sorted(files, key=lambda entry: entry.path)


def _collect_files(reader: Reader, tree_sha: str, prefix: str, files: list[Entry]) -> None:
    """Add the files below a tree to a list; `prefix` is the path of the tree and a slash."""
    data = reader.read(tree_sha, "tree")
    seen: set[str] = set()
    for mode, raw, sha in _parse_tree(data, f"{reader.where}, tree {tree_sha}"):
        where = f"{reader.where}, tree {tree_sha} ({prefix or '/'})"
        filename = check_name(raw.decode("utf-8", "surrogateescape"), where)
        if filename in seen:
            raise UserError(
                f"has the name {filename!r} twice",
                where,
                "choose another source",
                kind=CONFLICT,
                value=filename,
            )
        seen.add(filename)
        path = check_path(prefix + filename, where)
        if mode == TREE:
            _collect_files(reader, sha, path + "/", files)
        elif mode in (FILE, EXECUTABLE, LINK):
            files.append(Entry(path, mode, sha))
        elif mode == SUBMODULE:
            raise UserError(
                f"has the submodule {path!r}",
                where,
                "choose a source without submodules",
                kind=UNSUPPORTED,
                value=path,
            )
        else:
            raise UserError(
                f"has the file {path!r} with mode {mode!r}",
                where,
                "choose another source",
                kind=UNSUPPORTED,
                value=path,
            )
        if len(files) > _MOST_FILES:
            raise UserError(
                f"has more than {_MOST_FILES} files",
                reader.where,
                "choose a smaller source",
                kind=TOO_BIG,
            )


def _parse_tree(data: bytes, where: str) -> Iterator[tuple[str, bytes, str]]:
    """Yield the mode, the name and the object of each entry of a tree object."""
    position = 0
    while position < len(data):
        space, null = data.find(b" ", position), data.find(b"\0", position)
        if not position < space < null or null + 21 > len(data):
            raise UserError(
                "is not a well-formed tree", where, "choose another source", kind=INVALID
            )
        yield (
            data[position:space].decode("ascii", "replace"),
            data[space + 1 : null],
            data[null + 1 : null + 21].hex(),
        )
        position = null + 21


def write_trees(git_dir: Path, entries: Iterable[Entry]) -> str:
    """Write the tree objects for a list of files, and return the name of the root tree.

    The blobs of the files need not exist.

    Raises:
        UserError: A path is unsafe, is there twice, or is a file and a folder, or a tree cannot be
            written.
    """
    root: dict[str, object] = {}
    for entry in entries:
        *folders, filename = check_path(entry.path, str(git_dir)).split("/")
        folder = root
        for part in folders:
            below = folder.setdefault(part, {})
            if not isinstance(below, dict):
                raise UserError(
                    f"{entry.path!r} is below another file",
                    str(git_dir),
                    "rename one of them",
                    kind=CONFLICT,
                    value=entry.path,
                )
            folder = below
        if filename in folder:
            raise UserError(
                f"{entry.path!r} is there twice, or is also a folder",
                str(git_dir),
                "rename one of them",
                kind=CONFLICT,
                value=entry.path,
            )
        folder[filename] = entry
    return _write_tree(git_dir, root)


def _write_tree(git_dir: Path, folder: dict[str, object]) -> str:
    """Write the tree of a folder, and those of its subfolders, and return its name.

    `folder` has an Entry for each file and a dictionary of the same form for each subfolder.
    """
    rows = []
    for filename, below in folder.items():
        raw = filename.encode("utf-8", "surrogateescape")
        if isinstance(below, Entry):
            rows.append((raw, below.mode.encode(), bytes.fromhex(below.sha)))
        elif isinstance(below, dict):
            rows.append((raw + b"/", TREE.encode(), bytes.fromhex(_write_tree(git_dir, below))))
    data = b"".join(
        b"%s %s\0%s" % (mode, raw.removesuffix(b"/"), sha) for raw, mode, sha in sorted(rows)
    )
    return write_object(git_dir, "tree", data)
