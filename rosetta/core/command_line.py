"""The command lines of both programs: a registry of commands, their help, and a parser whose errors
are one line.

A program lists its commands in one registry, a `Program`. The list in the help, suggestions for a
misspelt command, and the module that runs a command come from there. The help of the program needs
no module of a command. Only the standard library is used, and Python 3.9 runs it.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from rosetta.core import exit_status
from rosetta.core.errors import INVALID, UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

HELP_OPTIONS, VERSION_OPTIONS = ("-h", "--help"), ("-V", "--version")
EXAMPLES = "examples"


class Command(NamedTuple):
    """A command of a program.

    Attributes:
      name: What people type.
      group: One of the program's groups.
      summary: What the command does, in the imperative, without a full stop.
      module: The module that runs it.
      examples: Words after the command's name that work. A command with commands below has an
        example for each of these.
      details: Sentences that its help adds to the summary.
    """

    name: str
    group: str
    summary: str
    module: str
    examples: tuple[str, ...]
    details: str = ""

    def load_module(self) -> Any:
        """Return the module that runs the command."""
        return importlib.import_module(self.module)


class Program(NamedTuple):
    """A program and its commands.

    Attributes:
      name: The program's name in messages.
      typed: How people start it.
      description: What it is, as a sentence.
      groups: Name of a group -> its heading, in the order of the help.
      commands: In the order of the help, group by group.
      shown: Commands whose first example the help of the program shows.
      default: The command that is meant without one; "" for none.
    """

    name: str
    typed: str
    description: str
    groups: Mapping[str, str]
    commands: tuple[Command, ...]
    shown: tuple[str, ...]
    default: str = ""

    @property
    def names(self) -> list[str]:
        """The commands' names."""
        return [command.name for command in self.commands]

    def find_command(self, name: str) -> Command:
        """Return the command of this name.

        Raises:
          UserError: there is none.
        """
        for command in self.commands:
            if command.name == name:
                return command
        otherwise = f"choose one of: {', '.join(self.names)};"
        raise _make_unknown_error(
            f"there is no command {name!r}", self.name, name, self.names, otherwise
        )

    def find_called_command(self, words: Sequence[str]) -> str:
        """Return the name of the command that a command line calls; "" where it asks for the help
        or the version of the program.

        Raises:
          UserError: it calls none.
        """
        first = words[0] if words else HELP_OPTIONS[-1]
        if first in (*HELP_OPTIONS, *VERSION_OPTIONS):
            return ""
        if not first.startswith("-"):
            return self.find_command(first).name
        if not self.default:
            option = first.partition("=")[0]
            do = f"write options after the command; see {self.name} --help"
            raise UserError(
                f"{option} is not an option of {self.name} itself",
                self.name,
                do,
                kind=UNKNOWN,
                value=option,
            )
        return self.default

    def keep_commands(self, *names: str) -> Program:
        """Return the program with some of its commands."""
        shown = tuple(name for name in self.shown if name in names) or names[:1]
        commands = tuple(command for command in self.commands if command.name in names)
        return self._replace(commands=commands, shown=shown)

    def format_help(self, options: str) -> str:
        """Return the help: the commands by group, the options, and examples.

        Args:
          options: How argparse shows the options of the program.
        """
        width = max(map(len, self.names)) + 2
        parts = [f"usage: {self.typed} COMMAND [options]\n", f"{self.description}\n"]
        for group, heading in self.groups.items():
            lines = [
                f"  {command.name:<{width}}{command.summary}\n"
                for command in self.commands
                if command.group == group
            ]
            if lines:
                parts.append("".join([f"{heading}:\n", *lines]))
        examples = [self.format_examples(self.find_command(name))[0] for name in self.shown]
        variables = _help_text().format_program_variables(self.name)
        parts += [options, _format_section("variables of every command", variables)]
        parts += [_format_section(EXAMPLES, examples)]
        parts.append(f"`{self.typed} COMMAND --help` describes a command.\n")
        return "\n".join(parts)

    def format_examples(self, command: Command) -> list[str]:
        """Return the examples of a command as people type them."""
        return [f"{self.typed} {command.name} {words}".rstrip() for words in command.examples]


def _help_text() -> Any:
    """Return the module that describes variables, which only help needs."""
    return importlib.import_module("rosetta.core.variables.help_text")


def _format_section(heading: str, lines: Iterable[str]) -> str:
    return "".join([f"{heading}:\n", *(f"  {line}\n" for line in lines)])


def _make_unknown_error(
    what: str, where: str, word: str, known: Iterable[str], otherwise: str = ""
) -> UserError:
    """Return the error for an unknown word: with the known word that is nearly the same, or else
    with this advice.
    """
    near = difflib.get_close_matches(word, known, 1)
    advice = f"did you mean {near[0]}?" if near else otherwise
    do = f"{advice} see {where} --help".lstrip()
    return UserError(what, where, do, kind=UNKNOWN, value=word)


def _move_first(names: Collection[str], words: Sequence[str]) -> list[str]:
    """Return the words, the first that is one of the names before all others."""
    place = next((place for place, word in enumerate(words) if word in names), 0)
    return [*words[place : place + 1], *words[:place], *words[place + 1 :]]


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command line as a UserError, so that --json covers it too.

    Options have to be written in full: an abbreviation would change its meaning when an option is
    added.

    Attributes:
      sections: Heading -> lines that the help shows after the options and the variables that the
        command reads, as they are.
      inherited: Parsers whose options the commands below this one have too.
    """

    def __init__(
        self, *, parents: Sequence[Parser] = (), options_anywhere: bool = False, **options: Any
    ) -> None:
        """Make a parser.

        Args:
          parents: Parsers whose options this one and those below it have too.
          options_anywhere: Options may stand between positionals of which there are many, or before
            the name of a command below.
          options: Of argparse.
        """
        super().__init__(**{"allow_abbrev": False, "parents": parents, **options})
        self.sections: dict[str, Sequence[str]] = {}
        self.inherited = parents
        self._options_anywhere = options_anywhere
        self.register("action", "parsers", _Subcommands)

    def add_subparsers(self, **options: Any) -> Any:
        """Add commands below this one; see argparse."""
        commands: Any = super().add_subparsers(
            **{"required": True, "parser_class": Parser, **options}
        )
        commands.above = self
        return commands

    def split_known(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the values of this parser's options, and the words that are none of them."""
        return super().parse_known_args(list(words), None)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; refuse unknown ones with the help of the parser they were for."""
        if args is not None and self._options_anywhere:
            names = self._names_below()
            move = self._move_options_first if not names else functools.partial(_move_first, names)
            args = move(list(args))
        values, left = super().parse_known_args(args, namespace)
        if left:
            odd = next((word.partition("=")[0] for word in left if word.startswith("-")), left[0])
            what = f"unrecognized arguments: {' '.join(left)}"
            options = [name for action in self._actions for name in action.option_strings]
            known = [name for name in options if name.startswith("--")]
            raise _make_unknown_error(what, self.prog, odd, known)
        return values, left

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """See argparse. An error of the option's type names the option."""
        try:
            return super()._get_value(action, arg_string)
        except UserError as error:
            name = (action.option_strings or [str(action.metavar or action.dest)])[-1]
            do = f"{error.do}; see {self.prog} --help"
            where, kind = f"{self.prog} {name}", error.kind or INVALID
            raise UserError(error.what, where, do, kind=kind, value=arg_string) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """See argparse, which does not say what was nearly written."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            metavar = [str(action.metavar).lower()] if action.metavar else []
            what = (
                f"there is no {' '.join([*(action.option_strings[-1:] or metavar), repr(value)])}"
            )
            otherwise = f"choose one of: {', '.join(known)};"
            raise _make_unknown_error(what, self.prog, str(value), known, otherwise)

    def _names_below(self) -> set[str]:
        """Return the names of the commands below this one."""
        below = [action.choices for action in self._actions if isinstance(action, _Subcommands)]
        return {name for choices in below for name in choices or ()}

    def _move_options_first(self, words: list[str]) -> list[str]:
        """Return the words, with options and their values before the others: argparse takes a list
        of positionals that stands in one piece only.
        """
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

    def error(self, message: str) -> NoReturn:
        """Raise a UserError in place of argparse's exit."""
        raise UserError(message, self.prog, f"see {self.prog} --help", kind=INVALID)

    def format_help(self) -> str:
        """Return the help with its sections: the variables that the command reads, and examples."""
        variables = {} if self._names_below() else _help_text().format_command_variables(self.prog)
        ordered = sorted(self.sections.items(), key=lambda section: section[0] == EXAMPLES)
        sections = [*variables.items(), *ordered]
        texts = [_format_section(heading, lines) for heading, lines in sections if lines]
        return "\n".join([super().format_help(), *texts])

    def _print_message(self, message: str, file: Any = None) -> None:
        """See argparse: this makes sure that the help arrives."""
        del file
        if message:
            exit_status.print_result(message.rstrip("\n"))


class ProgramParser(Parser):
    """The parser of a whole program: its help is the registry's."""

    def __init__(self, program: Program, version: Callable[[], str]) -> None:
        """Make a parser without commands.

        Args:
          program: The registry.
          version: Returns the text of --version.
        """
        super().__init__(prog=program.name, add_help=False)
        self.program = program
        self.version = version
        options = self.add_argument_group("options")
        options.add_argument(*HELP_OPTIONS, action="help", help="show this help")
        options.add_argument(*VERSION_OPTIONS, action=_PrintVersion, help="show the version")
        self._options = options

    def format_help(self) -> str:
        """Return the help of the program."""
        formatter = self._get_formatter()
        formatter.start_section(self._options.title)
        formatter.add_arguments(self._options._group_actions)  # noqa: SLF001 (argparse has no name for it)
        formatter.end_section()
        return self.program.format_help(formatter.format_help())


class _PrintVersion(argparse.Action):
    """Print the version and end, as argparse's own action does with a text that is known before."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "nargs": 0})

    def __call__(
        self,
        parser: Any,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        """See argparse."""
        del namespace, values, option_string
        exit_status.print_result(parser.version())
        raise SystemExit(exit_status.SUCCESS)


class _Subcommands(argparse._SubParsersAction):  # type: ignore[type-arg]  # noqa: SLF001 (argparse has no public name for it)
    """The commands below a parser: each has a description and examples."""

    above: Parser

    def add_parser(self, name: str, **options: Any) -> Any:
        """Add a command; see argparse.

        The registry has the help and the examples of a program's commands. A command below these
        brings its summary as `help`, and as `description` what its help adds to the summary. Of
        the examples it gets those that call it.
        """
        above = self.above
        prog = f"{above.prog} {name}"
        if isinstance(above, ProgramParser):
            command = above.program.find_command(name)
            options = {"help": command.summary, "description": command.details, **options}
            examples = above.program.format_examples(command)
        else:
            examples = [
                example for example in above.sections[EXAMPLES] if f"{prog} " in f"{example} "
            ]
        summary = options["help"]
        about = f"{summary[:1].upper()}{summary[1:]}. {options.get('description', '')}".rstrip()
        options = {"parents": above.inherited, **options, "prog": prog, "description": about}
        parser = super().add_parser(name, **options)
        parser.sections[EXAMPLES] = examples
        return parser
