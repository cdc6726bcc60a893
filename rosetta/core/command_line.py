"""Parse the command lines of both programs.

A program lists its commands in one registry, a `Program`. The list in the help, the suggestion for
a misspelt command, and the module that runs a command come from the registry. The help of the
program needs no module of a command. The parsers report an error in one line. Only the standard
library is used, and Python 3.9 runs it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import itertools
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
      name: The name that users type.
      group: One of the program's groups.
      summary: What the command does, in the imperative, without a full stop.
      module: The module that runs the command.
      examples: Arguments that work. A command with subcommands has an example for each of them.
      details: Sentences that the help of the command adds to the summary.
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
      typed: How users start the program.
      description: What the program does, as a sentence.
      groups: Name of a group -> its heading, in the order of the help.
      commands: The commands, in the order of the help, group by group.
      shown: Commands whose first example the help of the program shows.
      default: The command that runs if the command line names none; "" for none.
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
          UserError: There is no such command.
        """
        for command in self.commands:
            if command.name == name:
                return command
        advice = f"choose one of: {', '.join(self.names)};"
        raise _make_unknown_error(
            f"there is no command {name!r}", self.name, name, self.names, advice
        )

    def find_called_command(self, words: Sequence[str]) -> str:
        """Return the name of the command that a command line calls.

        The name is "" if the command line asks for the help or the version of the program.

        Args:
          words: The words after the program's name.

        Raises:
          UserError: The command line calls no command, or an unknown one.
        """
        first = words[0] if words else HELP_OPTIONS[-1]
        if first in (*HELP_OPTIONS, *VERSION_OPTIONS):
            return ""
        if not first.startswith("-"):
            return self.find_command(first).name
        if not self.default:
            option = first.partition("=")[0]
            raise UserError(
                f"{option} is not an option of {self.name} itself",
                self.name,
                f"write options after the command; see {self.name} --help",
                kind=UNKNOWN,
                value=option,
            )
        return self.default

    def keep_commands(self, *names: str) -> Program:
        """Return a copy of the program that only has these commands."""
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
            commands = [command for command in self.commands if command.group == group]
            lines = [f"{command.name.ljust(width)}{command.summary}" for command in commands]
            if lines:
                parts.append(_format_section(heading, lines))
        examples = [self.format_examples(self.find_command(name))[0] for name in self.shown]
        variables = _help_text().format_program_variables(self.name)
        parts += [options, _format_section("variables of every command", variables)]
        parts += [_format_section(EXAMPLES, examples)]
        parts.append(f"`{self.typed} COMMAND --help` describes a command.\n")
        return "\n".join(parts)

    def format_examples(self, command: Command) -> list[str]:
        """Return the examples of a command as users type them."""
        return [
            f"{self.typed} {command.name} {arguments}".rstrip() for arguments in command.examples
        ]


def _help_text() -> Any:
    """Return the module that describes variables. Only help needs it, so it is imported late."""
    return importlib.import_module("rosetta.core.variables.help_text")


def _format_section(heading: str, lines: Iterable[str]) -> str:
    """Return a heading with indented lines below it."""
    return "".join([f"{heading}:\n", *(f"  {line}\n" for line in lines)])


def _make_unknown_error(
    what: str, where: str, word: str, known: Iterable[str], advice: str = ""
) -> UserError:
    """Return the error for an unknown word.

    Args:
      what: What is wrong.
      where: The program and command.
      word: The unknown word.
      known: The known words. The error suggests one that is nearly the same.
      advice: The remedy if no known word is near.
    """
    near = difflib.get_close_matches(word, known, 1)
    if near:
        advice = f"did you mean {near[0]}?"
    remedy = f"{advice} see {where} --help".lstrip()
    return UserError(what, where, remedy, kind=UNKNOWN, value=word)


def _move_first(names: Collection[str], words: Sequence[str]) -> list[str]:
    """Return the words in an order in which the first one that is among the names leads."""
    index = next((index for index, word in enumerate(words) if word in names), 0)
    return [*words[index : index + 1], *words[:index], *words[index + 1 :]]


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command line as a UserError, so that --json covers it too.

    Options have to be written in full, because an abbreviation would change its meaning when an
    option is added.

    Attributes:
      sections: Heading -> lines that the help shows, as they are, after the options and the
        variables that the command reads.
      inherited: Parsers whose options the subcommands of this one have too.
    """

    def __init__(
        self, *, parents: Sequence[Parser] = (), options_anywhere: bool = False, **options: Any
    ) -> None:
        """Make a parser.

        Args:
          parents: Parsers whose options this one and its subcommands have too.
          options_anywhere: Whether options may be written between the items of a list of
            positionals, or before the name of a subcommand.
          options: Options of argparse.
        """
        super().__init__(**{"allow_abbrev": False, "parents": parents, **options})
        self.sections: dict[str, Sequence[str]] = {}
        self.inherited = parents
        self._options_anywhere = options_anywhere
        self.register("action", "parsers", _Subcommands)

    def add_subparsers(self, **options: Any) -> Any:
        """Add subcommands; see argparse."""
        commands: Any = super().add_subparsers(
            **{"required": True, "parser_class": Parser, **options}
        )
        commands.above = self
        return commands

    def split_known(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the values of this parser's options, and the words that it does not know."""
        return super().parse_known_args(list(words), None)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; refuse unknown ones with the help of the parser they were for."""
        if args is not None and self._options_anywhere:
            subcommands = self._subcommand_names()
            args = list(args)
            args = _move_first(subcommands, args) if subcommands else self._move_options_first(args)
        values, unknown = super().parse_known_args(args, namespace)
        if unknown:
            what = f"unrecognized arguments: {' '.join(unknown)}"
            unknown_options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            word = unknown_options[0] if unknown_options else unknown[0]
            raise _make_unknown_error(what, self.prog, word, self._long_options())
        return values, unknown

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """See argparse. An error of the option's type names the option."""
        try:
            return super()._get_value(action, arg_string)
        except UserError as error:
            name = (action.option_strings or [str(action.metavar or action.dest)])[-1]
            raise UserError(
                error.what,
                f"{self.prog} {name}",
                f"{error.do}; see {self.prog} --help",
                kind=error.kind or INVALID,
                value=arg_string,
            ) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """See argparse. Unlike its error, this one suggests a choice that is nearly the same."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            name = action.option_strings[-1] if action.option_strings else ""
            if not name and action.metavar:
                name = str(action.metavar).lower()
            what = f"there is no {name} {value!r}" if name else f"there is no {value!r}"
            advice = f"choose one of: {', '.join(known)};"
            raise _make_unknown_error(what, self.prog, str(value), known, advice)

    def _long_options(self) -> list[str]:
        """Return the options that begin with two dashes."""
        names = list[str]()
        for action in self._actions:
            names += [name for name in action.option_strings if name.startswith("--")]
        return names

    def _subcommand_names(self) -> set[str]:
        """Return the names of the subcommands."""
        names = set[str]()
        for action in self._actions:
            if isinstance(action, _Subcommands):
                names.update(action.choices or ())
        return names

    def _move_options_first(self, words: list[str]) -> list[str]:
        """Return the words, with options and their values before the others.

        argparse only takes a list of positionals that is in one piece.
        """
        names_with_value = set[str]()
        for action in self._actions:
            if action.nargs is None:
                names_with_value.update(action.option_strings)
        options, positionals = list[str](), list[str]()
        remaining = iter(words)
        for word in remaining:
            target = options if word.startswith("-") else positionals
            target.append(word)
            if word in names_with_value:
                target.extend(itertools.islice(remaining, 1))
        return [*options, *positionals]

    def error(self, message: str) -> NoReturn:
        """Raise a UserError in place of argparse's exit."""
        raise UserError(message, self.prog, f"see {self.prog} --help", kind=INVALID)

    def format_help(self) -> str:
        """Return the help with its sections: the variables that the command reads, and examples."""
        variables: Mapping[str, Sequence[str]] = {}
        if not self._subcommand_names():
            variables = _help_text().format_command_variables(self.prog)
        ordered = sorted(self.sections.items(), key=lambda section: section[0] == EXAMPLES)
        sections = [*variables.items(), *ordered]
        texts = [_format_section(heading, lines) for heading, lines in sections if lines]
        return "\n".join([super().format_help(), *texts])

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print the help, and make sure that it arrives. See argparse."""
        del file
        if message:
            exit_status.print_result(message.rstrip("\n"))


class ProgramParser(Parser):
    """The parser of a whole program. Its help comes from the registry."""

    def __init__(self, program: Program, version: Callable[[], str]) -> None:
        """Make a parser that has no commands yet.

        Args:
          program: The registry.
          version: The function that returns the text of --version.
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
    """Print the version and end. Unlike argparse's own action, compute the text only then."""

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
    """The subcommands of a parser, each with a description and examples.

    Attributes:
      above: The parser.
    """

    above: Parser

    def add_parser(self, name: str, **options: Any) -> Any:
        """Add a subcommand; see argparse.

        A command of a program gets its help and its examples from the registry. A subcommand below
        gets its summary from `help` and further sentences from `description`. Its examples are
        those of the command above that call it.
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
