"""The table of variables: whole, consistent, and worded as help texts are."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import pytest

from rosetta.core.variables import lookup, readers
from rosetta.core.variables.declaration import Scope

if TYPE_CHECKING:
    from rosetta.core.variables.declaration import Variable

READERS = {
    name
    for value in vars(readers).values()
    for name in ((value,) if isinstance(value, str) else value if isinstance(value, tuple) else ())
}


def test_a_framework_has_one_entry_for_a_name() -> None:
    """A name means one thing to each framework, and one thing to all programs that are none."""
    count = collections.Counter(
        (variable.name, framework, variable.scope is Scope.SLURM_FILE)
        for variable in lookup.TABLE
        for framework in variable.frameworks or ("",)
    )
    assert [key for key, times in count.items() if times > 1] == []


@pytest.mark.parametrize("framework", ["t5x", "pax"])
def test_find_returns_the_entry_of_the_framework(framework: str) -> None:
    """T5X and Pax have other precisions by the same name."""
    found = lookup.find("PREC", framework)
    assert found is not None
    assert found.frameworks == (framework,)
    assert ("float16" in found.type.choices) == (framework == "t5x")


def test_find_knows_nothing_else() -> None:
    """A misspelt name has no entry."""
    assert lookup.find("TRIAN_STEPS") is None


def test_a_script_reads_what_its_command_reads() -> None:
    """The single-node scripts read LOGDIR, too."""
    script = {variable.name for variable in lookup.read_by("singlenode_pretrain_pile")}
    command = {variable.name for variable in lookup.read_by(readers.T5X_PRETRAIN)}
    assert script - command == {"LOGDIR"}
    assert not command - script


@pytest.mark.parametrize("command", readers.RUNS)
def test_groups_keep_every_setting(command: str) -> None:
    """Help that is made of the groups leaves nothing out."""
    settings = lookup.settings_of(command)
    grouped = [variable for _, members in lookup.in_groups(settings) for variable in members]
    assert sorted(variable.name for variable in grouped) == sorted(
        variable.name for variable in settings
    )


@pytest.mark.parametrize("variable", lookup.TABLE, ids=lambda variable: variable.name)
def test_an_entry_is_complete(variable: Variable) -> None:
    """Texts are short sentences, readers and defaults are known, and an example can be shown."""
    sentences = variable.help.removesuffix(".").split(". ")
    assert variable.help.endswith(".")
    assert max(len(sentence.split()) for sentence in sentences) <= 25
    assert not variable.default or not variable.default_note
    assert set(variable.default_for) <= set(variable.read_by)
    assert variable.read_by
    if variable.name != "ROSETTA_ENV":  # read by a command that the user gives
        builder = {reader for reader in variable.read_by if reader.startswith("build.py ")}
        assert set(variable.read_by) - builder <= READERS
    assert len(set(variable.read_by)) == len(variable.read_by)
    name, _, value = variable.example_word().partition("=")
    assert name == variable.name
    assert value
    if variable.scope is Scope.OTHER_PROGRAM:
        assert variable.owner
