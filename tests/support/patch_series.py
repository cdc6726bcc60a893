"""A real upstream in a mirror folder, pins on it through the real `acquire`, and patches made by git."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from builder.core.cache import Cache
from builder.core.manifest import GitSource
from builder.upstream import patch_file
from builder.upstream.git import Git
from builder.upstream.source import Access, acquire_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.upstream.source import Pinned

FIELDS = {
    "Why": "the test\nneeds it",
    "Upstream-Status": "Pending",
    "Drop-When": "the test is over",
}
LINES = [f"line {n}\n" for n in range(1, 31)]
URL = "https://example.org/up.git"


def make_text(**edits: str) -> bytes:
    """Thirty lines; `l7="..."` stands in for line 7 (several lines, or none, as well)."""
    changed = list(LINES)
    for name, new in edits.items():
        changed[int(name[1:]) - 1] = new
    return "".join(changed).encode()


@dataclass
class Upstream:
    """A bare repository below `mirror`, grown commit by commit on one branch."""

    mirror: Path
    head: str = ""
    count: int = 0

    def __post_init__(self) -> None:
        self.git = Git(self.mirror / "up.git")
        self.git.run("init", "--quiet", "--bare", "--template=")

    def tree(
        self,
        files: Mapping[str, bytes | None],
        base: str = "",
        modes: Mapping[str, str] | None = None,
    ) -> str:
        """The tree `base` with `files` set, or taken out where None."""
        env = {"GIT_INDEX_FILE": str(self.mirror / "index")}
        (self.mirror / "index").unlink(missing_ok=True)
        if base:
            self.git.run("read-tree", base, env=env)
        rows = []
        for path, data in files.items():
            blob = (
                "0" * 40
                if data is None
                else self.git.text("hash-object", "-w", "--stdin", stdin=data)
            )
            mode = "0" if data is None else (modes or {}).get(path, "100644")
            rows.append(f"{mode} {blob}\t{path}\0")
        self.git.run("update-index", "-z", "--index-info", stdin="".join(rows).encode(), env=env)
        return self.git.text("write-tree", env=env)

    def commit(
        self,
        files: Mapping[str, bytes | None],
        subject: str = "a change",
        modes: Mapping[str, str] | None = None,
        parents: tuple[str, ...] | None = None,
    ) -> str:
        """One more commit; it becomes the head."""
        tree = self.tree(files, f"{self.head}^{{tree}}" if self.head else "", modes)
        before = parents if parents is not None else ((self.head,) if self.head else ())
        self.count += 1
        stamp = f"@{1_600_000_000 + 86400 * self.count} +0200"
        env = {
            "GIT_AUTHOR_NAME": "Ada Upstream",
            "GIT_AUTHOR_EMAIL": "ada@example.org",
            "GIT_AUTHOR_DATE": stamp,
            "GIT_COMMITTER_DATE": stamp,
        }
        self.head = self.git.text(
            "commit-tree",
            tree,
            *(part for sha in before for part in ("-p", sha)),
            stdin=subject.encode(),
            env=env,
        )
        self.git.run("update-ref", "refs/heads/main", self.head)
        return self.head

    def diff(
        self,
        files: Mapping[str, bytes | None],
        modes: Mapping[str, str] | None = None,
        context: int = 1,
    ) -> bytes:
        """What git says lies between the head and the same with `files` in it."""
        base = f"{self.head}^{{tree}}"
        return self.git.run(
            "diff-tree",
            "-p",
            f"-U{context}",
            "--full-index",
            "--no-renames",
            base,
            self.tree(files, base, modes),
        ).stdout


@dataclass
class Bench:
    """Folders for one test: an upstream, our patches and overlay on it, a cache."""

    root: Path

    def __post_init__(self) -> None:
        (self.root / "mirror").mkdir()
        self.patches, self.overlay, self.cache = (
            self.root / "patches/up",
            self.root / "overlay/up",
            Cache(self.root / "cache"),
        )
        self.patches.mkdir(parents=True)
        (self.patches / "series").write_text("")
        self.upstream = Upstream(self.root / "mirror")

    def add(self, name: str, diff: bytes, **fields: str) -> Path:
        """One more patch at the end of the series."""
        file = self.patches / f"{name}.patch"
        file.write_bytes(
            patch_file.render_patch(
                "rosetta <rosetta@localhost>", f"up: {name}", FIELDS | fields, diff
            )
        )
        with (self.patches / "series").open("a") as series:
            series.write(f"{name}\n")
        return file

    def lay(self, path: str, data: bytes, replaces: str) -> Path:
        """One more file in the overlay (in sorted order)."""
        file = self.overlay / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        with (self.overlay / "REPLACES").open("a") as listed:
            listed.write(f"{path} {replaces}\n")
        return file

    def source(self, commit: str = "", absent: tuple[str, ...] = ()) -> GitSource:
        return GitSource(
            "up",
            URL,
            "main",
            commit or self.upstream.head,
            self.patches,
            self.overlay if self.overlay.is_dir() else None,
            absent,
        )

    def pinned(
        self, commit: str = "", *, history: bool = True, absent: tuple[str, ...] = ()
    ) -> Pinned:
        """The source as a build gets it; without `history` the mirror is only there to fill the cache."""
        source = self.source(commit, absent)
        pinned = acquire_source(
            source, Access(self.cache, offline=True, mirrors=(self.root / "mirror",))
        )
        if history:
            return pinned
        return acquire_source(source, Access(self.cache, offline=True))

    def content(self, commit: str, path: str) -> bytes:
        """Return a file of a commit."""
        git = self.pinned(history=False).git
        return git.run("cat-file", "blob", f"{commit}:{path}").stdout

    def manifest(self) -> Path:
        """A manifest that names the source at the upstream's head."""
        file = self.root / "manifest.yaml"
        overlay = ", overlay: overlay/up" if self.overlay.is_dir() else ""
        file.write_text(
            f"version: 1\nsources:\n  up: {{git: {URL}, track: main, commit: {self.upstream.head}, patches: patches/up{overlay}}}\nlines: {{}}\ndistributions: {{}}\n"
        )
        return file


@pytest.fixture(name="bench")
def bench_(tmp_path: Path) -> Bench:
    """Return an upstream of two Python files and a script."""
    made = Bench(tmp_path)
    made.upstream.commit(
        {"pkg/a.py": make_text(), "pkg/b.py": b"x = 1\ny = 2\nz = 3\n", "run.sh": b"#!/bin/sh\n"},
        modes={"run.sh": "100755"},
    )
    return made
