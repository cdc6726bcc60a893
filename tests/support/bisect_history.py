"""A small distribution whose upstream grows, two ends of it, a command that looks at what was built, and a count of how often it did."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder import cli
from builder.upstream import patch_file
from tests.support import git_repository, small_distribution
from tests.support.patch_series import FIELDS
from tests.support.small_distribution import Chain

HEAD = "# a file\n"  # a patch must leave something of a file

# EXPRESSION says whether a build is bad, by `text(PATH in the tree)` and `version(PROJECT)`; a number is the exit status itself.
_JUDGE = """
import glob, os, pathlib, re, sys
log, expression = sys.argv[1:]
root = pathlib.Path(os.environ["ROSETTA_ENV"])
def text(path):
    file = root / "opt/thing" / path
    return file.read_text() if file.is_file() else ""
def version(name):
    found = glob.glob(str(root / f"opt/rosetta/env/lib/*/site-packages/{name}-*.dist-info"))
    return re.search(r"-([0-9.]+)\\.dist-info", found[0])[1] if found else ""
with open(log, "a") as out: out.write("x")
calls = os.path.getsize(log)
answer = eval(expression)
sys.exit(answer if type(answer) is int else 1 if answer else 0)
"""


@dataclass
class Story:
    """`files` are those of the upstream's newest commit."""

    chain: Chain
    files: dict[str, str] = field(
        default_factory=lambda: {
            "thing/__init__.py": small_distribution.SOURCE,
            "LICENSE": "licence\n",
        }
    )
    count: int = 0

    @property
    def folder(self) -> Path:
        return self.chain.folder

    @property
    def upstream(self) -> Path:
        return self.chain.mirror / "thing"

    @property
    def log(self) -> Path:
        return self.folder / "calls"

    def commit(self, subject: str, /, *parents: str, **files: str) -> str:
        """One more commit of upstream's on main, of `files` by their paths, or as words (`a_py` is a.py)."""
        return self._import([(subject, files)], parents)[0]

    def many(self, count: int, bad: int = -1) -> list[str]:
        """That many commits; the one with the index `bad` brings the file bad.py, which all after it keep."""
        return self._import(
            [
                (
                    f"step {each}",
                    {f"f{each}_py": f"{each}\n"} | ({"bad_py": "bad\n"} if each == bad else {}),
                )
                for each in range(count)
            ],
            (),
        )

    def _import(
        self, commits: list[tuple[str, dict[str, str]]], parents: tuple[str, ...]
    ) -> list[str]:
        """By one git process, however many they are."""
        stream = ""
        for mark, (subject, files) in enumerate(commits, 1):
            named = {
                f"{name.removesuffix('_py')}.py" if name.endswith("_py") else name: text
                for name, text in files.items()
            }
            self.files |= named
            self.count += 1
            stamp = f"{git_repository.DATE + 86400 * self.count} +0100"
            stream += f"commit refs/heads/main\nmark :{mark}\nauthor Ada <ada@example.org> {stamp}\ncommitter C <c@example.org> {stamp}\ndata {len(subject)}\n{subject}\n"
            above = parents or ((f":{mark - 1}",) if mark > 1 else ("refs/heads/main^0",))
            stream += (
                f"from {above[0]}\n"
                + "".join(f"merge {each}\n" for each in above[1:])
                + ("deleteall\n" if parents else "")
            )
            stream += "".join(
                f"M 100644 inline {name}\ndata {len(text.encode())}\n{text}\n"
                for name, text in (self.files if parents else named).items()
            )
        git_repository.run_git(
            self.upstream,
            "fast-import",
            "--quiet",
            "--force",
            f"--export-marks={self.folder / 'marks'}",
            stdin=stream.encode(),
        )
        return [
            line.split()[1]
            for line in sorted(
                (self.folder / "marks").read_text().splitlines(),
                key=lambda line: int(line.split()[0][1:]),
            )
        ]

    def patch(self, end: str, name: str, path: str, text: str) -> None:
        """One more patch of an end: it makes `text` of a file of upstream's, both of them made by `lined`."""
        old = self.files[path]
        diff = f"diff --git a/{path} b/{path}\nindex {small_distribution.hash_blob(old)}..{small_distribution.hash_blob(text)} 100644\n--- a/{path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n {HEAD}-{old.removeprefix(HEAD)}+{text.removeprefix(HEAD)}"
        folder = self.folder / end / "patches/thing"
        (folder / f"{name}.patch").write_bytes(
            patch_file.render_patch(
                "rosetta <rosetta@localhost>", f"thing: {name}", FIELDS, diff.encode()
            )
        )
        listed = (folder / "series").read_text().split()
        (folder / "series").write_text(
            "".join(f"{each}\n" for each in dict.fromkeys([*listed, name]))
        )

    def end(self, name: str, commit: str = "") -> Path:
        """A folder with the manifest as it stands, pinned to `commit` (the newest, if none is given)."""
        into = self.folder / name
        for part in ("patches", "locks"):
            shutil.copytree(self.folder / part, into / part)
        text = (self.folder / "manifest.yaml").read_text()
        now = text.partition("commit: ")[2][:40]
        (into / "manifest.yaml").write_text(
            text.replace(now, commit or git_repository.run_git(self.upstream, "rev-parse", "main"))
        )
        return into

    def argv(self, expression: str, *more: str, good: str = "good", bad: str = "bad") -> list[str]:
        """As a person types it; the cheap stage, unless said otherwise."""
        ends = [end if ":" in end else str(self.folder / end) for end in (good, bad)]
        stage = () if "--stage" in more else ("--stage", "tree")
        judge = self.folder / "judge.py"
        judge.write_text(_JUDGE)
        return [
            "bisect",
            "--good",
            ends[0],
            "--bad",
            ends[1],
            *stage,
            *more,
            *self.common(),
            "--",
            sys.executable,
            str(judge),
            str(self.log),
            expression,
        ]

    def common(self) -> list[str]:
        return [
            "--manifest",
            str(self.folder / "manifest.yaml"),
            "--mirror",
            str(self.chain.mirror),
            "--json",
        ]

    def run(
        self, expression: str, *more: str, good: str = "good", bad: str = "bad"
    ) -> tuple[int, dict[str, Any]]:
        return self.main(
            *self.argv(expression, "--work", str(self.folder / "work"), *more, good=good, bad=bad)
        )

    def main(self, *argv: str) -> tuple[int, dict[str, Any]]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = cli.main(list(argv))
        return status, json.loads(out.getvalue())

    def calls(self) -> int:
        """How often the command ran."""
        return os.path.getsize(self.log) if self.log.exists() else 0

    def found(
        self, expression: str, *more: str, good: str = "good", bad: str = "bad", merged: int = 1
    ) -> dict[str, Any]:
        """The result of a bisect that ended well, and within its budget: counted by the command itself, the two ends left out.

        `merged` is how many commits the culprit's merge brought, itself with them.
        """
        self.log.unlink(missing_ok=True)
        status, document = self.run(expression, *more, good=good, bad=bad)
        assert status == 0, document
        result: dict[str, Any] = document["result"]
        several = 2 if result["pair"] else 1
        assert (
            self.calls() - 2
            == result["builds"]
            <= several * math.log2(result["candidates"]) + math.log2(merged) + 2 * several
        )
        return result


def make_numbered_file(word: str) -> str:
    """A file that a patch may change."""
    return f"{HEAD}{word}\n"


def get_only_culprit(result: dict[str, Any]) -> dict[str, Any]:
    """The only one."""
    ((found,),) = result["culprits"]
    return dict(found)
