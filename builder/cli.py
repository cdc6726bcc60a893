"""The command line: one verb, one module.

Exit status: 0 fine, 1 a check failed, 2 the user's input, 3 ours, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import itertools
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from builder import __version__
from builder.core import cache_folder, log
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.core.secrets import find_exposed, redact, redact_document, remember
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
        if (
            message
            and (file is None or file is sys.stdout)
            and (lost := _print(message.rstrip("\n")))
        ):
            raise lost

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


# What the user's machine and paths bring about, and not we.
_MACHINE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EBUSY,
    errno.ENOTEMPTY,
    errno.EMLINK,
}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


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
        _discard(sys.stderr)
    return status


def _run(argv: list[str]) -> int:
    verb, rest = (argv[0], argv[1:]) if argv and argv[0] in VERBS else ("build", argv)
    as_json = "--json" in (argv[: argv.index("--")] if "--" in argv else argv)
    if argv in ([], ["-h"], ["--help"], ["--version"]):
        if lost := _print(f"rosetta builder {__version__}" if argv == ["--version"] else usage()):
            return _fail("", lost, as_json=False)
        return 0 if argv else 2
    remember(argv, os.environ)
    own = argv[: argv.index("--")] if "--" in argv else argv
    if verb != "test" and (secret := find_exposed(own)):
        do = (
            "leave it out: give --key a file or env:NAME, and log in to registries with docker "
            "login"
        )
        return _fail(
            verb,
            UserError(f"holds {secret}, which everyone on this machine can read", "build.py", do),
            as_json=as_json,
        )
    if argv[0] != verb and not argv[0].startswith("-"):
        near = difflib.get_close_matches(argv[0], VERBS, 1)
        do = (
            f"did you mean {near[0]}?"
            if near
            else f"one of: {', '.join(VERBS)}; a distribution is named by --distribution"
        )
        return _fail("", UserError(f"no verb {argv[0]!r}", "build.py", do), as_json=as_json)
    os.umask(0o022)  # what is built must not depend on it, and others must be able to use it
    try:
        if verb != "test":  # its words go to pytest
            _refuse_empty_values(rest)
        module = importlib.import_module(f"builder.commands.{VERBS[verb][0]}")
        words: Sequence[str] = ()
        if verb == "test" and "--" in rest:
            place = rest.index("--")
            rest, words = rest[:place], rest[place + 1 :]
        shared, own = common().parse_known_args(rest)
        context, arguments = _context(shared), verb_parser(verb).parse_args(own)
        if verb == "test":
            arguments.pytest = words
        # These two hold nothing of the cache, or hold it alone.
        with contextlib.nullcontext() if verb in ("cache", "test") else context.cache.used():
            result: Result = module.run(context, arguments)
    except SystemExit as stop:  # argparse has said it
        return int(stop.code or 0)
    except UserError as error:
        return _fail(verb, error, as_json=as_json)
    except KeyboardInterrupt:
        _fail(
            verb,
            UserError("interrupted", do="what was finished is kept, a rerun continues"),
            as_json=as_json,
        )
        return 130
    except OSError as error:
        if problem := _machine_problem(error):
            return _fail(verb, problem, as_json=as_json)
        return _bug(verb, as_json=as_json)
    except BaseException:  # noqa: BLE001 - the last line of defence: a report instead of a traceback
        return _bug(verb, as_json=as_json)
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
    if text and (lost := _print(text)):
        return _fail(verb, lost, as_json=False)
    return 0 if result.ok else 1


def _print(text: str) -> UserError | None:
    """Print to stdout; return the error where it could not be written.

    A reader that has seen enough is no error.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        _discard(sys.stdout)
        if error.errno != errno.EPIPE:
            return UserError(
                f"the result cannot be written ({error.strerror})",
                "standard output",
                "give it another place and run again: what was finished is kept",
            )
    return None


def _discard(stream: TextIO) -> None:
    """Drop what a stream that cannot be written still holds: Python would write it once more when
    it ends.
    """
    with contextlib.suppress(OSError, ValueError):  # no file stands behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _machine_problem(error: OSError) -> UserError | None:
    """Return the error for what the user's machine and paths bring about; None for what is a fault
    of ours.

    Of a copy that finds no room the target is named, not the source.
    """
    number, place = error.errno, error.filename
    if (
        isinstance(error, shutil.Error) and isinstance(error.args[0], list) and error.args[0]
    ):  # of copytree: (source, target, reason) for each file
        _, place, reason = error.args[0][0][:3]
        found = re.search(r"\[Errno (\d+)\]", str(reason))
        number = int(found[1]) if found else None
    elif number in _NO_ROOM:
        place = error.filename2 or error.filename
    if number not in _MACHINE:
        return None
    return UserError(
        os.strerror(number), str(place or ""), "mend that and run again: what was finished is kept"
    )


_MAY_BE_EMPTY = (
    "--earlier",
)  # the nightly workflow gives it a setting that a repository need not have


def _refuse_empty_values(argv: Sequence[str]) -> None:
    """Raise UserError for an option whose value is empty, as from a variable of the shell that is
    not set.
    """
    own = argv[: argv.index("--")] if "--" in argv else argv
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


def _fail(verb: str, error: UserError, *, as_json: bool) -> int:
    if as_json:
        document = {
            "schema": 1,
            "command": verb,
            "ok": False,
            "result": None,
            "error": redact_document(error.as_json()),
        }
        _print(json.dumps(document, indent=1))
    log.info(f"rosetta: {escape(str(error), keep='')}")
    return error.exit_code


def _bug(verb: str, *, as_json: bool) -> int:
    """Write what is needed for a report to a file; the screen gets one line."""
    report = (
        f"rosetta builder {__version__}, {platform.platform()}, Python "
        f"{platform.python_version()}\n{traceback.format_exc()}"
    )
    with tempfile.NamedTemporaryFile(
        "w", prefix="rosetta-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as out:
        out.write(redact(report))
    error = UserError(
        f"a fault of ours: {redact(traceback.format_exc().strip().splitlines()[-1])}",
        verb,
        f"please report it with {out.name}",
    )
    _fail(verb, error, as_json=as_json)
    return 3
