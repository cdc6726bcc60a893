"""The command line: one verb, one module.

Exit status: 0 fine, 1 a check failed, 2 the user's input, 3 ours, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import itertools
import json
import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from builder import __version__
from builder.core import cache_folder, log
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.core.secrets import find_exposed, redact, redact_document, remember
from rosetta.core import exit_status
from rosetta.core.errors import UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.command_context import Result

# verb -> (module of the same purpose, what it does). A module has add_arguments(parser) and
# run(context, arguments) -> Result.
VERBS = {
    "build": ("build", "bake a distribution (the verb may be left out)"),
    "quickstart": (
        "quickstart",
        "bake, train and show the first distribution whose sources can be reached",
    ),
    "verify": ("verify", "train a tiny model in what was baked"),
    "test": ("test", "run this repository's checks and tests"),
    "lock": ("lock", "resolve the packages of every line into hashed locks"),
    "patches": ("patches", "check, refresh, import and list the patches"),
    "bump": ("bump", "move pins along the branches they track, and say what broke a patch"),
    "bisect": ("bisect", "find the commit, patch or package that broke something"),
    "wheel": (
        "wheel",
        (
            "compile the one wheel that nobody ships, Transformer Engine for JAX; or make the one "
            "for login nodes"
        ),
    ),
    "context": ("context", "prepare the folders that Dockerfile.t5x and Dockerfile.pax copy"),
    "publish": (
        "publish",
        "bring an image into a registry whole, signed and described, then move tags",
    ),
    "verify-published": (
        "verify_published",
        "check a published image with nothing but the public key",
    ),
    "promote": ("promote", "let latest-verified point to a digest that a suite has passed"),
    "changelog": ("changelog", "say what changed between two published images"),
    "nightly": ("nightly", "bump, build, train, publish and report, by one command"),
    "status": ("status", "make the status page and badges of the reports of nights"),
    "reproduce": ("reproduce", "build an image again from its own lock and compare"),
    "cache": ("cache", "show or shrink the builder's cache"),
    "docs": ("docs", "write the pages and Slurm files that are generated"),
}


class Parser(argparse.ArgumentParser):
    """One whose errors are like all others: one line that says what was nearly written, and a
    document where --json asked for it.
    """

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; refuse an unknown one with a suggestion."""
        found, left = self.parse_known_args(args, namespace)
        if left:
            odd = next((word.partition("=")[0] for word in left if word.startswith("-")), left[0])
            self._refuse(f"unrecognized arguments: {' '.join(left)}", odd, self._names())
        return found

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and (file is None or file is sys.stdout):
            exit_status.print_result(message.rstrip("\n"))

    def _names(self) -> list[str]:
        """Options, those of verbs below among them."""
        below = [
            each
            for action in self._actions
            if isinstance(action.choices, dict)
            for parser in action.choices.values()
            for each in parser._names()  # noqa: SLF001 (ours)
        ]
        return [
            *below,
            *(
                name
                for action in self._actions
                for name in action.option_strings
                if name.startswith("--")
            ),
        ]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            self._refuse(
                f"no {' '.join([*action.option_strings[-1:], repr(value)])}",
                str(value),
                known,
                f"one of: {', '.join(known)}; ",
            )

    def _refuse(self, what: str, word: str, known: Sequence[str], otherwise: str = "") -> NoReturn:
        near = difflib.get_close_matches(word, known, 1)
        raise UserError(
            what,
            self.prog,
            (f"did you mean {near[0]}? " if near else otherwise) + f"{self.prog} --help says more",
        )

    def error(self, message: str) -> NoReturn:
        """Raise a UserError in place of argparse's exit."""
        raise UserError(message, self.prog, f"{self.prog} --help says more")


def common() -> argparse.ArgumentParser:
    """Return a parser of the options that every command has."""
    options = Parser(add_help=False, allow_abbrev=False, prog="build.py")
    group = options.add_argument_group("common")
    group.add_argument(
        "--manifest",
        metavar="FILE",
        help="manifest to use (default: manifest.yaml beside build.py)",
    )
    group.add_argument(
        "--offline",
        action="store_true",
        help="use what is in the cache and the mirrors; no network, no DNS",
    )
    group.add_argument(
        "--mirror",
        metavar="DIR",
        action="append",
        default=[],
        help="folder with clones of the upstreams (may be repeated)",
    )
    group.add_argument(
        "--allow-protocol",
        metavar="NAME",
        action="append",
        default=[],
        choices=["file"],
        help="also take sources by file:// URL",
    )
    group.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return options


