"""Compare the tables of commands, options, exit statuses and scripts with the code."""

from __future__ import annotations

import argparse
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from builder.images import image_target
from rosetta.core import exit_status
from rosetta.pax.run import settings as pax_settings
from rosetta.t5x.run import settings as t5x_settings
from tests.support.command_tree import list_builder_commands, list_options, list_rosetta_commands
from tests.support.public_names import (
    ROOT,
    assert_same_names,
    join_members,
    read_mapping,
    read_names,
    read_tables,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def list_positionals(parser: argparse.ArgumentParser) -> set[str]:
    """Return the positionals of a command as its help shows them, or the values of a choice."""
    positionals = set()
    for action in parser._actions:
        if not action.option_strings:
            positionals |= set(action.choices or str(action.metavar or action.dest).split("|"))
    return positionals


def list_choices(parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, set[str]]:
    """Return the values of each option with a fixed set of values, by "command --option"."""
    choices = {}
    for name, parser in parsers.items():
        for action in parser._actions:
            option = action.option_strings[-1] if action.option_strings else "--allow-protocol"
            if action.choices and option != "--allow-protocol":
                choices[f"{name} {option}"] = {str(value) for value in action.choices}
    return choices


@pytest.mark.parametrize(
    ("heading", "list_parsers"),
    [
        ("Commands of build.py", list_builder_commands),
        ("Commands of rosetta", list_rosetta_commands),
    ],
)
def test_commands(heading: str, list_parsers: Any) -> None:
    """Commands, their arguments and options are those that the page lists."""
    parsers = list_parsers()
    common = set.intersection(*map(list_options, parsers.values()))
    assert_same_names(
        heading,
        join_members(read_mapping(heading)),
        join_members({name: list_positionals(parser) for name, parser in parsers.items()}),
    )
    own = {name: list_options(parser) - common for name, parser in parsers.items()}
    assert_same_names(heading, join_members(read_mapping(heading, 2)), join_members(own))
    everywhere = heading.replace("Commands", "Options of every command")
    assert_same_names(everywhere, read_names(everywhere), common)


def test_values_of_options() -> None:
    """Options with a fixed set of values take those that the page lists."""
    programs = {"build.py": list_builder_commands(), "rosetta": list_rosetta_commands()}
    existing: dict[str, set[str]] = {}
    for program, parsers in programs.items():
        for name, values in list_choices(parsers).items():
            # The page lists an option that every command has once for each program.
            is_common = name.endswith(" --log-level")
            listed_name = f"{program} --log-level" if is_common else f"{program} {name}"
            assert existing.setdefault(listed_name, values) == values
    heading = "Values of options"
    assert_same_names(heading, join_members(read_mapping(heading)), join_members(existing))


def test_kinds_of_output() -> None:
    """--output of build.py takes the kinds that the page lists."""
    kinds = {
        re.split(r"\W", form)[0] for form in re.findall(r"[a-z]+\[?:[A-Z]+", image_target.FORMS)
    }
    assert_same_names("Kinds of --output", read_names("Kinds of --output"), {*kinds, "env"})


def test_exit_statuses() -> None:
    """Exit statuses are those that the page lists."""
    codes = (
        exit_status.SUCCESS,
        exit_status.FAILED,
        exit_status.USER_ERROR,
        exit_status.INTERNAL_ERROR,
        exit_status.INTERRUPTED,
        exit_status.OUTPUT_CLOSED,
        exit_status.ENDED_EARLY,
        exit_status.PROCESS_LOST,
        128 + signal.SIGABRT,
        128 + signal.SIGKILL,
    )
    assert_same_names("Exit statuses", read_names("Exit statuses"), set(map(str, codes)))


def test_scripts() -> None:
    """Scripts and their words, in their order, are those that the page lists."""
    heading = "Scripts"
    listed = {cells[0][0]: cells[1] for cells in read_tables()[heading]}
    folder = "contrib/gpu/scripts_gpu"
    shipped = {
        path.name
        for path in (ROOT / "overlay").glob(f"*/*/{folder}/*")
        if path.suffix in (".sh", ".sub") or path.name.startswith("download_")
    }
    assert_same_names(
        heading, listed, shipped | {path.name for path in (ROOT / "scripts").glob("*.sub")}
    )
    known = {**t5x_settings.POSITIONALS, **pax_settings.POSITIONALS}
    words = {name: words for name, words in listed.items() if name.endswith(".sh")}
    assert words == {f"{name}.sh": list(order) for name, order in known.items()}
