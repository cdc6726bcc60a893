"""Runs the scripts that stand in for upstream's GPU scripts for real, up to the trainer, which a recorder stands in for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "overlay" / "t5x"
SCRIPTS = "t5x/contrib/gpu/scripts_gpu"
# Records what would be executed; the checks before it, and whatever else is asked of Python, are the real ones.
RECORDER = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
if "rosetta.t5x.train" not in words and os.path.basename(sys.argv[0]) == "recorder":
    os.execv({sys.executable!r}, [{sys.executable!r}, *words])
with open(os.environ["RECORD"], "w") as out:
    json.dump({{"argv": words, "env": dict(os.environ)}}, out)
print("the trainer's words")
sys.exit(int(os.environ.get("RC", "0")))
"""


@dataclass(frozen=True)
class Ran:
    rc: int
    out: str
    err: str
    argv: list[str]
    env: dict[str, str]

    @property
    def said(self) -> list[str]:
        """What is said before the trainer starts, but for its command line."""
        return [line for line in self.err.splitlines() if not line.startswith("+ ")]


@dataclass(frozen=True)
class Place:
    tree: Path
    work: Path

    def env(self, **settings: str) -> dict[str, str]:
        plain = {
            "PATH": f"{self.work}/bin:{os.environ['PATH']}",
            "HOME": str(self.work),
            "RECORD": str(self.work / "record.json"),
            "PYTHON": str(self.work / "bin" / "recorder"),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "JAX_PLATFORMS": "cpu",
            "ROSETTA_DOCTOR": "0",  # what it says is the machine's that the tests run on
            "TFDS_DATA_DIR": str(self.work / "data"),
            "DATA": f"text:{self.work}/corpus.txt",
            "VOCAB": "byte",
        }
        return {name: value for name, value in {**plain, **settings}.items() if value}

    def start(self, *argv: str, **settings: str) -> Ran:
        """Run a command with these variables on top of the usual ones; an empty one is not set."""
        record = self.work / "record.json"
        record.unlink(missing_ok=True)
        done = subprocess.run(
            argv,
            cwd=self.work,
            env=self.env(**settings),
            capture_output=True,
            text=True,
            check=False,
        )
        seen: dict[str, Any] = (
            json.loads(record.read_text()) if record.exists() else {"argv": [], "env": {}}
        )
        return Ran(done.returncode, done.stdout, done.stderr, seen["argv"], seen["env"])

    def run(self, script: str, *words: str, **settings: str) -> Ran:
        return self.start("bash", str(self.tree / SCRIPTS / script), *words, **settings)

    def rosetta(self, *words: str, **settings: str) -> Ran:
        """Run the command line, with the tree as the environment's t5x."""
        return self.start(
            sys.executable,
            "-P",
            "-m",
            "rosetta",
            *words,
            **{"PYTHONPATH": f"{ROOT}:{self.tree}", **settings},
        )

    def program(self, name: str, text: str) -> None:
        (self.work / "bin" / name).write_text(text)
        (self.work / "bin" / name).chmod(0o755)

    def cards(self, *cards: str) -> dict[str, str]:
        """Put a driver's program in place that lists these, as "NAME, 9.0"; return the variables of a run on them."""
        lines = "\n".join(cards)
        self.program("nvidia-smi", f"#!/bin/sh\ncat <<'E'\n{lines}\nE\n")
        return {"JAX_PLATFORMS": "cuda,cpu"}


@pytest.fixture(name="place")
def place_(tmp_path: Path) -> Place:
    tree, work = tmp_path / "a tree", tmp_path / "work"
    shutil.copytree(OVERLAY / "t5x", tree / "t5x", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "t5x" / "train.py").touch()
    (tree / "t5x" / "__init__.py").touch()
    (work / "bin").mkdir(parents=True)
    (work / "corpus.txt").write_text("A line of text.\n" * 100)
    (work / "mnli.jsonl").write_text('{"premise": "a", "hypothesis": "b", "label": 1}\n' * 10)
    made = Place(tree, work)
    for name in ("recorder", "srun", "nsys"):
        made.program(name, RECORDER)
    return made


def bindings(ran: Ran) -> dict[str, str]:
    words = [word.removeprefix("--gin.") for word in ran.argv if word.startswith("--gin.")]
    return dict(word.split("=", 1) for word in words)


def checkpoints(place: Place, *steps: str, name: str = "pre") -> Path:
    folder = place.work / name
    for step in steps:
        (folder / f"checkpoint_{step}").mkdir(parents=True)
        (folder / f"checkpoint_{step}" / "weights").write_text(step)
    return folder


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }
