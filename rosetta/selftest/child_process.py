"""Run the child processes of the self-test, each with a log file, and end them for certain."""

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

POLL_SECONDS = 0.25
PLATFORM_VARIABLE = "ROSETTA_SELFTEST_PLATFORM"


class Stopped(Exception):  # noqa: N818 (not an error: somebody asked for it)
    """The self-test was told to stop."""


@dataclass(frozen=True)
class Context:
    """What all child processes of one self-test share.

    Attributes:
        cache: The folder of JAX's compilation cache.
        report: The function that prints a line of progress.
        stop: Set to end the self-test.
    """

    cache: Path
    report: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)


def read_platform() -> str:
    """Return the platform of the child processes, "cpu" or "cuda".

    The variable ROSETTA_SELFTEST_PLATFORM names it.

    Raises:
        UserError: The variable has another value.
    """
    platform: str = read_setting(os.environ, PLATFORM_VARIABLE)
    return platform


def make_environment(cache: Path, *, all_gpus: bool = False) -> dict[str, str]:
    """Return the environment variables of a child process.

    A child process sees the CPU, the first GPU of CUDA_VISIBLE_DEVICES, or all of these GPUs, and
    none of the caller's XLA flags. It does not fall back to the CPU: JAX refuses a platform in
    JAX_PLATFORMS that is not there.

    Args:
        cache: The folder of JAX's compilation cache.
        all_gpus: Whether the process sees more than the first GPU.

    Raises:
        UserError: ROSETTA_SELFTEST_PLATFORM is not valid.
    """
    platform = read_platform()
    devices = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if platform == "cpu":
        devices = {"CUDA_VISIBLE_DEVICES": ""}
    elif not all_gpus:
        visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        devices["CUDA_VISIBLE_DEVICES"] = visible_devices.partition(",")[0]
    return {
        "JAX_PLATFORMS": platform,
        "XLA_FLAGS": "",
        **devices,
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
    all_gpus: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> int | None:
    """Run a child process until it ends.

    Neither the child process nor its own children outlive the call.

    Args:
        context: What the child processes of the self-test share.
        argv: The command.
        log: The file to which the output is appended. Its folder is the working folder.
        env: Variables to add to those of `make_environment`, which are added to this process's.
        timeout: Seconds after which the process is killed.
        all_gpus: Whether the process sees more than the first GPU.
        tick: A function to call a few times a second.

    Returns:
        The exit status, negative for a signal; None if the process was killed after `timeout`.

    Raises:
        Stopped: `context.stop` was set.
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
                **make_environment(context.cache, all_gpus=all_gpus),
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
    """Return how a process ended, as the end of a sentence.

    Args:
        status: What `run_process` returned.
    """
    if status is None:
        return "did not end in time"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def read_log_end(log: Path, count: int = 12) -> str:
    """Return the last lines of a log; empty if there is no log."""
    if not log.exists():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-count:])
