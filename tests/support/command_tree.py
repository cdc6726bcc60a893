"""Walk the commands of both programs and their arguments, for tests of all of them."""

from __future__ import annotations

import argparse
import functools
import re
import shlex
from typing import TYPE_CHECKING

import builder.cli
import rosetta.cli
from rosetta.core.variables import lookup, readers
from rosetta.core.variables.declaration import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.core.command_line import Parser, Program, ProgramParser
    from rosetta.core.variables.declaration import Variable

# The commands that read variables, and the variables that each of them reads.
VARIABLES = {
    tuple(command.split()): lookup.list_accepted_names(command)
    for command in (*readers.T5X, readers.PAX_TRAIN)
}


def leaf_parsers(
    parser: Parser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Yield each command of a parser: its words, and the parser of its options."""
    choices = [
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    if not choices:
        yield words, parser
        return
    for name, below in dict(choices[0]).items():
        yield from leaf_parsers(below, (*words, name))


@functools.cache
def list_builder_commands() -> dict[str, Parser]:
    """Return the commands of build.py: the words of each, and the parser of its arguments."""
    return {" ".join(words): leaf for words, leaf in leaf_parsers(builder.cli.make_parser())}


@functools.cache
def list_rosetta_commands() -> dict[str, Parser]:
    """Return the commands of rosetta: the words of each, and the parser of its arguments."""
    return {" ".join(words): leaf for words, leaf in leaf_parsers(rosetta.cli.build_parser())}


def list_options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command that its help shows, without those of the help itself."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return {name for action in shown for name in action.option_strings} - {"-h", "--help"}


def dry_run(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """Return the words that make a command a dry run, or no words if it has no dry run."""
    return ("--dry-run",) if "--dry-run" in parser._option_string_actions else ()


def required_positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the positionals that a command does not go without."""
    return [action for action in parser._actions if action.required and not action.option_strings]


def check_registry(program: Program, parser: ProgramParser) -> None:
    """Assert that a program's commands have a group, a summary and examples that parse, and that
    its help shows all of them on lines that fit a terminal.
    """
    text = parser.format_help()
    for command in program.commands:
        assert command.group in program.groups, command.name
        assert re.fullmatch(r"[a-z].+[^.,]", command.summary), command.summary
        assert f"  {command.name}  " in text
        for example in program.format_examples(command):
            words = shlex.split(example)[len(shlex.split(program.typed)) :]
            parser.parse_args(words)
    assert max(map(len, text.splitlines())) <= 100
    for names, leaf in leaf_parsers(parser):
        check_help(names, leaf)


def check_help(words: tuple[str, ...], parser: Parser) -> None:
    """Assert that a command has an example, and that a sentence describes it and each option."""
    assert parser.sections["examples"], words
    assert str(parser.description).endswith("."), words
    for action in parser._actions:
        assert action.help, (words, action.dest)
        assert not re.match(r"(it|of|it is|default)\b", action.help), (words, action.help)


def reading_commands(program: Program, parser: ProgramParser) -> dict[str, list[Variable]]:
    """Return command -> the variables of rosetta that it reads, by the table.

    Args:
      program: The registry.
      parser: Its parser.
    """
    prefix = "" if program.name == "rosetta" else f"{program.name} "
    hidden = (Scope.OTHER_PROGRAM, Scope.INTERNAL)
    reading = {}
    for words, _ in leaf_parsers(parser):
        names = {f"{prefix}{' '.join(words[:count])}" for count in range(1, len(words) + 1)}
        reading[" ".join(words)] = [
            variable
            for variable in lookup.TABLE
            if not names.isdisjoint(variable.read_by) and variable.scope not in hidden
        ]
    return reading


def check_variables_in_help(program: Program, parser: ProgramParser) -> None:
    """Assert that the help of each command describes the variables that it reads, and no others,
    and that the help of the program describes those that every command reads.
    """
    leaves = {" ".join(words): leaf for words, leaf in leaf_parsers(parser)}
    for command, variables in reading_commands(program, parser).items():
        described = _list_described_variables(leaves[command])
        assert sorted(described) == sorted({variable.name for variable in variables}), command
    everywhere = [
        variable.name
        for variable in lookup.list_variables(program.name)
        if variable.scope not in (Scope.OTHER_PROGRAM, Scope.INTERNAL)
    ]
    assert _list_described_variables(parser) == everywhere
    assert everywhere


def _list_described_variables(parser: Parser) -> list[str]:
    """Return the variables that a help describes. NAME=VALUE is an argument."""
    names = re.findall(r"^  ([A-Z][A-Z0-9_]+)=", parser.format_help(), re.MULTILINE)
    return [name for name in names if name != "NAME"]
