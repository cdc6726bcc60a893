"""`rosetta explain VARIABLE`, and what presets, variables and misspelt names have to do with it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from rosetta import cli
from rosetta.core.variables import lookup, readers
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.core.variables.declaration import Variable


def explain(capsys: pytest.CaptureFixture[str], name: str) -> list[dict[str, Any]]:
    """Return the entries of a variable."""
    assert cli.main(["explain", name, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
    assert result["variable"] == name
    entries: list[dict[str, Any]] = result["entries"]
    return entries


@pytest.mark.parametrize("name", sorted({variable.name for variable in lookup.TABLE}))
def test_an_explanation_has_all_facts_of_the_table(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", name]) == 0
    text = " ".join(capsys.readouterr().out.split())
    variables = [variable for variable in lookup.TABLE if variable.name == name]
    for variable, entry in zip(variables, explain(capsys, name), strict=True):
        facts: list[str] = [
            variable.help,
            variable.details,
            variable.page,
            variable.type.description,
            variable.unit,
            variable.default,
            *variable.default_for.values(),
            "" if variable.secret else variable.make_example(),
            variable.since,
        ]
        assert [fact for fact in facts if fact not in text] == []
        assert entry["read_by"] == list(variable.read_by)
        assert entry["choices"] == list(variable.type.choices)
        assert read_by(text, variable)


def read_by(text: str, variable: Variable) -> bool:
    """Return whether a text names each command that reads a variable, and its script."""
    commands = [reader.split()[-1] for reader in variable.read_by if reader in readers.RUNS]
    scripts = [
        f"{script}.sh"
        for script, command in readers.SCRIPT_COMMANDS.items()
        if command in variable.read_by
    ]
    return all(re.search(rf"\b{re.escape(word)}\b", text) for word in (*commands, *scripts))


def test_a_variable_with_two_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    """T5X and Pax have other precisions."""
    t5x, pax = explain(capsys, "PREC")
    assert (t5x["of"], pax["of"]) == ("T5X", "Pax")
    assert set(t5x["choices"]) - set(pax["choices"]) == {"float16"}
    assert pax["default_for"] == {"pax boolq": "the experiment's value"}


def test_the_text_of_an_explanation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["explain", "NUM_MICROBATCHES"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NUM_MICROBATCHES"
    assert max(map(len, lines)) <= 80
    assert lines.index("NUM_MICROBATCHES", 1) == lines.index("") + 1, "Pax's follows"
    rows = {line[:10].strip(): line[11:] for line in lines[2 : lines.index("")]}
    assert rows["default"] == "1"
    assert rows["unit"] == "microbatches"
    assert rows["read by"] == "rosetta t5x pretrain, finetune"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PAKC", "PACK"),
        ("pack", "PACK"),
        ("model_dir", "MODEL_DIR"),
        ("GRAD_ACCUM", "NUM_MICROBATCHES"),
        ("SIZE", "T5_SIZE"),
        ("size", "T5_SIZE"),
        ("TRIAN_STEPS", "TRAIN_STEPS"),
        ("t5x-lrge", "t5x-large"),
        ("gpt_5b", "gpt-5b"),
        ("QQQQQQ", "--help"),
        ("nothing-like-it", "t5x-small"),
    ],
)
def test_an_unknown_name(name: str, near: str) -> None:
    with errors.expect_reported_error(errors.UNKNOWN, value=name, remedy=near):
        assert cli.main(["explain", name]) == 2


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("TRAIN_STEPS=5",), "TRAIN_STEPS=5"),
        (("--accelerator", "h100"), "--accelerator"),
        (("--nodes=2",), "--nodes"),
        (("--gpus-per-node=2",), "--gpus-per-node"),
    ],
)
def test_a_variable_has_no_settings(words: tuple[str, ...], value: str) -> None:
    with errors.expect_reported_error(
        errors.CONFLICT, where="rosetta explain", value=value, names="PACK"
    ):
        assert cli.main(["explain", "PACK", *words]) == 2


def test_a_setting_without_a_reason_has_the_help_of_its_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["explain", "t5x-small", "--accelerator", "h100", "TRAIN_STEPS=7"]) == 0
    (line,) = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("settings.TRAIN_STEPS = 7 ")
    ]
    assert line.endswith(f"[command line] {lookup.find_variable('TRAIN_STEPS').help}")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("explain", "t5x-small", "--accelerator", "h100"), 1),
        (("explain", "gpt-5b", "--accelerator", "h100"), 0),  # Pax has no TRAIN_STEPS
        (("explain", "PACK"), 0),
        (("run", "t5x-small", "--dry-run", "--accelerator", "h100"), 1),
        (("submit", "t5x-small", "--on", "slurm", "--dry-run", "--accelerator", "h100"), 1),
        (("tune", "t5x-small", "JAX_PLATFORMS=cpu", "--try", "nothing"), 1),
    ],
)
def test_misspelt_variables(
    words: tuple[str, ...],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Commands that read presets warn once of what their framework does not know."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROSETTA_SITE", "")
    monkeypatch.setenv("TRIAN_STEPS", "5")
    cli.main(words)
    lines = [line for line in capsys.readouterr().err.splitlines() if "TRIAN_STEPS" in line]
    assert len(lines) == count
    assert all(line.startswith("warning: TRIAN_STEPS ") for line in lines)
    assert all(f" rosetta {words[0]};" in line for line in lines)


def test_a_run_on_this_machine_warns_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rosetta run` starts `rosetta t5x`, which warns in the same terminal."""
    monkeypatch.setenv("TRIAN_STEPS", "5")
    monkeypatch.setenv("ROSETTA_SITE", "")
    monkeypatch.setenv("PATH", "/nowhere")
    words = ["run", "t5x-small", "--gpus-per-node", "1", "--accelerator", "h100"]
    with errors.expect_reported_error(errors.MISSING, value="rosetta"):
        assert cli.main(words) == 2
    assert "warning:" not in capsys.readouterr().err
