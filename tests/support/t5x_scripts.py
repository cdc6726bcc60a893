"""Run the scripts that stand in for upstream's GPU scripts, up to the trainer.

`Place.run` and `Place.rosetta` run what a script ends in within this process. `Place.run_shell` and
`Place.run_rosetta` start the real script or command; a recorder stands in for the trainer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rosetta import cli
from rosetta.core.errors import UserError
from rosetta.launch import t5x_trainer
from tests.support.run_in_process import OUTPUT, Program, run_in_process

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "overlay" / "t5x"
SCRIPTS = "t5x/contrib/gpu/scripts_gpu"
# The words and variables of usual runs.
SMALL = ("small", "float32", "1", "8", "logs")
FINETUNE = ("mnli2", "large", "bfloat16", "8", "32", "logs", "pre")
SLURM = {"SLURM_NTASKS": "64", "SLURM_PROCID": "3", "SLURM_JOB_ID": "42"}
MNLI = {
    "FT_TASK": "mnli2",
    "T5_SIZE": "tiny",
    "DATA": "jsonl:mnli.jsonl",
    "EVAL_DATA": "jsonl:mnli.jsonl",
}
# Records what would be executed, a line each. Whatever else is asked of Python goes to Python.
RECORDER = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
trains = "rosetta.t5x.train" in words or "rosetta.pax.train" in words
if not trains and os.path.basename(sys.argv[0]) == "recorder":
    os.execv({sys.executable!r}, [{sys.executable!r}, *words])
with open(os.environ["RECORD"], "a") as out:
    print(json.dumps({{"argv": words, "env": dict(os.environ)}}), file=out)
print({OUTPUT!r})
if "ROSETTA_END_FD" in os.environ:  # as the trainer does before it ends
    os.write(int(os.environ["ROSETTA_END_FD"]), b".")
sys.exit(int(os.environ.get("RC", "0")))
"""


@dataclass(frozen=True)
class Ran:
    """How a script ended, the programs that would have run after its checks, and its errors."""

    rc: int
    out: str
    err: str
    programs: tuple[Program, ...]
    errors: tuple[UserError, ...] = ()  # in this process alone

    @property
    def error(self) -> UserError:
        """The error that it ended with."""
        (error,) = self.errors
        return error

    @property
    def argv(self) -> list[str]:
        """The arguments of the last program; empty without one."""
        return self.programs[-1].argv if self.programs else []

    @property
    def env(self) -> dict[str, str]:
        """The environment of the last program; empty without one."""
        return self.programs[-1].env if self.programs else {}

    @property
    def hyper(self) -> dict[str, str]:
        """The hyper-parameters of Pax's last program."""
        return read_fiddle_settings(self.argv)

    @property
    def said(self) -> list[str]:
        """What is said before the trainer starts, but for its command line."""
        return [line for line in self.err.splitlines() if not line.startswith("+ ")]


@dataclass(frozen=True)
class Place:
    """A tree with the scripts, and a folder in which they run."""

    tree: Path
    work: Path

    def env(self, **settings: str) -> dict[str, str]:
        """Return the usual variables with these on top; an empty one is not set."""
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
        """Run a command in a process of its own; see env for the variables."""
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
        lines = record.read_text().splitlines() if record.exists() else []
        programs = tuple(Program(**json.loads(line)) for line in lines)
        return Ran(done.returncode, done.stdout, done.stderr, programs)

    def call(self, entry: Callable[[], int], **settings: str) -> Ran:
        """Run an entry point in this process; see env for the variables."""
        ended = run_in_process(entry, self.work, self.env(**settings))
        return Ran(ended.status, ended.out, ended.err, ended.programs, ended.errors)

    def script(self, name: str) -> Path:
        """Return the path of a script."""
        return self.tree / SCRIPTS / name

    def run(self, script: str, *words: str, **settings: str) -> Ran:
        """Run what a script ends in, in this process."""
        argv = [self.script(script).stem, str(self.tree), *words]
        return self.call(lambda: t5x_trainer.main(argv), **settings)

    def run_shell(self, script: str, *words: str, **settings: str) -> Ran:
        """Run the script itself."""
        return self.start("bash", str(self.script(script)), *words, **settings)

    def rosetta(self, *words: str, **settings: str) -> Ran:
        """Run the command line in this process, with the tree as the environment's t5x."""
        return self.call(lambda: cli.main(words), **self._with_tree(settings))

    def run_rosetta(self, *words: str, **settings: str) -> Ran:
        """Run the command line in a process of its own, with the tree as its t5x."""
        argv = [sys.executable, "-P", "-m", "rosetta", *words]
        return self.start(*argv, **self._with_tree(settings))

    def _with_tree(self, settings: dict[str, str]) -> dict[str, str]:
        return {"PYTHONPATH": f"{ROOT}{os.pathsep}{self.tree}", **settings}

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
    return make_place(tmp_path)


def make_place(tmp_path: Path) -> Place:
    """Make a tree with the scripts, and a folder with text for them."""
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


def read_gin_bindings(ran: Ran) -> dict[str, str]:
    words = [word.removeprefix("--gin.") for word in ran.argv if word.startswith("--gin.")]
    return dict(word.split("=", 1) for word in words)


def read_fiddle_settings(argv: list[str]) -> dict[str, str]:
    words = [word.removeprefix("--fdl.") for word in argv if word.startswith("--fdl.")]
    return dict(word.split("=", 1) for word in words)


def make_checkpoint_folder(place: Place, *steps: str, name: str = "pre") -> Path:
    folder = place.work / name
    for step in steps:
        (folder / f"checkpoint_{step}").mkdir(parents=True)
        (folder / f"checkpoint_{step}" / "weights").write_text(step)
    return folder


def read_text_files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }
