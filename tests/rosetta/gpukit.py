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

OVERLAY = Path(__file__).resolve().parents[2] / "overlay" / "t5x"
SCRIPTS = "t5x/contrib/gpu/scripts_gpu"
GINS = [
    *(f"{size}_pile_pretrain" for size in ("small", "large", "xl", "xxl")),
    *(f"{size}_{task}_finetune_adam" for size in ("small", "large", "xl") for task in ("mnli2", "squad1")),
]
RECORDER = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "w") as out:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ)}}, out)
print("the trainer's words")
sys.exit(int(os.environ.get("RC", "0")))
"""


@dataclass(frozen=True)
class Ran:
    rc: int
    err: str
    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class Place:
    tree: Path
    work: Path

    def run(self, script: str, *words: str, **settings: str) -> Ran:
        record = self.work / "record.json"
        record.unlink(missing_ok=True)
        env = {
            "PATH": f"{self.work}/bin:{os.environ['PATH']}",
            "HOME": str(self.work),
            "RECORD": str(record),
            "PYTHON": str(self.work / "bin" / "recorder"),
            "JAX_PLATFORMS": "cpu",
            "TFDS_DATA_DIR": str(self.work / "data"),
            **settings,
        }
        argv = ["bash", str(self.tree / SCRIPTS / script), *words]
        done = subprocess.run(argv, cwd=self.work, env=env, capture_output=True, text=True, check=False)
        seen: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {"argv": [], "env": {}}
        return Ran(done.returncode, done.stderr, seen["argv"], seen["env"])


@pytest.fixture(name="place")
def place_(tmp_path: Path) -> Place:
    tree, work = tmp_path / "a tree", tmp_path / "work"
    shutil.copytree(OVERLAY / "t5x", tree / "t5x")
    (tree / "t5x" / "train.py").touch()
    examples = tree / "t5x" / "contrib" / "gpu" / "t5" / "t5_1_1" / "examples"
    examples.mkdir(parents=True)
    for name in GINS:
        (examples / f"{name}.gin").touch()
    (work / "bin").mkdir(parents=True)
    (work / "data" / "the_pile").mkdir(parents=True)
    for name in ("recorder", "srun"):
        (work / "bin" / name).write_text(RECORDER)
        (work / "bin" / name).chmod(0o755)
    return Place(tree, work)


def bindings(ran: Ran) -> dict[str, str]:
    words = [word.removeprefix("--gin.") for word in ran.argv if word.startswith("--gin.")]
    return dict(word.split("=", 1) for word in words)


def checkpoints(place: Place, *steps: str) -> Path:
    folder = place.work / "pre"
    for step in steps:
        (folder / f"checkpoint_{step}").mkdir(parents=True)
        (folder / f"checkpoint_{step}" / "weights").write_text(step)
    return folder


def snapshot(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
