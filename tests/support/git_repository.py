"""Make git repositories with git's low-level commands, so that they can also be hostile."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.cache import Cache
from builder.core.manifest import GitSource
from builder.upstream.git import Git
from builder.upstream.git_objects import Reader, list_tree_files
from builder.upstream.source import Access
from builder.upstream.tree_export import exported_entries, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.upstream.source import Pinned

URL = "https://example.invalid/group/{}.git"
DATE = 1_700_000_000
Content = bytes | tuple[str, bytes]  # the bytes of a plain file, or (mode, bytes)


def run_git(repo: Path, *args: str, stdin: bytes = b"", **env: str) -> str:
    """Run git in a repository without settings of a user, and return its output."""
    full = {
        "PATH": os.environ["PATH"],
        "HOME": str(repo),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "LC_ALL": "C",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.invalid",
        "GIT_AUTHOR_DATE": f"{DATE} +0100",
        "GIT_COMMITTER_NAME": "C",
        "GIT_COMMITTER_EMAIL": "c@example.invalid",
        "GIT_COMMITTER_DATE": f"{DATE} +0100",
    }
    done = subprocess.run(
        ["git", *args], cwd=repo, input=stdin, capture_output=True, check=False, env=full | env
    )
    assert done.returncode == 0, f"git {args}: {done.stderr.decode()}"
    return done.stdout.decode().strip()


def init_repository(repo: Path) -> Path:
    """A new bare repository."""
    repo.mkdir(parents=True, exist_ok=True)
    run_git(repo, "init", "--quiet", "--bare", "--initial-branch=main", ".")
    return repo


def write_raw_object(repo: Path, kind: str, data: bytes) -> str:
    """Store any bytes as an object of any kind, however malformed."""
    return run_git(repo, "hash-object", "-t", kind, "-w", "--stdin", "--literally", stdin=data)


def raw_tree(repo: Path, rows: Iterable[tuple[str, bytes, str]]) -> str:
    """A tree of (mode, name, object) rows as they come: in any order, with any name, twice."""
    return write_raw_object(
        repo,
        "tree",
        b"".join(
            b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(sha)) for mode, name, sha in rows
        ),
    )


def make_tree(repo: Path, files: Mapping[str, Content]) -> str:
    """A well-formed tree of files, as git itself writes it."""
    rows = []
    for path, content in files.items():
        mode, data = content if isinstance(content, tuple) else ("100644", content)
        rows.append(f"{mode} {write_raw_object(repo, 'blob', data)}\t{path}\0")
    index = str(repo / "scratch-index")
    run_git(
        repo,
        "update-index",
        "-z",
        "--index-info",
        stdin="".join(rows).encode(),
        GIT_INDEX_FILE=index,
    )
    sha = run_git(repo, "write-tree", GIT_INDEX_FILE=index)
    os.unlink(index)
    return sha


def write_commit(
    repo: Path, root: str, *parents: str, message: str = "a commit", date: int = DATE
) -> str:
    """A commit of a tree."""
    stamp = f"{date} +0100"
    above = [part for parent in parents for part in ("-p", parent)]
    return run_git(
        repo,
        "commit-tree",
        root,
        *above,
        "-m",
        message,
        GIT_AUTHOR_DATE=stamp,
        GIT_COMMITTER_DATE=stamp,
    )


def set_branch(repo: Path, sha: str, name: str = "main") -> None:
    """Let a branch stand at a commit."""
    run_git(repo, "update-ref", f"refs/heads/{name}", sha)


FILES: dict[str, Content] = {
    "setup.py": b"print('x')\r\n",
    "t5x/__init__.py": b"",
    "t5x/train.py": b"$Id$ \xff binary \0 too\n",
    "t5x/run.sh": ("100755", b"#!/bin/sh\n"),
    "t5x/link.py": ("120000", b"train.py"),
    ".gitattributes": b"* text eol=crlf ident export-ignore filter=evil\n",
}


def make_upstream(repo: Path, files: Mapping[str, Content] | None = None) -> tuple[Path, str]:
    """A bare repository with two commits on main, and the pin: the second of them."""
    init_repository(repo)
    first = write_commit(repo, make_tree(repo, {"setup.py": b"old\n"}), message="first")
    pin = write_commit(
        repo,
        make_tree(repo, FILES if files is None else files),
        first,
        message="second",
        date=DATE + 60,
    )
    set_branch(repo, pin)
    return repo, pin


def make_source(
    commit: str,
    *,
    name: str = "t5x",
    url: str = "",
    track: str = "main",
    absent: tuple[str, ...] = (),
) -> GitSource:
    """A source of the manifest at a pin."""
    return GitSource(name, url or URL.format(name), track, commit, Path("patches"), None, absent)


def make_access(
    cache: Path, *mirrors: Path, offline: bool = True, protocols: tuple[str, ...] = ("https", "ssh")
) -> Access:
    """Where sources come from in a test: offline unless said otherwise."""
    return Access(Cache(cache), offline, mirrors, protocols, {"paxml": "pax-1.4"})


def read_folder(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Everything below a folder: {path: (mode in octal, content or link target)}."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = (
            os.readlink(path).encode()
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else b""
        )
        found[path.relative_to(folder).as_posix()] = (f"{info.st_mode:o}", content)
    return found


def list_loose_objects(repo: Path) -> set[str]:
    """The objects that a repository has as files of their own."""
    return {path.parent.name + path.name for path in (repo / "objects").glob("??/*")}


def damage_object(repo: Path, sha: str, with_object: str) -> None:
    """Put another object's content where `sha` should be."""
    target, other = (repo / "objects" / name[:2] / name[2:] for name in (sha, with_object))
    target.unlink()
    target.write_bytes(other.read_bytes())


def export_pin(pinned: Pinned, into: Path) -> dict[str, tuple[str, bytes]]:
    """What an export of the pin from our cache alone writes."""
    with Reader(Git(pinned.git.git_dir)) as reader:
        write_tree(
            reader, exported_entries(list_tree_files(reader, pinned.tree), pinned.absent), into
        )
    return read_folder(into)


def list_cached_files(cache: Path) -> set[str]:
    """The objects and stamps in a cache, whatever the source."""
    return {path.name for path in cache.glob("git/*/objects/??/*")} | {
        path.name for path in cache.glob("git/*/rosetta-verified/*")
    }
