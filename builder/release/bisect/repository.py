"""Revisions of this repository: their files, and the commits that changed a path."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.release.bump.commit_log import list_commits
from builder.upstream.git import Git

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builder.upstream.breakage_search import Cause

_TREE_ROW = re.compile(r"(?P<mode>[0-7]{6}) blob (?P<blob>[0-9a-f]{40})\t(?P<path>.*)", re.DOTALL)
_SYMLINK_MODE = "120000"


@dataclass(frozen=True)
class Repository:
    """The git repository that contains a manifest.

    Attributes:
        git: The repository.
        prefix: The path of the manifest's folder in the repository, either "" or with a slash at
            its end. All paths of the methods start at this folder.
    """

    git: Git
    prefix: str

    def resolve_commit(self, revision: str) -> str | None:
        """Return the commit of a branch, a tag or any other revision, or None."""
        done = self.git.run(
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            f"{revision}^{{commit}}",
            check=False,
        )
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def export_files(self, commit: str, paths: Sequence[str], target: Path) -> None:
        """Write the files that a commit has at or below some paths. Missing paths are ignored."""
        for mode, blob, path in self._list_files(commit, paths):
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            content = self._read_blob(blob)
            if mode == _SYMLINK_MODE:
                os.symlink(content.decode("utf-8", "surrogateescape"), file)
            else:
                file.write_bytes(content)
                file.chmod(int(mode, 8) & 0o777)

    def file_versions(self, path: str) -> Iterator[bytes]:
        """Yield every content that a file had in the history of HEAD, newest first."""
        for commit in self.log("HEAD", paths=[path]):
            for _, blob, _ in self._list_files(commit.commit, [path]):
                yield self._read_blob(blob)

    def log(self, *options: str, paths: Sequence[str] = ()) -> list[Cause]:
        """Return the commits of `git log OPTIONS` that changed one of the paths, newest first."""
        return list_commits(self.git, *options, paths=self._full_paths(paths))

    def commits_between(self, older: str, newer: str, path: str) -> list[Cause] | None:
        """Return the commits after `older`, up to `newer`, that changed a path, oldest first.

        Returns:
            None if `older` is not a first-parent ancestor of `newer`, and the path differs.
        """
        difference = self.git.run(
            "diff", "--quiet", older, newer, "--", *self._full_paths([path]), check=False
        )
        if difference.returncode == 0:
            return []
        if older not in self.git.text("rev-list", "--first-parent", newer).split():
            return None
        return self.log("--first-parent", f"{older}..{newer}", paths=[path])[::-1]

    def changed_paths(self, commit: str) -> list[str]:
        """Return the paths that a commit changed against its first parent."""
        return changed_paths(self.git, commit)

    def _list_files(self, commit: str, paths: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        """Yield the mode, the blob and the path of each file at or below some paths."""
        literal = Git(self.git.git_dir, extra={"GIT_LITERAL_PATHSPECS": "1"})
        output = literal.run(
            "ls-tree", "-r", "-z", "--full-tree", commit, "--", *self._full_paths(paths)
        ).stdout.decode("utf-8", "surrogateescape")
        for row in filter(None, output.split("\0")):
            if match := _TREE_ROW.fullmatch(row):
                yield match["mode"], match["blob"], match["path"].removeprefix(self.prefix)

    def _read_blob(self, blob: str) -> bytes:
        return self.git.run("cat-file", "blob", blob).stdout

    def _full_paths(self, paths: Sequence[str]) -> list[str]:
        return [f"{self.prefix}{path}" for path in paths]


def find_repository(folder: Path) -> Repository | None:
    """Return the git repository that contains a folder, or None."""
    folder = folder.resolve()
    for top in (folder, *folder.parents):
        if (top / ".git").exists():
            prefix = "" if top == folder else f"{folder.relative_to(top).as_posix()}/"
            return Repository(Git(top / ".git"), prefix)
    return None


def changed_paths(git: Git, commit: str) -> list[str]:
    """Return the paths that a commit changed against its first parent, sorted."""
    options = (
        "-z",
        "-m",
        "--first-parent",
        "--no-renames",
        "--no-show-signature",
        "--name-only",
        "--format=",
    )
    output = git.run("log", "-1", *options, "--end-of-options", commit, check=False).stdout
    return sorted(set(filter(None, output.decode("utf-8", "replace").split("\0"))))
