"""Find, run and end the commands of `rosetta`, the program inside environments and images."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from rosetta.core import exit_status, json_document, secrets
from rosetta.core.command_line import Parser, Program, ProgramParser
from rosetta.core.commands import PROGRAM
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


def _describe_version() -> str:
    """Return the text of --version: the version of rosetta, and what it was baked for."""
    from rosetta.core import lock_record

    if not lock_record.get_lock_path().exists():
        return "rosetta (not baked: from a checkout)"
    lock = lock_record.read_lock()
    parts = [lock.get("distribution"), lock.get("accelerator"), f"Python {lock.get('python')}"]
    version = lock.get("builder") or "of an unknown version"
    baked_for = ", ".join(str(part) for part in parts if part)
    return f"rosetta {version} ({baked_for})"


def build_parser(command: str | None = None, program: Program = PROGRAM) -> ProgramParser:
    """Return the parser of all commands.

    Args:
      command: The command whose module is loaded; None for all commands, "" for none.
      program: The registry.
    """
    program_parser = ProgramParser(program, _describe_version)
    commands = program_parser.add_subparsers(dest="command", metavar="COMMAND")
    common = Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    modules = {entry.module: entry for entry in program.commands if command in (None, entry.name)}
    if modules:
        from rosetta.core import log

        log.add_level_option(common)
    for entry in modules.values():
        entry.load_module().add_parsers(commands, common)
    return program_parser


def main(argv: Sequence[str] | None = None, program: Program = PROGRAM) -> int:
    """Run one command; return the exit status.

    Args:
      argv: The words after the program's name; None for those of this process.
      program: The registry.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with secrets.redacted_output(words):
        return _run_command(words, program)


def _describe_program(program: Program) -> str:
    """Return the help of the program and, in a baked environment, a command that trains."""
    from rosetta.core import first_command, lock_record

    text = build_parser("", program).format_help()
    path = lock_record.get_lock_path()
    if program is not PROGRAM or not path.exists():
        return text
    lock = lock_record.read_lock()
    command = first_command.make_first_command(
        str(lock.get("distribution")), str(lock.get("accelerator")), str(path.parent)
    )
    return f"{text}\ntrain a tiny model:\n  {command}\n" if command else text


def _check_variables(command: str) -> None:
    """Check the values of the variables that a command reads, before the command does anything.

    The doctor is not stopped, because it reports wrong values among other problems.
    """
    from rosetta.core.variables import readers, setting_values

    if command != readers.DOCTOR:
        setting_values.check_settings(os.environ, readers.ROSETTA)
        setting_values.check_settings(os.environ, command)


def _run_command(words: list[str], program: Program) -> int:
    """Run one command, print its result or its error, and return the exit status.

    Without a command, the help is printed.
    """
    end_of_options = words.index("--") if "--" in words else None
    as_json = "--json" in words[:end_of_options]
    name: str | None = None
    # SIGTERM has to end the child processes too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not words:
            exit_status.print_result(_describe_program(program).rstrip("\n"))
            return exit_status.SUCCESS
        name = program.find_called_command(words)
        args = build_parser(name, program).parse_args(words)
        from rosetta.core import log

        with log.use_level(getattr(args, "log_level", None)):
            _check_variables(name)
            result, text = program.find_command(name).load_module().RUN[name](args)
        ok = bool(result.get("ok", True))
        shown = json_document.render_document(name, ok=ok, result=result) if as_json else text
        exit_status.print_result(shown)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (any exception becomes one line and an exit status)
        status, failure = exit_status.explain_failure(error, name or program.name)
        _print_failure(name, failure, as_json=as_json)
        return status
    return exit_status.SUCCESS if ok else exit_status.FAILED


def _print_failure(command: str | None, failure: UserError, *, as_json: bool) -> None:
    """Print an error as one line on stderr, and for --json as a document on stdout."""
    line = str(failure)
    prefix = "" if line.startswith(("rosetta:", "rosetta ")) else "rosetta: "
    print(f"{prefix}{line}", file=sys.stderr)
    if as_json:
        document = json_document.render_document(command, ok=False, error=failure.as_json())
        with contextlib.suppress(UserError, SystemExit):
            exit_status.print_result(document)
