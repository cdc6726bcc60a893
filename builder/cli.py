"""The command line of build.py: parse it, run the command and end with an exit status."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.commands.registry import PROGRAM
from builder.core import cache_folder, log
from builder.core.secrets import find_exposed, redact, redact_document, remember
from rosetta.core import exit_status, json_document
from rosetta.core.command_line import Parser, ProgramParser
from rosetta.core.errors import UserError
from rosetta.core.log import add_level_option
from rosetta.core.printable_text import escape
from rosetta.core.variables import setting_values

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from builder.core.command_context import Context, Result
    from rosetta.core.command_line import Command


def make_shared_parser() -> Parser:
    """Return a parser of the options that every command has."""
    options = Parser(add_help=False, prog=PROGRAM.name)
    group = options.add_argument_group("options of every command")
    group.add_argument(
        "--manifest",
        metavar="FILE",
        help="the manifest (default: manifest.yaml beside build.py)",
    )
    group.add_argument(
        "--offline",
        action="store_true",
        help="use only the cache and the mirrors, and no network",
    )
    group.add_argument(
        "--mirror",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder with clones of the upstream repositories (may be repeated)",
    )
    group.add_argument(
        "--allow-protocol",
        metavar="NAME",
        action="append",
        default=[],
        choices=["file"],
        help="also take sources from file:// URLs",
    )
    group.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    add_level_option(group)
    return options


def make_parser() -> ProgramParser:
    """Return the parser of all commands; this loads the modules of all commands."""
    parser = _make_program_parser()
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in PROGRAM.commands:
        _add_command(commands, command)
    return parser


def make_command_parser(name: str) -> Parser:
    """Return the parser of one command.

    This loads only the module of the command, so that a build without changes stays fast.
    """
    return _add_command(_make_program_parser().add_subparsers(), PROGRAM.find_command(name))


def _make_program_parser() -> ProgramParser:
    return ProgramParser(PROGRAM, lambda: f"rosetta builder {__version__}")


def _add_command(commands: Any, command: Command) -> Parser:
    """Add the parser of one command to the subparsers of the program."""
    parser: Parser = commands.add_parser(command.name, parents=[make_shared_parser()])
    command.load_module().add_arguments(parser)
    return parser


def main(argv: list[str]) -> int:
    """Run one command, print its result and return the exit status."""
    status = _run_and_print(argv)
    try:
        sys.stderr.flush()
    except OSError:  # Python would try once more when it ends, and end with status 120
        exit_status.discard_output(sys.stderr)
    return status


def _run_and_print(argv: list[str]) -> int:
    # The words after -- go to pytest.
    words = argv[: argv.index("--")] if "--" in argv else argv
    as_json = "--json" in words
    name = ""
    try:
        remember(argv, os.environ)
        if words[:1] != ["test"]:  # a TEST may hold anything that pytest takes
            _refuse_secrets(words)
            _refuse_empty_values(words)
        name = PROGRAM.find_called_command(argv)
        if not name:
            _make_program_parser().parse_args(argv or ["--help"])
        os.umask(0o022)  # a build must not depend on the umask, and other users must read it
        result = _run_command(name, argv[1:] if argv[0] == name else argv)
        _print_result(name, result, as_json=as_json)
    except SystemExit as stop:  # --help, or nobody reads the output
        return int(stop.code or exit_status.SUCCESS) if argv else exit_status.USER_ERROR
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - print a report instead of a traceback
        code, failure = exit_status.explain_failure(error, name, REMEDIES)
        return _print_error(name, failure, code, as_json=as_json)
    return exit_status.SUCCESS if result.ok else exit_status.FAILED


def _run_command(name: str, words: Sequence[str]) -> Result:
    """Run a command with the words that follow its name."""
    pytest_words: Sequence[str] = ()
    if name == "test" and "--" in words:
        separator = words.index("--")
        words, pytest_words = words[:separator], words[separator + 1 :]
    shared, command_words = make_shared_parser().split_known(words)
    context = _make_context(shared)
    arguments = make_command_parser(name).parse_args(command_words)
    if name == "test":
        arguments.pytest = pytest_words
    setting_values.check_settings(os.environ, PROGRAM.name)
    # `test` does not use the cache, and `cache` takes the cache's lock for itself.
    needs_cache = name not in ("cache", "test")
    cache_use = context.cache.in_use() if needs_cache else contextlib.nullcontext()
    with log.use_level(getattr(shared, "log_level", None)), cache_use:
        result: Result = PROGRAM.find_command(name).load_module().run(context, arguments)
    return result


def _print_result(name: str, result: Result, *, as_json: bool) -> None:
    """Print the result of a command for people, or with --json as a document."""
    text = escape(redact(result.text))
    if as_json:
        data = redact_document(result.data)
        text = json_document.render_document(name, ok=result.ok, result=data, only_ascii=True)
    if text:
        exit_status.print_result(text)


def _refuse_secrets(words: Sequence[str]) -> None:
    """Raise UserError if a word of the command line holds a secret."""
    if secret := find_exposed(words):
        raise UserError(
            f"holds {secret}, and every user of this machine can read the command line",
            "build.py",
            (
                "leave it out: give --key a file or env:NAME, and log in to registries with docker "
                "login"
            ),
        )


# The nightly workflow fills --earlier from a setting that a repository need not have.
_MAY_BE_EMPTY = ("--earlier",)


def _refuse_empty_values(words: Sequence[str]) -> None:
    """Raise UserError for an option with an empty value, as an unset shell variable gives.

    The value may be part of the word (--option=) or the next word.
    """
    options = [word for word in words if word.startswith("--")]
    joined = [option[:-1] for option in options if option.find("=") == len(option) - 1]
    separate = [
        word for word, value in itertools.pairwise(words) if word.startswith("--") and not value
    ]
    for option in (*joined, *separate):
        if option not in _MAY_BE_EMPTY:
            raise UserError("its value is empty", option, "give a value, or leave the option out")


def _make_context(arguments: argparse.Namespace) -> Context:
    """Return the checkout, manifest, cache and mirrors that the shared options describe."""
    from builder.core.cache import Cache
    from builder.core.command_context import Context

    root = Path(__file__).resolve().parents[1]
    manifest = Path(arguments.manifest) if arguments.manifest else root / "manifest.yaml"
    mirrors = tuple(Path(folder).absolute() for folder in arguments.mirror)
    for folder in mirrors:
        if not folder.is_dir():
            raise UserError(
                "no such folder", f"--mirror {folder}", "give the folder that holds the clones"
            )
    protocols = ("https", "ssh", *arguments.allow_protocol)
    return Context(
        root,
        manifest,
        Cache(cache_folder.default_root()),
        arguments.offline,
        mirrors,
        protocols,
        arguments.json,
    )


def _print_error(name: str, error: UserError, code: int, *, as_json: bool) -> int:
    """Print an error, with --json also as a document, and return the exit status."""
    if as_json:
        shown = redact_document(error.as_json())
        with contextlib.suppress(UserError, SystemExit):
            exit_status.print_result(
                json_document.render_document(name, ok=False, error=shown, only_ascii=True)
            )
    log.error(escape(str(error), keep=""))
    return code


def _write_report(error: BaseException) -> str:
    """Write the traceback of a fault of the builder to a new file and return the file's name.

    With ROSETTA_DEBUG=1 the traceback is also printed.
    """
    trace = "".join(traceback.format_exception(error))
    if exit_status.wants_traceback():
        log.error(trace.rstrip())
    report = (
        f"rosetta builder {__version__}, {platform.platform()}, Python "
        f"{platform.python_version()}\n{trace}"
    )
    with tempfile.NamedTemporaryFile(
        "w", prefix="rosetta-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.write(redact(report))
    return file.name


REMEDIES = exit_status.Remedies(
    interrupted="finished steps are kept; run the command again to continue",
    machine="fix the problem and run again: finished steps are kept",
    module="delete the folder .venv and run again",
    report=_write_report,
)
