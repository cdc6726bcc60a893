"""Execute a checked command, in place of this process or before another command."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta.core import exit_status, home_folder, kill_notice, log, parent_death
from rosetta.core.errors import MISSING, UserError
from rosetta.core.secrets import Mask
from rosetta.launch import crash_report, process_binding
from rosetta.launch.rendering import Rendering

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

CACHE_VARIABLES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_COMPILATION_CACHE",
)  # set, empty included, they are the user's own choice
# Variables that rosetta may set for a command, none of which is a secret. A dry run shows them.
SHOWN_VARIABLES = (
    "XLA_FLAGS",
    "JAX_PLATFORMS",
    "PYTHONPATH",
    "CUDA_VISIBLE_DEVICES",
    CACHE_VARIABLES[0],
    "JAX_LOCAL_DEVICE_IDS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "JAX_ENABLE_PGLE",
    "JAX_COMPILATION_CACHE_EXPECT_PGLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "TFDS_DATA_DIR",
    "VOCAB_PATH",
    "DATA",
    "EVAL_DATA",
    "ENABLE_TE",
    "ENABLE_FP8",
)
_REPORT_SECONDS = 2.0  # how long the first process of a container waits for the report of a crash
_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class WarningLine(str):
    """A line to print as a warning, among lines that are notes."""

    __slots__ = ()


@dataclass(frozen=True)
class Command:
    """A command to execute.

    Attributes:
      argv: the command line.
      env: the whole environment.
      log: the file for the output. If it is None, the command writes to the stdout and stderr of
        this process.
      lines: notes and warnings to print before the command starts.
      before_start: called with no arguments just before the command takes the place of this
        process. T5X uses this to write down how the run started.
      refusal: why the command cannot run on this machine; None if it can. A dry run still shows
        the command.
    """

    argv: list[str]
    env: dict[str, str]
    log: Path | None
    lines: tuple[str, ...]
    before_start: Callable[[], object] | None = None
    refusal: UserError | None = None


def run_checks(
    *checks: Callable[[], tuple[str, ...]], refusal: UserError | None = None
) -> tuple[tuple[str, ...], UserError | None]:
    """Run checks of this machine.

    An error does not end them: a dry run shows it as a line, because the run itself may be for
    another machine.

    Args:
      *checks: each returns lines, or raises a UserError.
      refusal: an error that is known before the checks run.

    Returns:
      All lines and errors as warnings, and the first error.
    """
    lines: tuple[str, ...] = (str(refusal),) if refusal else ()
    for check in checks:
        try:
            lines += check()
        except UserError as error:
            lines = (*lines, str(error))
            refusal = refusal or error
    return tuple(map(WarningLine, lines)), refusal


def find_python(environment: Mapping[str, str]) -> str:
    """Return the Python that runs a trainer: the one that PYTHON names, else ours.

    Raises:
      UserError: PYTHON does not name a program.
    """
    python = environment.get("PYTHON") or sys.executable
    if not shutil.which(python, path=environment.get("PATH")):
        raise UserError(
            "not a program",
            f"PYTHON={python}",
            "name the Python of a baked environment, or unset it",
            kind=MISSING,
            value=python,
        )
    return python


def compilation_cache_variables(environment: Mapping[str, str], processes: int) -> dict[str, str]:
    """Return the variable that makes JAX keep compiled programs for the next start.

    There is none if the user has set a cache, if no folder can be used, or if the run has several
    processes. JAX shares the tuning of a program out among all processes, and one that finds the
    program in its cache would not take part.
    """
    home = environment.get("ROSETTA_HOME")
    if not home and home_folder.is_home_usable(environment):
        home = f"{environment['HOME']}/.rosetta"
    is_set_by_user = any(name in environment for name in CACHE_VARIABLES)
    if not home or processes != 1 or is_set_by_user:
        return {}
    return {CACHE_VARIABLES[0]: f"{home}/compiled"}


def execute(command: Command) -> NoReturn:
    """Execute a command in place of this process.

    Its exit status and the signals sent to it are then its own. With a log file, the lines
    of rosetta.core.log stay on our stderr, and the rest of the output goes to the file.

    Raises:
      UserError: the command cannot run on this machine.
    """
    if command.refusal:
        raise command.refusal
    if command.log and os.getpid() == 1:
        _run_in_container(command)
    env = dict(command.env)
    mask = Mask(env)
    command_line = "+ " + shlex.join(mask.mask_text(word) for word in command.argv)
    for line in filter(None, [*command.lines, process_binding.bind_process(env)]):
        write = log.warn if isinstance(line, WarningLine) else log.info
        write(mask.mask_text(line))
    if not command.log:
        log.info(command_line, prefix=False)
    if command.before_start:
        command.before_start()
    if command.log:
        terminal = _redirect_output(command.log, env)
        log.info(f"\n{_describe_time()}\n{command_line}", prefix=False)
        crash_report.start_reporter(command.log, terminal, env)
    os.execvpe(command.argv[0], command.argv, env)  # noqa: S606


def _describe_time() -> str:
    """Return the time as the heading of a run in a log file."""
    return time.strftime("== %Y-%m-%d %H:%M:%S %z")


def _redirect_output(path: Path, env: dict[str, str]) -> int:
    """Send our output to a log file; return the descriptor of the terminal, which `env` names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    terminal = os.dup(2)
    os.set_inheritable(terminal, True)
    env[log.TERMINAL_VARIABLE] = str(terminal)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    return terminal


