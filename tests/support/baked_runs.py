"""Runs of rosetta's commands in a baked environment, by whose Python the tests are run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_LIMIT = 1800  # seconds


def start(
    folder: Path, *words: object, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command of rosetta in a folder, with environment variables of its own."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "JAX_PLATFORMS": "cpu",
        "ROSETTA_DOCTOR": "0",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **(variables or {}),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "rosetta", *map(str, words)],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(
    folder: Path,
    *words: object,
    status: int = 0,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a command of rosetta in a folder; return its output."""
    process = start(folder, *words, variables=variables)
    shown, _ = process.communicate(timeout=_LIMIT)
    assert process.returncode == status, shown[-4000:]
    return shown


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a run's progress.jsonl."""
    file = folder / "progress.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def read_losses(folder: Path) -> dict[int, float]:
    """Return the training losses of a run by step."""
    return {report["step"]: report["loss"] for report in read_reports(folder) if "loss" in report}


def kill_when(process: subprocess.Popen[str], is_time: Callable[[], object]) -> None:
    """Kill a run without warning as soon as a condition is true."""
    limit = time.monotonic() + _LIMIT
    while not is_time():
        assert process.poll() is None, process.communicate()[0][-4000:]
        assert time.monotonic() < limit
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
