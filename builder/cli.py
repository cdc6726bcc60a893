"""The command line of build.py: how a command is found, run and ended."""

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
from rosetta.core.variables import reading

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from builder.core.command_context import Context, Result
    from rosetta.core.command_line import Command


def common() -> Parser:
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


def parser() -> ProgramParser:
    """Return the grammar of all commands; this loads all of their modules."""
    top = _program_parser()
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for command in PROGRAM.commands:
        _add_command(commands, command)
    return top


def command_parser(name: str) -> Parser:
    """Return the parser of one command; this loads only its module, which keeps a build without
    changes fast.
    """
    return _add_command(_program_parser().add_subparsers(), PROGRAM.command(name))


def _program_parser() -> ProgramParser:
    return ProgramParser(PROGRAM, lambda: f"rosetta builder {__version__}")


def _add_command(commands: Any, command: Command) -> Parser:
    parser: Parser = commands.add_parser(command.name, parents=[common()])
    command.load().add_arguments(parser)
    return parser


def main(argv: list[str]) -> int:
    """Run one command; returns the exit status."""
    status = _run(argv)
    try:
        sys.stderr.flush()
    except OSError:  # Python would try once more when it ends, and end with status 120
        exit_status.discard(sys.stderr)
    return status


def _run(argv: list[str]) -> int:
    own = argv[: argv.index("--")] if "--" in argv else argv
    as_json = "--json" in own
    name = ""
    try:
        remember(argv, os.environ)
        if own[:1] != ["test"]:  # its words go to pytest
            _refuse_secrets(own)
            _refuse_empty_values(own)
        name = PROGRAM.select(argv)
        if not name:
            _program_parser().parse_args(argv or ["--help"])
        os.umask(0o022)  # what is built must not depend on it, and others must be able to use it
        result = _call(name, argv[1:] if argv[0] == name else argv)
        _print_result(name, result, as_json=as_json)
    except SystemExit as stop:  # --help, or nobody reads the output
        return int(stop.code or exit_status.FINE) if argv else exit_status.USER
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last line of defence: a report instead of a traceback
        code, failure = exit_status.explain_failure(error, name, REMEDIES)
        return _fail(name, failure, code, as_json=as_json)
    return exit_status.FINE if result.ok else exit_status.FAILED


def _call(name: str, words: Sequence[str]) -> Result:
    """Run the command with the words that follow its name."""
    pytest_words: Sequence[str] = ()
    if name == "test" and "--" in words:
        place = words.index("--")
        words, pytest_words = words[:place], words[place + 1 :]
    shared, own = common().split_known(words)
    context, arguments = _context(shared), command_parser(name).parse_args(own)
    if name == "test":
        arguments.pytest = pytest_words
    reading.check_settings(os.environ, PROGRAM.name)
    # These two hold nothing of the cache, or hold it alone.
    use = contextlib.nullcontext() if name in ("cache", "test") else context.cache.in_use()
    with log.use_level(getattr(shared, "log_level", None)), use:
        result: Result = PROGRAM.command(name).load().run(context, arguments)
    return result


def _print_result(name: str, result: Result, *, as_json: bool) -> None:
    text = escape(redact(result.text))
    if as_json:
        data = redact_document(result.data)
        text = json_document.render(name, ok=result.ok, result=data, only_ascii=True)
    if text:
        exit_status.print_result(text)


def _refuse_secrets(words: Sequence[str]) -> None:
    """Raise UserError if a word of the command line holds a secret."""
    if secret := find_exposed(words):
        raise UserError(
            f"holds {secret}, which everyone on this machine can read",
            "build.py",
            (
                "leave it out: give --key a file or env:NAME, and log in to registries with docker "
                "login"
            ),
        )


_MAY_BE_EMPTY = (
    "--earlier",
)  # the nightly workflow gives it a setting that a repository need not have


def _refuse_empty_values(own: Sequence[str]) -> None:
    """Raise UserError for an option whose value is empty, as from a variable of the shell that is
    not set.
    """
    joined = [
        word[:-1] for word in own if word.startswith("--") and word.find("=") == len(word) - 1
    ]
    apart = [
        option for option, value in itertools.pairwise(own) if option.startswith("--") and not value
    ]
    for option in (*joined, *apart):
        if option not in _MAY_BE_EMPTY:
            raise UserError("its value is empty", option, "give a value, or leave the option out")


def _context(arguments: argparse.Namespace) -> Context:
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


def _fail(name: str, error: UserError, code: int, *, as_json: bool) -> int:
    """Print an error; return the exit status."""
    if as_json:
        shown = redact_document(error.as_json())
        with contextlib.suppress(UserError, SystemExit):
            exit_status.print_result(
                json_document.render(name, ok=False, error=shown, only_ascii=True)
            )
    log.error(escape(str(error), keep=""))
    return code


def _write_report(error: BaseException) -> str:
    """Write what is needed to report a fault of the builder to a file; return its name.

    ROSETTA_DEBUG=1 also prints the traceback.
    """
    lines = "".join(traceback.format_exception(error))
    if exit_status.wants_traceback():
        log.error(lines.rstrip())
    report = (
        f"rosetta builder {__version__}, {platform.platform()}, Python "
        f"{platform.python_version()}\n{lines}"
    )
    with tempfile.NamedTemporaryFile(
        "w", prefix="rosetta-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as out:
        out.write(redact(report))
    return out.name


REMEDIES = exit_status.Remedies(
    interrupted="finished steps are kept; run the command again to continue",
    machine="mend that and run again: what was finished is kept",
    module="delete the folder .venv and run again",
    report=_write_report,
)
