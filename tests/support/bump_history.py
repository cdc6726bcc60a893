"""A source with patches on a scripted upstream, pinned where the story begins, and `build.py bump` run on it as a person does."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builder import cli
from builder.core import manifest
from tests.support.patch_series import Bench, make_text

OTHER = b"x = 1\ny = 2\nz = 3\n"


@dataclass
class Story:
    """`pin()` ends the past: what upstream does afterwards is what a bump meets."""

    bench: Bench
    capsys: pytest.CaptureFixture[str]
    manifest: Path = field(init=False)

    def pin(self) -> str:
        self.manifest = self.bench.manifest()
        return self.bench.upstream.head

    def argv(self, *argv: str, verb: str = "bump") -> list[str]:
        return [
            verb,
            "--offline",
            "--mirror",
            str(self.bench.root / "mirror"),
            "--manifest",
            str(self.manifest),
            *argv,
        ]

    def run(self, *argv: str, verb: str = "bump") -> tuple[int, str]:
        self.capsys.readouterr()
        status = cli.main(self.argv(*argv, verb=verb))
        said = self.capsys.readouterr()
        return status, said.out + (said.err if status == 2 else "")

    def json(self, *argv: str, verb: str = "bump") -> tuple[int, dict[str, Any]]:
        self.capsys.readouterr()
        status = cli.main([*self.argv(*argv, verb=verb), "--json"])
        said = self.capsys.readouterr()
        document: dict[str, Any] = json.loads(said.out)
        assert document["ok"] is (status == 0), said.err
        return status, document

    def up(self, *argv: str) -> dict[str, Any]:
        """The report on the one source."""
        _, document = self.json(*argv)
        assert document["result"], document["error"]
        found: dict[str, Any] = document["result"]["sources"]["up"]
        return found

    def patch(self, *argv: str, name: str = "mine") -> dict[str, Any]:
        found: dict[str, Any] = next(
            one for one in self.up(*argv)["patches"] if one["name"] == name
        )
        return found

    @property
    def pinned(self) -> str | None:
        return manifest.load(self.manifest).sources["up"].commit

    def ours(self) -> dict[str, bytes]:
        """Every file of ours that a bump may touch."""
        folders = [
            self.manifest,
            *(
                path
                for path in (
                    self.bench.root / "patches",
                    self.bench.root / "overlay",
                    self.bench.root / "locks",
                )
                if path.exists()
            ),
        ]
        files = [
            path
            for one in folders
            for path in ([one] if one.is_file() else sorted(one.rglob("*")))
            if path.is_file()
        ]
        return {str(path.relative_to(self.bench.root)): path.read_bytes() for path in files}

    def mine(self, **edits: str) -> Path:
        """The patch `mine` on pkg/a.py."""
        return self.bench.add("mine", self.bench.upstream.diff({"pkg/a.py": make_text(**edits)}))

    def blocked(self) -> str:
        """A pin that can go one commit far; the tip breaks the patch. Returns the tip."""
        self.mine(l20="ours\n")
        self.pin()
        up = self.bench.upstream
        up.commit({"pkg/a.py": make_text(l1="a\nb\n")}, "elsewhere")
        return up.commit({"pkg/a.py": make_text(l1="a\nb\n", l20="theirs\n")}, "rework")

    def mend(self) -> None:
        """As a person does: the patch made anew against the tip, by hand, not as git writes it."""
        diff = self.bench.upstream.diff(
            {"pkg/a.py": make_text(l1="a\nb\n", l20="ours and theirs\n")}, context=3
        )
        file = self.bench.patches / "mine.patch"
        file.write_bytes(file.read_bytes().partition(b"---\n")[0] + b"---\n" + diff)


def begin_story(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Story:
    monkeypatch.setenv("ROSETTA_CACHE", str(root / "cache"))
    bench = Bench(root)
    bench.upstream.commit({"README": b"up\n"}, "begin")
    bench.upstream.commit({"pkg/a.py": make_text(), "pkg/b.py": OTHER}, "code")
    return Story(bench, capsys)
