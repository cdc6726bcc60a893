"""From a command line that was checked to its process, in place of ours or before it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta.core import exit_status, home_folder, kill_notice, log, parent_death
from rosetta.core.errors import MISSING, UserError
from rosetta.core.secrets import Mask
from rosetta.launch import process_binding
from rosetta.launch.rendering import Rendering

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

CACHE_VARIABLES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_COMPILATION_CACHE",
)  # set, empty included, they are the user's own choice
# What of the environment is decided on the way from settings to command line, none of which is a
# secret.
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
_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class WarningLine(str):
    """A line that warns, among lines that are notes."""

    __slots__ = ()


@dataclass(frozen=True)
class Command:
    """What is executed, where its output goes (None: where ours does), what is said before, what is
    done last, before we are it, and why it cannot start here.
    """

    argv: list[str]
    env: dict[str, str]
    log: Path | None
    lines: tuple[str, ...]
    begin: Callable[[], object] | None = None
    refused: UserError | None = None


def run_checks(
    *checks: Callable[[], tuple[str, ...]], refused: UserError | None = None
) -> tuple[tuple[str, ...], UserError | None]:
    """Return what checks of this machine warn of, and the first refusal, which is a line, too: a
    dry run may be on another machine than the run.

    Args:
      checks: each returns lines, or raises a refusal.
      refused: a refusal that is known before.
    """
    lines: tuple[str, ...] = (str(refused),) if refused else ()
    for check in checks:
        try:
            lines += check()
        except UserError as error:
            lines, refused = (*lines, str(error)), refused or error
    return tuple(map(WarningLine, lines)), refused


def find_python(environment: Mapping[str, str]) -> str:
    """Return the interpreter that runs what is started: PYTHON, else ours.

    Raises:
      UserError: PYTHON names no program.
    """
    found = environment.get("PYTHON") or sys.executable
    if not shutil.which(found, path=environment.get("PATH")):
        raise UserError(
            "it is no program",
            f"PYTHON={found}",
            "name the Python of a baked environment, or unset it",
            kind=MISSING,
            value=found,
        )
    return found


def compilation_cache_variables(environment: Mapping[str, str], processes: int) -> dict[str, str]:
    """Return the variable that makes JAX keep what is compiled for the next start; nothing where
    the user has chosen, or nothing can be kept.

    Not with several processes: one that finds its program would not take part in the tuning that
    the others, which do not, share out among all.
    """
    ours = environment.get("ROSETTA_HOME") or (
        f"{environment['HOME']}/.rosetta" if home_folder.is_home_usable(environment) else None
    )
    return (
        {CACHE_VARIABLES[0]: f"{ours}/compiled"}
        if ours and processes == 1 and not any(name in environment for name in CACHE_VARIABLES)
        else {}
    )


def execute(wanted: Command) -> NoReturn:
    """Become the trainer, so that its exit status and the signals sent to it are its own.

    Progress stays on our stderr; its log goes to the file.
    """
    if wanted.refused:
        raise wanted.refused
    env = dict(wanted.env)
    mask = Mask(env)
    command = "+ " + shlex.join(mask.mask_text(word) for word in wanted.argv)
    for line in filter(None, [*wanted.lines, process_binding.bind_process(env)]):
        write = log.warn if isinstance(line, WarningLine) else log.info
        write(mask.mask_text(line))
    log.info(command, prefix=False)
    if wanted.log:
        wanted.log.parent.mkdir(parents=True, exist_ok=True)
        terminal = os.dup(2)
        os.set_inheritable(terminal, True)
        env[log.TERMINAL_VARIABLE] = str(terminal)
        file = os.open(wanted.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        log.info(command, prefix=False)
    if wanted.begin:
        wanted.begin()
    os.execvpe(wanted.argv[0], wanted.argv, env)  # noqa: S606


def run_in_order(wanted: Sequence[Command]) -> NoReturn:
    """Run these in order, and become the last. One that fails ends it, with its status.

    Signals that end us go to what runs then, and what runs ends with us.
    """
    *first, last = wanted
    if wanted[0].refused:
        raise wanted[0].refused
    for each in first:
        if code := _run_child(each):
            sys.exit(code)
    execute(last)


def _run_child(wanted: Command) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    kills = kill_notice.count_oom_kills()
    ours, child = os.getpid(), os.fork()
    if child == 0:
        try:
            parent_death.die_with_parent(ours)
            execute(wanted)
        except OSError as error:
            log.error(f"{error.filename}: {error.strerror}")
        os._exit(exit_status.USER_ERROR)
    before = {
        number: signal.signal(number, lambda given, _: os.kill(child, given))
        for number in _FORWARDED_SIGNALS
    }
    try:
        _, ended = os.waitpid(child, 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    code = os.waitstatus_to_exitcode(ended)
    code = code if code >= 0 else 128 - code
    if line := kill_notice.describe_kill("the trainer", code, kills):
        log.warn(line)
    return code


def convert_to_json(wanted: Command) -> dict[str, Any]:
    """Return a command as JSON: what of the environment was decided here, and not the rest of it,
    which may hold secrets.
    """
    found = {
        "argv": wanted.argv,
        "env": {name: wanted.env[name] for name in SHOWN_VARIABLES if name in wanted.env},
        "log": str(wanted.log) if wanted.log else None,
        "said": list(wanted.lines),
    }
    masked: dict[str, Any] = Mask(wanted.env).mask_document(found)
    return masked


def format_command(wanted: Command) -> str:
    """Return a command as a dry run says it: what is said before it, then it and its environment as
    a shell would be told; see shown.
    """
    found = convert_to_json(wanted)
    return "\n".join([*found["said"], Rendering(found["argv"], found["env"]).text()])
