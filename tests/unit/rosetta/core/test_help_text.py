"""Help of variables: every fact of the table is there, in lines that can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rosetta.core.variables import help_text, lookup, readers
from rosetta.core.variables.declaration import Note, Scope, Variable

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 80
# Every reader of the table, the builder's among them.
READERS = sorted({reader for variable in lookup.TABLE for reader in variable.read_by})


def described_variables(reader: str) -> Sequence[Variable]:
    """Return the variables of rosetta that something reads and that are not internal."""
    scopes = (Scope.OTHER_PROGRAM, Scope.INTERNAL)
    return [variable for variable in lookup.list_variables(reader) if variable.scope not in scopes]


@pytest.mark.parametrize("reader", READERS)
def test_every_variable_of_a_reader_is_described(reader: str) -> None:
    """Each has an entry in its group; those of other programs are named."""
    sections = help_text.format_sections(lookup.list_variables(reader), reader, WIDTH)
    others = sections.pop(help_text.OTHER_PROGRAMS_HEADING, [])
    for variable in described_variables(reader):
        heads = [line for line in sections[variable.group.value] if line[0] != " "]
        assert any(line.startswith(f"{variable.name}=") for line in heads)
    assert sum(line[0] != " " for lines in sections.values() for line in lines) == len(
        described_variables(reader)
    )
    named = {word.strip(",.") for line in others for word in line.split()}
    assert named >= {
        variable.name
        for variable in lookup.list_variables(reader)
        if variable.scope is Scope.OTHER_PROGRAM
    }


@pytest.mark.parametrize("variable", lookup.TABLE, ids=lambda variable: variable.name)
def test_an_entry_has_type_choices_default_unit_and_help(variable: Variable) -> None:
    for reader in variable.read_by:
        lines = help_text.format_entry(variable, reader, WIDTH)
        assert all(len(line) <= WIDTH for line in lines)
        text = " ".join(" ".join(lines).split())
        assert text.endswith(variable.help)
        facts = [variable.get_default_text(reader), *variable.type.choices]
        if not variable.hyper_parameter or not variable.name.endswith("MESH_SHAPE"):
            facts += [variable.unit if variable.type.placeholder != "A:B" else ""]
        absent = [fact for fact in facts if fact != Note("none") and fact not in text]
        assert not absent, text


@pytest.mark.parametrize("reader", readers.RUNS)
def test_most_entries_have_two_lines(reader: str) -> None:
    """A variable takes one or two lines of a wide terminal, and seldom more."""
    counts = [
        len(help_text.format_entry(variable, reader, 98))
        for variable in described_variables(reader)
    ]
    assert max(counts) <= 3
    assert sum(count <= 2 for count in counts) >= 0.75 * len(counts)


def test_an_entry() -> None:
    entry = help_text.format_entry(
        lookup.find_variable("BSIZE_PER_GPU"), readers.T5X_PRETRAIN, WIDTH
    )
    assert entry == [
        "BSIZE_PER_GPU=N  (sequences; default: 32)",
        "    Sequences for each GPU. The global batch is NUM_GPUS x BSIZE_PER_GPU /",
        "    TP_SIZE.",
    ]
    entry = help_text.format_entry(lookup.find_variable("LOG_DIR"), readers.PAX_BOOLQ, WIDTH)
    assert entry[0] == "LOG_DIR=FOLDER  (or gs://BUCKET/FOLDER; default: /tmp/llama)"
