"""Runs Pax's scripts for real, up to Paxml, which a recorder stands in for."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import t5x_scripts

SCRIPTS = t5x_scripts.ROOT / "overlay" / "paxml" / "paxml" / "contrib" / "gpu" / "scripts_gpu"
# Notes each thing that would be executed, a line each; the checks before it, and whatever else is asked of Python, are the real ones.
RECORDER = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
if "rosetta.pax.train" not in words and os.path.basename(sys.argv[0]) == "recorder":
    os.execv({sys.executable!r}, [{sys.executable!r}, *words])
with open(os.environ["RECORD"], "a") as out:
    print(json.dumps({{"argv": words, "env": dict(os.environ)}}), file=out)
print("Paxml's words")
sys.exit(int(os.environ.get("RC", "0")))
"""


@dataclass(frozen=True)
class Ran(t5x_scripts.Ran):
    """How a script ended, with the last of what it ran; `notes` has all of it."""

    notes: tuple[t5x_scripts.Ran, ...] = ()

    @property
    def hyper(self) -> dict[str, str]:
        """The hyper-parameters of the last run."""
        return hyper(self.argv)


@dataclass(frozen=True)
class Place(t5x_scripts.Place):
    """A folder with text and a vocabulary, in which scripts run."""

    def start(self, *argv: str, **settings: str) -> Ran:
        record = self.work / "record.json"
        record.unlink(missing_ok=True)
        usual = {"VOCAB_PATH": "byte", "VOCAB": "", "TFDS_DATA_DIR": ""}
        done = subprocess.run(
            argv,
            cwd=self.work,
            env=self.env(**{**usual, **settings}),
            capture_output=True,
            text=True,
            check=False,
        )
        lines = (
            [json.loads(line) for line in record.read_text().splitlines()]
            if record.exists()
            else []
        )
        notes = tuple(
            t5x_scripts.Ran(done.returncode, "", "", line["argv"], line["env"]) for line in lines
        )
        last = notes[-1] if notes else t5x_scripts.Ran(0, "", "", [], {})
        return Ran(done.returncode, done.stdout, done.stderr, last.argv, last.env, notes)

    def run(self, script: str, *words: str, **settings: str) -> Ran:
        return self.start("bash", str(SCRIPTS / script), *words, **settings)

    def rosetta(self, *words: str, **settings: str) -> Ran:
        return self.start(sys.executable, "-P", "-m", "rosetta", *words, **settings)

    def checkpoint(self, run: str, *steps: int) -> Path:
        for step in steps:
            (self.work / run / "checkpoints" / f"checkpoint_{step:08}").mkdir(parents=True)
        return self.work / run


def hyper(argv: list[str]) -> dict[str, str]:
    words = [word.removeprefix("--fdl.") for word in argv if word.startswith("--fdl.")]
    return dict(word.split("=", 1) for word in words)


@pytest.fixture(name="place")
def place_(tmp_path: Path) -> Place:
    work = tmp_path / "work"
    (work / "bin").mkdir(parents=True)
    (work / "corpus.txt").write_text("A line of text.\n" * 200_000)  # a batch of 128 GPUs
    (work / "boolq.jsonl").write_text('{"question": "is it", "passage": "it is", "answer": true}\n')
    made = Place(tmp_path, work)
    for name in ("recorder", "srun", "nsys"):
        made.program(name, RECORDER)
    return made
