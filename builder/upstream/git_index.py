"""Change git trees through an index file of our own.

There is no work tree, so no link and no filter can change what is written.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.upstream.git import extract_error

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable
    from pathlib import Path

    from builder.upstream.git import Git

NOTHING = "0" * 40


@dataclass(frozen=True)
class Index:
    """The index in `file`, on the objects of `git`."""

    git: Git
    file: Path

    def run(
        self, *args: str, stdin: bytes = b"", check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `git *args` with this index."""
        return self.git.run(*args, stdin=stdin, env={"GIT_INDEX_FILE": str(self.file)}, check=check)

    def read_tree(self, tree: str) -> None:
        """Read a tree into the index."""
        self.run("read-tree", "--end-of-options", tree)

    def entries(self) -> dict[str, tuple[str, str]]:
        """Return the mode and the blob of every path."""
        entries: dict[str, tuple[str, str]] = {}
        for line in (
            self.run("ls-files", "-s", "-z")
            .stdout.decode("utf-8", "surrogateescape")
            .split("\0")[:-1]
        ):
            info, path = line.split("\t", 1)
            mode, blob, _ = info.split(" ")
            entries[path] = (mode, blob)
        return entries

    def apply(self, diff: bytes, *options: str) -> str | None:
        """Apply a diff to the index, completely or not at all.

        Returns:
            None if the diff was applied, else git's error.
        """
        trial = self.file.with_name(self.file.name + ".trial")
        shutil.copyfile(self.file, trial)
        done = Index(self.git, trial).run(
            "apply",
            "--cached",
            "-p1",
            "--whitespace=nowarn",
            *options,
            "-",
            stdin=diff,
            check=False,
        )
        if done.returncode:
            return extract_error(done.stderr)
        os.replace(trial, self.file)  # git has applied the whole diff to this file
        return None

    def merge(self, diff: bytes) -> str | None:
        """Apply a diff by a three-way merge with the blobs that the diff names."""
        return self.apply(diff, "--3way")

    def put(self, changes: Iterable[tuple[str, str, str]]) -> None:
        """Set the mode and the blob of paths; the blob NOTHING removes a path."""
        lines = "".join(
            f"{'0' if blob == NOTHING else mode} {blob}\t{path}\0" for path, mode, blob in changes
        )
        self.run(
            "update-index", "-z", "--index-info", stdin=lines.encode("utf-8", "surrogateescape")
        )

    def write_tree(self) -> str:
        """Write the tree objects and return the SHA of the root.

        Blobs need not exist: files that the manifest lists as `absent` were never fetched.
        """
        return self.run("write-tree", "--missing-ok").stdout.decode().strip()


def create_commit(git: Git, tree: str, parent: str, message: str, date: int) -> str:
    """Create a commit by rosetta and return its SHA, which depends on the arguments alone."""
    stamp = f"@{date} +0000"
    dates = {"GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp}
    return git.text("commit-tree", tree, "-p", parent, stdin=message.encode(), env=dates)