def _run_in_container(command: Command) -> NoReturn:
    """Run a command as the child of this first process of a container; end with its status.

    All processes of a container end with its first one. As a child, the command leaves the reporter
    of crashes the time to show why it ended.
    """
    code = _run_child(command)
    deadline = time.monotonic() + _REPORT_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
    sys.exit(code)


def run_in_order(commands: Sequence[Command]) -> NoReturn:
    """Run commands in order; the last one takes the place of this process.

    If one fails, this process ends with its status. Signals that would end this process go to the
    running command, and the command ends if this process is killed.

    Raises:
      UserError: the first command cannot run on this machine.
    """
    *earlier, last = commands
    if commands[0].refusal:
        raise commands[0].refusal
    for command in earlier:
        if code := _run_child(command):
            sys.exit(code)
    execute(last)


def _run_child(command: Command) -> int:
    """Run a command in a child process; return its exit status as a shell reports it."""
    sys.stdout.flush()
    sys.stderr.flush()
    kills = kill_notice.count_oom_kills()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        try:
            parent_death.die_with_parent(parent)
            execute(command)
        except OSError as error:
            log.error(f"{error.filename}: {error.strerror}")
        os._exit(exit_status.USER_ERROR)
    earlier_handlers = {
        number: signal.signal(number, lambda received, _: os.kill(child, received))
        for number in _FORWARDED_SIGNALS
    }
    try:
        _, status = os.waitpid(child, 0)
    finally:
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)
    code = os.waitstatus_to_exitcode(status)
    code = code if code >= 0 else 128 - code
    if line := kill_notice.describe_kill("the trainer", code, kills):
        log.warn(line)
    return code


def convert_to_json(command: Command) -> dict[str, Any]:
    """Return a command as JSON, without the variables that rosetta does not set.

    They may hold secrets.
    """
    document = {
        "argv": command.argv,
        "env": {name: command.env[name] for name in SHOWN_VARIABLES if name in command.env},
        "log": str(command.log) if command.log else None,
        "messages": list(command.lines),
    }
    masked: dict[str, Any] = Mask(command.env).mask_document(document)
    return masked


def format_command(command: Command) -> str:
    """Return a command as a dry run prints it: its lines, then the command as a shell takes it.

    It has the variables that convert_to_json returns.
    """
    document = convert_to_json(command)
    rendering = Rendering(document["argv"], document["env"])
    return "\n".join([*document["messages"], rendering.format_command()])
