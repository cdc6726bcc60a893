"""By a Python 3.9 that has PyYAML and nothing else, as login nodes have it."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


@pytest.fixture
def python() -> str:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    there = [shutil.which("python3.9"), *map(str, home.glob(".pyenv/versions/3.9.*/bin/python3.9"))]
    for found in filter(None, there):
        if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(found)
    pytest.skip("NOT CHECKED here: there is no Python 3.9")


@pytest.mark.parametrize(
    "words",
    [
        ["t5x-large", "--accelerator", "h100"],
        ["gpt-5b", "combine=layers", "ROSETTA_WITH=deterministic"],
        ["llama-70b", "USE_LORA=1"],
        [],
    ],
)
def test_explain(python: str, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "yaml").symlink_to(
        Path(yaml.__file__).parent
    )  # its part in Python alone: what is compiled is of another version
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ROSETTA_SITE": "",
    }
    done = subprocess.run(
        [python, "-m", "rosetta.presets", *words, "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)["result"]
    assert found["run"]["nodes"] if words else found["presets"]
