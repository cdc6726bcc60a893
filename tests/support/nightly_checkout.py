"""A checkout whose build.py is a stand-in: it notes how it was called, answers as it is told, and is what `build.py nightly` runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from builder import cli
from builder.commands import nightly
from builder.core.cache import Cache
from builder.core.command_context import Context, Result

PIN, TIP = "a" * 40, "b" * 40
_BUILD_PY = """
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
line = " ".join(sys.argv[1:])
with open(os.path.join(here, "..", "calls"), "a") as out:
    out.write(line + "\\n")
with open(os.path.join(here, "..", "answers")) as file:
    answers = json.load(file)
for start, answer in answers:
    if line.startswith(start):
        break
else:
    sys.exit("no answer to " + line)
for path, old, new in answer.get("edit", []):
    manifest = sys.argv[sys.argv.index("--manifest") + 1]
    target = os.path.join(os.path.dirname(manifest), path)
    with open(target) as file:
        text = file.read()
    with open(target, "w") as file:
        file.write(text.replace(old, new))
status = answer.get("status", 0)
print("words of " + sys.argv[1], file=sys.stderr)
if answer.get("raw"):
    print(answer["raw"])
else:
    print(json.dumps({"schema": 1, "command": sys.argv[1], "ok": status == 0, "result": answer.get("result"), "error": answer.get("error")}))
sys.exit(status)
"""
_MANIFEST = f"""version: 1
sources:
  one: {{git: "https://example.invalid/one.git", track: main, commit: {PIN}, patches: patches/one}}
  two: {{git: "https://example.invalid/two.git", track: main, commit: {PIN}, patches: patches/two}}
  old: {{wheel: old==1.0, sha256: {"e" * 64}, patches: patches/old}}
lines:
  line: {{python: "3.12", pythons: ["3.12"], common: locks/line/common.in, support: "as long as the tests run", until: "2030-01-01"}}
distributions:
  first: {{line: line, sources: [one], accelerators: [cpu], architectures: [amd64, arm64]}}
  second: {{line: line, sources: [two, old], accelerators: [cpu, cuda13], architectures: [amd64]}}
"""
RUN = {
    "devices": 1,
    "mesh": "data=1",
    "losses": {"5": 5.0},
    "resumed_losses": {"10": 4.0},
    "resumed_from": 5,
    "steps_per_second": 2.0,
}


def make_bump_answer(name: str, **more: Any) -> dict[str, Any]:
    """What a bump answers that went to the tip."""
    source = {
        "from": PIN,
        "tip": TIP,
        "pin": TIP,
        "commits": 3,
        "finding": None,
        "problem": None,
        "patches": [],
    }
    return {
        "result": {
            "summary": {name: "moved"},
            "sources": {name: source},
            "locks": {"lines": [], "problem": ""},
            **more,
        }
    }


def make_pin_edit(name: str) -> list[list[str]]:
    """The edit that goes with it."""
    return [
        [
            "manifest.yaml",
            f'{name}.git", track: main, commit: {PIN}',
            f'{name}.git", track: main, commit: {TIP}',
        ]
    ]


def make_build_answer(digest: str = "sha256:1") -> dict[str, Any]:
    return {
        "result": {
            "digest": digest,
            "images": [{"digest": digest, "size": 10, "layers": [{"unpacked": 20}]}],
        }
    }


DEFAULT: list[tuple[str, dict[str, Any]]] = [
    ("bump one", {**make_bump_answer("one"), "edit": make_pin_edit("one")}),
    ("bump two", {**make_bump_answer("two"), "edit": make_pin_edit("two")}),
    ("lock", {"result": {"locks": {}}}),
    ("patches check", {"result": {"sources": {}}}),
    ("patches stats", {"result": {"sources": {}}}),
    ("audit", {"result": {"date": "2026-11-28", "service": "https://osv.example", "locks": {}}}),
    ("build", make_build_answer()),
    ("verify ", {"result": {"ok": True, "problems": [], "runs": [RUN]}}),
    (
        "publish",
        {
            "result": {
                "digest": "sha256:9",
                "repository": "reg/ns/x",
                "tags": ["nightly-2026-11-28", "latest"],
                "previous": {},
            }
        },
    ),
    ("verify-published", {"result": {}}),
    ("changelog", {"result": {"sources": {}}}),
]


@dataclass
class Place:
    """Where it all is."""

    root: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def folder(self) -> Path:
        return self.root / "night"

    @property
    def context(self) -> Context:
        return Context(
            self.root / "checkout",
            self.root / "checkout/manifest.yaml",
            Cache(self.root / "cache"),
            mirrors=(self.root,),
        )

    def answer(self, *first: tuple[str, dict[str, Any]]) -> None:
        """These answers before the ones of a night in which all is well; the first that a call begins with is given."""
        (self.root / "answers").write_text(json.dumps([*first, *DEFAULT]))

    def calls(self) -> list[str]:
        """What was called since the last time, without the options that all calls share."""
        file = self.root / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [
            line.removesuffix(f" --mirror {self.root} --json").replace(str(self.root) + "/", "")
            for line in lines
        ]

    def run(self, *argv: str, date: str = "2026-11-28", offline: bool = False) -> Result:
        """`build.py nightly`; errors come as they are raised."""
        dated = ("--date", date) if date else ()
        arguments = cli.make_command_parser("nightly").parse_args(
            ["--folder", str(self.folder), *dated, *argv]
        )
        return nightly.run(replace(self.context, offline=offline), arguments)

    def states(self) -> dict[str, str]:
        """The state of each step by its record."""
        return {
            file.stem: json.loads(file.read_text())["state"]
            for file in sorted((self.folder / "steps").glob("*.json"))
        }

    def report(self, date: str = "2026-11-28") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "reports" / f"{date}.json").read_text())
        return found


def make_checkout(root: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    checkout = root / "checkout"
    for name in ("one", "two", "old"):
        (checkout / "patches" / name).mkdir(parents=True)
        (checkout / "patches" / name / "series").write_text("")
    (checkout / "locks/line").mkdir(parents=True)
    (checkout / "locks/line/common.in").write_text("jax\n")
    (checkout / "build.py").write_text(_BUILD_PY)
    (checkout / "manifest.yaml").write_text(_MANIFEST)
    place = Place(root, capsys)
    place.answer()
    return place
