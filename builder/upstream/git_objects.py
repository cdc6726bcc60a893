"""git objects by their content: read with our own hash check, written atomically, trees walked and
built.
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
LARGEST_OBJECT = 64 << 20  # bytes; upstreams' largest file is some hundred KB
_LARGEST_KEPT = 512 << 20
_MOST_FILES = 100_000
_SILENCE = 60  # seconds for which a disk may keep git waiting


class MissingObjectError(UserError):
    """An object that is in neither the repository nor its alternates."""


@dataclass(frozen=True)
class Entry:
    """A file of a tree: `path` from its root, `mode` as git writes it (100644, 100755 or 120000),
    `sha` of its blob.
    """

    path: str
    mode: str
    sha: str


class _Answers:
    """What a process says, taken by line or by length; one that falls silent half-way (git does, on
    a mangled blob) ends it.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._held = pipe, bytearray()
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def line(self) -> bytes:
        while (end := self._held.find(b"\n")) < 0 and self._more():
            pass
        return self._taken(end + 1)

    def take(self, size: int) -> bytes:
        while len(self._held) < size and self._more():
            pass
        return self._taken(size)

    def close(self) -> None:
        self._pipe.close()

    def _taken(self, size: int) -> bytes:
        data = bytes(self._held[:size])
        del self._held[:size]
        return data

    def _more(self) -> bool:
        data = os.read(self._pipe.fileno(), 1 << 16) if self._poll.poll(_SILENCE * 1000) else b""
        self._held += data
        return bool(data)


class Reader:
    """Objects of one repository through one `git cat-file --batch`; each was hashed by us before it
    is returned.

    `where` names a repository that is not our cache in errors. `kept`, where given, collects what
    was read, by name: (kind, content).
    """

    def __init__(
        self, git: Git, where: str = "", kept: dict[str, tuple[str, bytes]] | None = None
    ) -> None:
        self._git, self.where, self._kept, self._size = git, where or str(git.git_dir), kept, 0
        self._mend = (
            "nothing was kept of it, use another copy"
            if where
            else "it is only a cache: delete that folder and run again"
        )
        self._running: tuple[subprocess.Popen[bytes], IO[bytes], _Answers, IO[bytes]] | None = None

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
        answers.close()  # before the wait: a process that still has something to say ends on it
        process.wait()
        stderr.close()

    def read(self, sha: str, kind: str) -> bytes:
        """Return the content of the object `sha`.

        Raises:
            MissingObjectError: it is not there.
            UserError: it is of another kind, too large, cannot be read, or its content does not
              have this hash.
        """
        requests, answers = self._started()
        place = f"{self.where}, object {sha}"
        try:
            requests.write(f"{sha}\n".encode())
            requests.flush()
        except BrokenPipeError:
            raise self._unreadable(place) from None
        header = answers.line().decode("ascii", "replace").split()
        if len(header) == 2 and header[1] == "missing":
            raise MissingObjectError("is missing", place, self._mend, kind=MISSING)
        if len(header) != 3 or header[0] != sha or not header[2].isdecimal():
            raise self._unreadable(place)
        size = int(header[2])
        if size > LARGEST_OBJECT:
            raise UserError(
                f"is larger ({size} bytes) than any file of a source may be",
                place,
                "take no source that holds it",
                kind=TOO_BIG,
                value=size,
            )
        data = answers.take(size + 1)[:size]
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
                "is corrupt: its content does not have this hash", place, self._mend, kind=DAMAGED
            )
        if self._kept is not None:
            self._size += size if sha not in self._kept else 0
            if self._size > _LARGEST_KEPT:
                raise UserError(
                    f"holds more than {_LARGEST_KEPT >> 20} MiB in one commit",
                    self.where,
                    "take no source as large as that",
                )
            self._kept[sha] = (kind, data)
        return data

    def _started(self) -> tuple[IO[bytes], _Answers]:
        if self._running is None:
            # git allocates what an object's header claims: bounded, so that a lie in it is an error
            # and not the machine's end
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
                _Answers(cast("IO[bytes]", process.stdout)),
                stderr,
            )
        return self._running[1:3]

    def _unreadable(self, place: str) -> UserError:
        said = b""
        if self._running:
            self._running[0].kill()
            self._running[0].wait()
            self._running[3].seek(0)
            said = self._running[3].read()
        reason = extract_error(said) if said.strip() else "git stopped half-way"
        return UserError(f"cannot be read ({reason})", place, self._mend, kind=DAMAGED)


