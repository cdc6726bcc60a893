"""This repository's own history, as far as patches and pins go: what stood on each source at each
of our commits.
"""

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
    from pathlib import Path

    from builder.core.manifest import GitSource, WheelSource

_LIST = re.compile(r"[0-7]{6} blob ([0-9a-f]{40})\t(.*)", re.DOTALL)


@dataclass(frozen=True)
class Moment:
    """A source after one of our commits. `date` is in seconds since 1970; `pin` is None where the
    manifest had no such source.

    `names` are the patches of its series; `added` and `removed` their lines, None where a patch of
    that time cannot be read today.
    """

    commit: str
    date: int
    pin: str | None
    names: tuple[str, ...]
    added: int | None
    removed: int | None


class Ours:
    """The repository that `root`, the manifest's folder, lies in."""

    def __init__(self, root: Path) -> None:
        folder = next((one for one in (root, *root.parents) if (one / ".git").exists()), None)
        self._git = Git(_git_dir(folder / ".git")) if folder else None
        self._prefix = (
            "" if folder in (None, root) else f"{root.relative_to(folder or root).as_posix()}/"
        )
        self._root = root
        self._blobs: dict[str, bytes] = {}
        self._sizes: dict[str, tuple[int, int] | None] = {}

    @property
    def cut_off(self) -> bool:
        """Whether its history is not all there, so that the oldest commit at hand proves
        nothing.
        """
        return self._git is not None and (self._git.git_dir / "shallow").exists()

    def moments(self, source: GitSource | WheelSource, manifest: str) -> list[Moment]:
        """Each state that the source's patches and pin were in, oldest first; none where there is
        no repository.
        """
        if self._git is None:
            return []
        folder = os.path.relpath(source.patches, self._root)
        paths = [f"{self._prefix}{manifest}", f"{self._prefix}{folder}"]
        git = Git(self._git.git_dir, extra={"GIT_LITERAL_PATHSPECS": "1"})
        done = git.run(
            "log",
            "--first-parent",
            "--reverse",
            "--no-show-signature",
            "--format=%H %ct",
            "--end-of-options",
            "HEAD",
            "--",
            *paths,
            check=False,
        )
        found: list[Moment] = []
        for line in done.stdout.decode().splitlines():
            commit, date = line.split()
            listed = (
                git.run("ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths)
                .stdout.decode("utf-8", "surrogateescape")
                .split("\0")
            )
            blobs = {
                match[2].removeprefix(self._prefix): match[1]
                for one in listed
                if (match := _LIST.fullmatch(one))
            }
            moment = self._moment(commit, int(date), source.name, blobs, manifest, folder)
            if moment.pin is None and not moment.names and not found:
                continue  # from before the source was there
            if not found or (
                found[-1].pin,
                found[-1].names,
                found[-1].added,
                found[-1].removed,
            ) != (moment.pin, moment.names, moment.added, moment.removed):
                found.append(moment)
        return found

    def _moment(
        self, commit: str, date: int, name: str, blobs: dict[str, str], manifest: str, folder: str
    ) -> Moment:
        listed = (
            self._read(blobs[f"{folder}/series"]).decode("utf-8", "replace").splitlines()
            if f"{folder}/series" in blobs
            else []
        )
        names = tuple(filter(None, (line.split("#")[0].strip() for line in listed)))
        sizes = [
            self._size(blobs[path]) if (path := f"{folder}/{one}.patch") in blobs else None
            for one in names
        ]
        known = [one for one in sizes if one is not None]
        whole = len(known) == len(sizes)
        pin = self._pin(blobs[manifest], name) if manifest in blobs else None
        return Moment(
            commit,
            date,
            pin,
            names,
            sum(one for one, _ in known) if whole else None,
            sum(one for _, one in known) if whole else None,
        )

    def _pin(self, blob: str, name: str) -> str | None:
        try:
            entry = strict_yaml.load(self._read(blob).decode("utf-8", "replace"), "").data[
                "sources"
            ][name]
            return str(entry.get("commit") or entry.get("sha256"))
        except (UserError, KeyError, TypeError, AttributeError):
            return None

    def _size(self, blob: str) -> tuple[int, int] | None:
        if blob not in self._sizes:
            try:
                self._sizes[blob] = lines(patch_file.parse(self._root / blob, self._read(blob)))
            except UserError:  # written before today's rules
                self._sizes[blob] = None
        return self._sizes[blob]

    def _read(self, blob: str) -> bytes:
        if blob not in self._blobs and self._git:
            self._blobs[blob] = self._git.run("cat-file", "blob", blob).stdout
        return self._blobs[blob]


def lines(patch: patch_file.Patch) -> tuple[int, int]:
    """How many lines a patch adds and removes."""
    return sum(file.added for file in patch.files), sum(file.removed for file in patch.files)


def _git_dir(place: Path) -> Path:
    """Return what a `.git` is or, in a work tree beside the repository, names."""
    if place.is_dir():
        return place
    return (place.parent / place.read_text("utf-8").strip().removeprefix("gitdir: ")).resolve()
