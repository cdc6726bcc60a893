"""Run an entry point of rosetta in this process, up to the program that the entry point would become.

An entry point is a function that returns an exit status, for example `rosetta.t5x.launch.main`.
It sees the same folder, environment, stdout and stderr as in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn
from unittest import mock

from rosetta.core import log
from rosetta.core.errors import UserError
from rosetta.launch import crash_report, execution
from rosetta.t5x import warmup
from tests.support import errors

OUTPUT = "the trainer's words"


class BecameProgramError(BaseException):
    """Stands for the end of a process that becomes a program. rosetta catches no BaseException."""


@dataclass(frozen=True)
class Program:
    """A program that would run: its arguments, without its name, and its environment."""

    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class Ended:
    """How an entry point ended, the programs that it would have run, and the errors that it reported,
    in their order.
    """

    status: int
    out: str
    err: str
    programs: tuple[Program, ...]
    errors: tuple[UserError, ...] = ()


def run_in_process(entry: Callable[[], int], folder: Path, environment: Mapping[str, str]) -> Ended:
    """Run an entry point in a folder, with this environment and no other variables.

    A program that would run prints one line and ends with the status that the variable RC names.
    """
    programs = list[Program]()

    def become(file: str, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
        del file
        programs.append(Program(list(argv[1:]), dict(env)))
        os.write(1, f"{OUTPUT}\n".encode())
        if terminal := env.get(log.TERMINAL_VARIABLE):
            os.close(int(terminal))
        raise BecameProgramError

    def run_child(command: execution.Command) -> int:
        """Do what `run` does in a child process."""
        with _kept_descriptors():
            return finish(lambda: execution.execute(command))

    def finish(call: Callable[[], int]) -> int:
        try:
            return call()
        except BecameProgramError:
            return int(programs[-1].env.get("RC", "0"))
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0

    warmup.default_steps.cache_clear()  # a new process would not remember what the last run read
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
        _enter_folder(folder, environment),
        _capture_output(out, err),
        mock.patch.object(os, "execvpe", become),
        mock.patch.object(execution, "_run_child", run_child),
        mock.patch.object(crash_report, "start_reporter", return_value=None),
        errors.collect_errors() as reported,
    ):
        status = finish(entry)
        return Ended(status, _read_text(out), _read_text(err), tuple(programs), tuple(reported))


@contextlib.contextmanager
def _enter_folder(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Set folder, environment, module path and the handler of SIGTERM, and restore them."""
    handler = signal.getsignal(signal.SIGTERM)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    imported = sys.modules.pop("t5x", None)  # another t5x than that of PYTHONPATH
    try:
        with (
            contextlib.chdir(folder),
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.object(sys, "path", [*paths, *sys.path]),
        ):
            yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        if imported:
            sys.modules["t5x"] = imported


@contextlib.contextmanager
def _capture_output(out: IO[str], err: IO[str]) -> Iterator[None]:
    """Send stdout and stderr to these files: the streams, and the descriptors 1 and 2."""
    with _kept_descriptors():
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        with (
            open(1, "w", encoding="utf-8", closefd=False) as stdout,
            open(2, "w", encoding="utf-8", closefd=False, errors="backslashreplace") as stderr,
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            yield


@contextlib.contextmanager
def _kept_descriptors() -> Iterator[None]:
    """Restore stdout and stderr, which a program's log may replace."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _read_text(file: IO[str]) -> str:
    sys.stdout.flush()
    sys.stderr.flush()
    file.seek(0)
    return file.read()
