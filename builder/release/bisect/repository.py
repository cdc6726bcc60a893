"""Revisions of this repository: what stood in it, and which of its commits changed a path."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.release.bump import upstreamed_patches
from builder.upstream.git import Git

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builder.upstream.breakage_search import Cause

_ROW = re.compile(r"(?P<mode>[0-7]{6}) blob (?P<blob>[0-9a-f]{40})\t(?P<path>.*)", re.DOTALL)
_LINK = "120000"


@dataclass(frozen=True)
class Repository:
    """The repository that a manifest lies in; `prefix` leads from its top to the manifest's folder
    ("", or with a slash at its end).
    """

    git: Git
    prefix: str

    def commit(self, text: str) -> str | None:
        """Return the commit that a branch, tag or anything else git knows stands for; None where it
        stands for none.
        """
        done = self.git.run(
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            f"{text}^{{commit}}",
            check=False,
        )
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def write(self, commit: str, paths: Sequence[str], into: Path) -> None:
        """Write the files that a commit has at or below `paths`, which count from the manifest's
        folder; a path that is not there gives none.
        """
        for mode, blob, path in self._rows(commit, paths):
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            data = self.git.run("cat-file", "blob", blob).stdout
            if mode == _LINK:
                os.symlink(data.decode("utf-8", "surrogateescape"), target)
            else:
                target.write_bytes(data)
                target.chmod(int(mode, 8) & 0o777)

    def _rows(self, commit: str, paths: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        listed = self._literal.run(
            "ls-tree", "-r", "-z", "--full-tree", commit, "--", *self._full(paths)
        ).stdout.decode("utf-8", "surrogateescape")
        for row in filter(None, listed.split("\0")):
            if match := _ROW.fullmatch(row):
                yield match["mode"], match["blob"], match["path"].removeprefix(self.prefix)

    def versions(self, path: str) -> Iterator[bytes]:
        """Every content that a file ever had on the way to HEAD, newest first."""
        for one in self.log("HEAD", paths=[path]):
            for _, blob, _ in self._rows(one.commit, [path]):
                yield self.git.run("cat-file", "blob", blob).stdout

    def log(self, *what: str, paths: Sequence[str] = ()) -> list[Cause]:
        """Return the commits that `git log WHAT` names and that changed one of the paths, newest
        first.
        """
        return upstreamed_patches.log(self.git, *what, paths=self._full(paths))

    def line(self, older: str, newer: str, path: str) -> list[Cause] | None:
        """Return the commits after `older` up to `newer` that changed a path, oldest first, or None
        where these two are on no such line.
        """
        if not self.git.run(
            "diff", "--quiet", older, newer, "--", *self._full([path]), check=False
        ).returncode:
            return []
        if older not in self.git.text("rev-list", "--first-parent", newer).split():
            return None
        return self.log("--first-parent", f"{older}..{newer}", paths=[path])[::-1]

    def files(self, commit: str) -> list[str]:
        """Return what a commit changed against its first parent."""
        return changed(self.git, commit)

    @property
    def _literal(self) -> Git:
        return Git(self.git.git_dir, extra={"GIT_LITERAL_PATHSPECS": "1"})

    def _full(self, paths: Sequence[str]) -> list[str]:
        return [f"{self.prefix}{path}" for path in paths]


def around(folder: Path) -> Repository | None:
    """Return the repository that a folder lies in."""
    full = folder.resolve()
    top = next((one for one in (full, *full.parents) if (one / ".git").exists()), None)
    if top is None:
        return None
    return Repository(
        Git(top / ".git"), "" if top == full else f"{full.relative_to(top).as_posix()}/"
    )


def changed(git: Git, commit: str) -> list[str]:
    """Return the paths that a commit changed against its first parent, sorted."""
    shown = (
        "-z",
        "-m",
        "--first-parent",
        "--no-renames",
        "--no-show-signature",
        "--name-only",
        "--format=",
    )
    out = git.run("log", "-1", *shown, "--end-of-options", commit, check=False).stdout
    return sorted(set(filter(None, out.decode("utf-8", "replace").split("\0"))))
