"""The command line inside the image: its grammar, and how a command is run and ends."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta.core import exit_status, secrets
from rosetta.core.errors import INVALID, UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as a UserError, so that --json covers it too; with
    set_defaults(flags_first=True), options may stand anywhere.

    Options are written whole: one that is cut short would be another when one more is added, and
    which of them take values is told by their names.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See argparse, which takes a list of words that stands in one piece only."""
        if args is not None and self.get_default("flags_first"):
            args = self._flags_first(list(args))
        found, left = super().parse_known_args(args, namespace)
        # Said here and not by the parser above, which has other options and another page of help.
        if left:
            odd = next((word.partition("=")[0] for word in left if word.startswith("-")), left[0])
            self._refuse(
                f"unrecognized arguments: {' '.join(left)}",
                odd,
                [
                    name
                    for action in self._actions
                    for name in action.option_strings
                    if name.startswith("--")
                ],
            )
        return found, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """See argparse, which does not say what was nearly written."""
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            named = action.option_strings[-1:] or (
                [str(action.metavar).lower()] if action.metavar else []
            )
            what = f"there is no {' '.join([*named, repr(value)])}"
            self._refuse(what, str(value), known, f"choose one of: {', '.join(known)};")

    def _refuse(self, what: str, word: str, known: Sequence[str], otherwise: str = "") -> NoReturn:
        near = difflib.get_close_matches(word, known, 1)
        advice = f"did you mean {near[0]}?" if near else otherwise
        raise UserError(
            what,
            self.prog,
            f"{advice} see {self.prog} --help".lstrip(),
            kind=UNKNOWN,
            value=word,
        )

    def _flags_first(self, words: list[str]) -> list[str]:
        """Return the words, with options and their values before the others."""
        valued = {
            name
            for action in self._actions
            if action.nargs is None
            for name in action.option_strings
        }
        first, rest = list[str](), list[str]()
        while words:
            word = words.pop(0)
            into = first if word.startswith("-") else rest
            into.append(word)
            if word in valued and words:
                into.append(words.pop(0))
        return [*first, *rest]

    def error(self, message: str) -> Any:
        """Raise a UserError in place of argparse's exit."""
        raise UserError(message, self.prog, f"see {self.prog} --help", kind=INVALID)


class _Version(argparse.Action):
    """Prints what this rosetta is and ends, as argparse's own action does for a text that is known
    before.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "nargs": 0})

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> NoReturn:
        """See argparse."""
        del namespace, values, option
        exit_status.print_result(_version())
        parser.exit()


def _version() -> str:
    """Return the version of this rosetta, and what it was baked for; of a checkout only that it is
    one.
    """
    from rosetta.core import lock_record

    if not lock_record.path().exists():
        return "rosetta (not baked: from a checkout)"
    known = lock_record.read()
    baked = [known.get("distribution"), known.get("accelerator"), f"Python {known.get('python')}"]
    return (
        f"rosetta {known.get('builder') or 'of an unknown version'} "
        f"({', '.join(str(part) for part in baked if part)})"
    )


def parser(command: str | None = None) -> Parser:
    """Return the grammar of the command line, or of the module alone that has `command`."""
    top = Parser(
        prog="rosetta", description="What is baked into this environment, and does it work."
    )
    top.add_argument(
        "--version", action=_Version, help="print the version of rosetta, and what it was baked for"
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="one JSON document on stdout")
    for module in _load_command_modules(command):
        module.add(commands, common)
    return top


def _load_command_modules(command: str | None = None) -> list[Any]:
    """Return the modules that add commands, or only the one that adds `command`."""
    names = [name for name, commands in COMMAND_MODULES.items() if command in commands]
    return [import_module(name) for name in (names or COMMAND_MODULES)]


# Module -> its commands.
COMMAND_MODULES: dict[str, tuple[str, ...]] = {
    "rosetta.commands.info": ("info", "te"),
    "rosetta.commands.profile": ("profile",),
    "rosetta.commands.selftest": ("selftest",),
    "rosetta.commands.t5x": ("t5x",),
    "rosetta.commands.new": ("new",),
    "rosetta.commands.pax": ("pax",),
    "rosetta.commands.data": ("data", "vocab"),
    "rosetta.commands.plan": ("plan",),
    "rosetta.commands.bench": ("bench",),
    "rosetta.commands.convert": ("convert",),
    "rosetta.commands.doctor": ("doctor",),
    "rosetta.commands.tune": ("tune",),
    "rosetta.commands.run": ("run", "submit", "spawn"),
    "rosetta.commands.explain": ("explain",),
}


def _document(
    command: str | None, *, ok: bool, result: Any = None, error: dict[str, str] | None = None
) -> str:
    document = {"schema": 1, "command": command, "ok": ok, "result": result, "error": error}
    text = json.dumps(document, indent=2, ensure_ascii=False)
    # A file's name may hold bytes that are not UTF-8: JSON has them as escapes.
    return text.encode("utf-8", "backslashreplace").decode()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    with secrets.redacted_output(words):
        return _run(words or ["--help"])


def _run(words: list[str]) -> int:
    as_json = "--json" in words[: words.index("--") if "--" in words else None]
    first = next((word for word in words if not word.startswith("-")), None)
    modules = _load_command_modules(first)
    known = {name: function for module in modules for name, function in module.RUN.items()}
    command = next((word for word in words if word in known), None)
    # Whoever ends us by SIGTERM wants the children gone as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        args = parser(first).parse_args(words)
        result, text = known[args.command](args)
        ok = bool(result.get("ok", True))
        exit_status.print_result(_document(command, ok=ok, result=result) if as_json else text)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (whatever it is, it ends in one line and a status of its own)
        code, failure = exit_status.explain_failure(error, command or "rosetta")
        print(
            failure if str(failure).startswith(("rosetta:", "rosetta ")) else f"rosetta: {failure}",
            file=sys.stderr,
        )
        if as_json:
            with contextlib.suppress(UserError, SystemExit):
                exit_status.print_result(_document(command, ok=False, error=failure.as_json()))
        return code
    return exit_status.FINE if ok else exit_status.FAILED
