"""The history of patches and pins, from the commits of this repository."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.upstream import patch_file
from builder.upstream.git import Git
from rosetta.core import strict_yaml
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.core.manifest import GitSource, WheelSource

_TREE_ROW = re.compile(r"[0-7]{6} blob ([0-9a-f]{40})\t(.*)", re.DOTALL)


@dataclass(frozen=True)
class SourceState:
    """A source after one commit of this repository.

    Attributes:
        commit: The commit.
        date: When it was committed, in seconds since 1970.
        pin: The pin of the source, or None if the manifest did not have the source.
        names: The names of the patches in the series.
        added: How many lines the patches add, or None if a patch is not valid today.
        removed: How many lines the patches remove, or None if a patch is not valid today.
    """

    commit: str
    date: int
    pin: str | None
    names: tuple[str, ...]
    added: int | None
    removed: int | None

    def is_same_as(self, other: SourceState) -> bool:
        """Return whether the source is in the same state after two commits."""
        return (self.pin, self.names, self.added, self.removed) == (
            other.pin,
            other.names,
            other.added,
            other.removed,
        )


class PatchHistory:
    """The git history of the folder of a manifest, if it is in a git repository.

    Args:
        root: The folder of the manifest.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._git: Git | None = None
        self._prefix = ""
        for folder in (root, *root.parents):
            if (folder / ".git").exists():
                self._git = Git(_resolve_git_folder(folder / ".git"))
                self._prefix = "" if folder == root else f"{root.relative_to(folder).as_posix()}/"
                break
        self._blobs: dict[str, bytes] = {}
        self._line_counts: dict[str, tuple[int, int] | None] = {}

    @property
    def is_shallow(self) -> bool:
        """Whether the history is incomplete, so that its oldest commit may not be the first."""
        return self._git is not None and (self._git.git_dir / "shallow").exists()

    def list_states(self, source: GitSource | WheelSource, manifest: str) -> list[SourceState]:
        """Return each state that a source's patches and pin were in, oldest first.

        Args:
            source: The source.
            manifest: The file name of the manifest.
        """
        if self._git is None:
            return []
        folder = os.path.relpath(source.patches, self._root)
        paths = [f"{self._prefix}{manifest}", f"{self._prefix}{folder}"]
        git = Git(self._git.git_dir, extra={"GIT_LITERAL_PATHSPECS": "1"})
        states: list[SourceState] = []
        for commit, date in _list_commits(git, paths):
            blobs = self._list_blobs(git, commit, paths)
            pin = self._read_pin(blobs[manifest], source.name) if manifest in blobs else None
            state = self._read_state(commit, date, pin, folder, blobs)
            is_before_source = pin is None and not state.names and not states
            if not is_before_source and not (states and state.is_same_as(states[-1])):
                states.append(state)
        return states

    def _list_blobs(self, git: Git, commit: str, paths: Sequence[str]) -> dict[str, str]:
        """Return the blob of each file at or below some paths, by its path from the manifest."""
        output = git.run("ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths).stdout
        blobs = {}
        for row in output.decode("utf-8", "surrogateescape").split("\0"):
            if match := _TREE_ROW.fullmatch(row):
                blobs[match[2].removeprefix(self._prefix)] = match[1]
        return blobs

    def _read_state(
        self, commit: str, date: int, pin: str | None, folder: str, blobs: dict[str, str]
    ) -> SourceState:
        series = f"{folder}/series"
        names = self._read_series(blobs[series]) if series in blobs else ()
        added, removed = 0, 0
        for name in names:
            patch = f"{folder}/{name}.patch"
            counts = self._count_lines(blobs[patch]) if patch in blobs else None
            if counts is None:
                return SourceState(commit, date, pin, names, None, None)
            added, removed = added + counts[0], removed + counts[1]
        return SourceState(commit, date, pin, names, added, removed)

    def _read_series(self, blob: str) -> tuple[str, ...]:
        lines = self._read_blob(blob).decode("utf-8", "replace").splitlines()
        return tuple(filter(None, (line.split("#")[0].strip() for line in lines)))

    def _read_pin(self, blob: str, name: str) -> str | None:
        try:
            text = self._read_blob(blob).decode("utf-8", "replace")
            entry = strict_yaml.parse_document(text, "").data["sources"][name]
            return str(entry.get("commit") or entry.get("sha256"))
        except (UserError, KeyError, TypeError, AttributeError):
            return None

    def _count_lines(self, blob: str) -> tuple[int, int] | None:
        """Return how many lines a patch adds and removes, or None if it is not valid today."""
        if blob not in self._line_counts:
            try:
                patch = patch_file.parse_patch(self._root / blob, self._read_blob(blob))
                self._line_counts[blob] = count_lines(patch)
            except UserError:
                self._line_counts[blob] = None
        return self._line_counts[blob]

    def _read_blob(self, blob: str) -> bytes:
        if blob not in self._blobs and self._git:
            self._blobs[blob] = self._git.run("cat-file", "blob", blob).stdout
        return self._blobs[blob]


def _list_commits(git: Git, paths: Sequence[str]) -> list[tuple[str, int]]:
    """Return the commits that changed one of the paths, oldest first, and their times."""
    options = ("--first-parent", "--reverse", "--no-show-signature", "--format=%H %ct")
    log = git.run("log", *options, "--end-of-options", "HEAD", "--", *paths, check=False)
    rows = [row.split() for row in log.stdout.decode().splitlines()]
    return [(commit, int(date)) for commit, date in rows]


def count_lines(patch: patch_file.Patch) -> tuple[int, int]:
    """Return how many lines a patch adds and how many it removes."""
    return sum(file.added for file in patch.files), sum(file.removed for file in patch.files)


def _resolve_git_folder(path: Path) -> Path:
    """Return the git folder that `.git` is, or that it names in a linked work tree."""
    if path.is_dir():
        return path
    return (path.parent / path.read_text("utf-8").strip().removeprefix("gitdir: ")).resolve()