def verb_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command; load only its module, which keeps a no-op build fast."""
    module = importlib.import_module(f"builder.commands.{VERBS[name][0]}")
    verb = Parser(
        prog=f"build.py {name}", description=module.__doc__, allow_abbrev=False, parents=[common()]
    )
    module.add_arguments(verb)
    return verb


def usage() -> str:
    """Return the text that `build.py --help` prints."""
    lines = ["usage: build.py [VERB] [options]; build.py VERB --help says more", ""]
    lines += [f"  {name:<18}{text}" for name, (_, text) in VERBS.items()]
    return "\n".join(
        [
            *lines,
            "",
            (
                "  python build.py --distribution t5x|pax|pax-1.4 [--accelerator "
                "cpu|cuda12|cuda13] [--output env:DIR]"
            ),
        ]
    )


def main(argv: list[str]) -> int:
    """Run one command; returns the exit status."""
    status = _run(argv)
    try:
        sys.stderr.flush()
    except OSError:  # Python would try once more when it ends, and end with status 120
        exit_status.discard(sys.stderr)
    return status


def _run(argv: list[str]) -> int:
    verb, rest = (argv[0], argv[1:]) if argv and argv[0] in VERBS else ("build", argv)
    own = argv[: argv.index("--")] if "--" in argv else argv
    as_json = "--json" in own
    try:
        if argv in ([], ["-h"], ["--help"], ["--version"]):
            version = f"rosetta builder {__version__}"
            exit_status.print_result(version if argv == ["--version"] else usage())
            return exit_status.FINE if argv else exit_status.USER
        remember(argv, os.environ)
        if verb != "test":  # its words go to pytest
            _refuse_secrets(own)
        if argv[0] != verb and not argv[0].startswith("-"):
            _refuse_verb(argv[0])
        os.umask(0o022)  # what is built must not depend on it, and others must be able to use it
        if verb != "test":
            _refuse_empty_values(own)
        result = _call(verb, rest)
        _print_result(verb, result, as_json=as_json)
    except SystemExit as stop:  # --help, or nobody reads the output
        return int(stop.code or exit_status.FINE)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last line of defence: a report instead of a traceback
        code, failure = exit_status.explain_failure(error, verb, REMEDIES)
        return _fail(verb, failure, code, as_json=as_json)
    return exit_status.FINE if result.ok else exit_status.FAILED


def _call(verb: str, words: Sequence[str]) -> Result:
    """Run the command with the words that follow its name."""
    module = importlib.import_module(f"builder.commands.{VERBS[verb][0]}")
    pytest_words: Sequence[str] = ()
    if verb == "test" and "--" in words:
        place = words.index("--")
        words, pytest_words = words[:place], words[place + 1 :]
    shared, own = common().parse_known_args(words)
    context, arguments = _context(shared), verb_parser(verb).parse_args(own)
    if verb == "test":
        arguments.pytest = pytest_words
    # These two hold nothing of the cache, or hold it alone.
    with contextlib.nullcontext() if verb in ("cache", "test") else context.cache.used():
        result: Result = module.run(context, arguments)
    return result


def _print_result(verb: str, result: Result, *, as_json: bool) -> None:
    text = escape(redact(result.text))
    if as_json:
        document = {
            "schema": 1,
            "command": verb,
            "ok": result.ok,
            "result": redact_document(result.data),
            "error": None,
        }
        text = json.dumps(document, indent=1)
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


def _refuse_verb(word: str) -> NoReturn:
    near = difflib.get_close_matches(word, VERBS, 1)
    raise UserError(
        f"no verb {word!r}",
        "build.py",
        f"did you mean {near[0]}?"
        if near
        else f"one of: {', '.join(VERBS)}; a distribution is named by --distribution",
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


def _fail(verb: str, error: UserError, code: int, *, as_json: bool) -> int:
    """Print an error; return the exit status."""
    if as_json:
        document = {
            "schema": 1,
            "command": verb,
            "ok": False,
            "result": None,
            "error": redact_document(error.as_json()),
        }
        with contextlib.suppress(UserError, SystemExit):
            exit_status.print_result(json.dumps(document, indent=1))
    log.info(f"rosetta: {escape(str(error), keep='')}")
    return code


def _write_report(error: BaseException) -> str:
    """Write what is needed to report a fault of the builder to a file; return its name."""
    lines = traceback.format_exception(error)
    report = (
        f"rosetta builder {__version__}, {platform.platform()}, Python "
        f"{platform.python_version()}\n{''.join(lines)}"
    )
    with tempfile.NamedTemporaryFile(
        "w", prefix="rosetta-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as out:
        out.write(redact(report))
    return out.name


REMEDIES = exit_status.Remedies(
    interrupted="what was finished is kept, a rerun continues",
    machine="mend that and run again: what was finished is kept",
    module="delete the folder .venv and run again",
    report=_write_report,
)
