from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import required_modules

required_modules.need_modules("absl")
ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
from absl import app, flags, logging
from rosetta.health import absl_verbosity
app.run(
    lambda _: print(logging.get_verbosity()),
    flags_parser=absl_verbosity.make_flag_parser(flags.FLAGS, flags.FLAGS),
)
"""


def run_program(level: str | None, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "ROSETTA_LOG_LEVEL"}
    env |= {"PYTHONPATH": str(ROOT)} | ({} if level is None else {"ROSETTA_LOG_LEVEL": level})
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("level", "words", "verbosity"),
    [
        (None, (), 0),
        (None, ("--verbosity=-1",), -1),
        ("debug", (), 1),
        ("info", (), 0),
        ("warning", (), -1),
        ("error", (), -2),
        ("error", ("--verbosity=1",), 1),
    ],
)
def test_upstreams_level_changes_only_if_a_level_is_set(
    level: str | None, words: tuple[str, ...], verbosity: int
) -> None:
    assert run_program(level, *words).stdout == f"{verbosity}\n"


def test_a_level_that_is_not_valid_is_refused() -> None:
    done = run_program("loud")
    assert done.returncode
    assert "ROSETTA_LOG_LEVEL: 'loud'" in done.stderr
