"""Child processes of the selftest: their log in a file, their end certain."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rosetta.core import home_folder
from rosetta.core.variables.setting_values import read_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

POLL_SECONDS = 0.25  # seconds
PLATFORM_VARIABLE = "ROSETTA_SELFTEST_PLATFORM"


class Stopped(Exception):  # noqa: N818 (no error: someone asked for it)
    """The selftest was told to stop."""


@dataclass(frozen=True)
class Context:
    """What all children of one selftest share: the compilation cache, the stop sign, where progress
    is told.
    """

    cache: Path
    report: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)


def read_platform() -> str:
    """Return what the children run on, as ROSETTA_SELFTEST_PLATFORM says: "cpu" or "cuda"."""
    name: str = read_setting(os.environ, PLATFORM_VARIABLE)
    return name


def make_environment(cache: Path) -> dict[str, str]:
    """Return what every child gets: the CPU or the first GPU alone, no flags of the caller's, one
    compilation cache for all.

    JAX stops where JAX_PLATFORMS names what is not there: nothing falls back to the CPU.
    """
    own = (
        {"CUDA_VISIBLE_DEVICES": ""}
        if read_platform() == "cpu"
        else {"CUDA_VISIBLE_DEVICES": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    )
    return {
        "JAX_PLATFORMS": read_platform(),
        "XLA_FLAGS": "",
        **own,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def run_process(
    context: Context,
    argv: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str],
    timeout: float,
    tick: Callable[[], None] = lambda: None,
) -> int | None:
    """Run `argv` in `log`'s folder; return its exit status (negative: a signal), None where it took
    longer than `timeout` s.

    `env` is added to `environment()`, that to ours. `tick` is called a few times a second.
    Whatever happens here, the child and its children do not outlive the call. Raises Stopped when
    `context.stop` is set.
    """
    if context.stop.is_set():
        raise Stopped
    with open(log, "ab") as out:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                **home_folder.get_child_variables(),
                **make_environment(context.cache),
                **env,
            },
            cwd=log.parent,
            start_new_session=True,
        )
    deadline = time.monotonic() + timeout
    try:
        while child.poll() is None and time.monotonic() < deadline:
            if context.stop.is_set():
                raise Stopped
            tick()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_SECONDS)
        status = child.poll()
        tick()
        return status
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def describe_exit(status: int | None) -> str:
    """Return how a process ended, in words."""
    if status is None:
        return "did not end in time"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def read_log_end(log: Path, lines: int = 12) -> str:
    """Return the last lines of a log."""
    text = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(text[-lines:])