def hash_object(kind: str, data: bytes) -> str:
    """Return the name git gives an object: sha1 over its kind, length and content."""
    return hashlib.sha1(
        b"%s %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False
    ).hexdigest()


def loose_object_path(git_dir: Path, sha: str) -> Path:
    """Where `git_dir` has this object as a file of its own, if it has."""
    return git_dir / "objects" / sha[:2] / sha[2:]


def write_object(git_dir: Path, kind: str, data: bytes) -> str:
    """Store an object as a file of its own, whole or not at all; returns its name."""
    sha = hash_object(kind, data)
    path = loose_object_path(git_dir, sha)
    if path.exists():
        return sha
    body = zlib.compress(b"%s %d\0" % (kind.encode(), len(data)) + data, 1)
    # A name that git's own prune clears away.
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
    """Every file below a tree, sorted by path; a submodule or a hostile name is a UserError, and
    so are duplicates.
    """
    files: list[Entry] = []
    _collect_files(reader, tree_sha, "", files)
    return sorted(files, key=lambda entry: entry.path)


def _collect_files(reader: Reader, tree_sha: str, prefix: str, files: list[Entry]) -> None:
    data = reader.read(tree_sha, "tree")
    seen: set[str] = set()
    for mode, raw, sha in _parse_tree(data, f"{reader.where}, tree {tree_sha}"):
        where = f"{reader.where}, tree {tree_sha} ({prefix or '/'})"
        filename = check_name(raw.decode("utf-8", "surrogateescape"), where)
        if filename in seen:
            raise UserError(
                f"holds {filename!r} twice",
                where,
                "take no source that holds it",
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
                f"holds the submodule {path!r}",
                where,
                "take no source that has submodules",
                kind=UNSUPPORTED,
                value=path,
            )
        else:
            raise UserError(
                f"holds {path!r} with mode {mode!r}",
                where,
                "take no source that holds it",
                kind=UNSUPPORTED,
                value=path,
            )
        if len(files) > _MOST_FILES:
            raise UserError(
                f"holds more than {_MOST_FILES} files",
                reader.where,
                "take no source as large as that",
                kind=TOO_BIG,
            )


def _parse_tree(data: bytes, where: str) -> Iterator[tuple[str, bytes, str]]:
    at = 0
    while at < len(data):
        space, null = data.find(b" ", at), data.find(b"\0", at)
        if not at < space < null or null + 21 > len(data):
            raise UserError(
                "is no well-formed tree", where, "take no source that holds it", kind=INVALID
            )
        yield (
            data[at:space].decode("ascii", "replace"),
            data[space + 1 : null],
            data[null + 1 : null + 21].hex(),
        )
        at = null + 21


def write_trees(git_dir: Path, entries: Iterable[Entry]) -> str:
    """Write the tree objects that hold `entries` (their blobs need not exist); returns the root's
    name.
    """
    root: dict[str, object] = {}
    for entry in entries:
        *folders, filename = check_path(entry.path, str(git_dir)).split("/")
        folder = root
        for part in folders:
            below = folder.setdefault(part, {})
            if not isinstance(below, dict):
                raise UserError(
                    f"{entry.path!r} lies below a file",
                    str(git_dir),
                    "rename one of them",
                    kind=CONFLICT,
                    value=entry.path,
                )
            folder = below
        if filename in folder:
            raise UserError(
                f"{entry.path!r} is there twice, or is a folder as well",
                str(git_dir),
                "rename one of them",
                kind=CONFLICT,
                value=entry.path,
            )
        folder[filename] = entry
    return _write_tree(git_dir, root)


def _write_tree(git_dir: Path, folder: dict[str, object]) -> str:
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
