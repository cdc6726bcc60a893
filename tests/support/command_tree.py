"""Walk the commands of rosetta and their arguments, for tests that give all of them the same values."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rosetta.pax.run import settings as pax_settings
from rosetta.t5x.run import command_variables

if TYPE_CHECKING:
    from collections.abc import Iterator

# The commands that read variables, and the variables that each of them reads.
VARIABLES = {
    **{("t5x", verb): names for verb, names in command_variables.VARIABLES.items()},
    ("pax", "train"): pax_settings.VARIABLES,
}


def leaf_parsers(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
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


def dry_run(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """Return the words that keep a command from running anything; none where it has no such option."""
    return ("--dry-run",) if "--dry-run" in parser._option_string_actions else ()


def required_positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the positionals that a command does not go without."""
    return [action for action in parser._actions if action.required and not action.option_strings]
