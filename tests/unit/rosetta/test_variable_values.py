"""Every program, and every variable that it reads, with values that are not of the declared type.

Each value is one line that names the variable, and status 2, however it is given: as a word
NAME=VALUE or in the environment. The programs run in this process, up to what they would start.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rosetta import cli
from rosetta.commands import t5x as t5x_command
from rosetta.core.variables import lookup, readers
from rosetta.launch import pax_trainer, t5x_trainer
from tests.support.run_in_process import run_in_process
from tests.support.variable_values import refused_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.core.variables.declaration import Variable
    from tests.support.run_in_process import Ended

OVERLAY = Path(__file__).parents[3] / "overlay" / "t5x"
# Settings without which a program refuses something else first.
USUAL = {
    "t5x": {
        "T5_SIZE": "tiny",
        "DATA": "synthetic",
        "VOCAB": "byte",
        "CHECKPOINT_PATH": "missing",
        "OUTPUT_DIR": "out",
    },
    "pax": {"CONFIG": "Synthetic126M"},
}
PRESETS = {"t5x": "t5x-small", "pax": "synthetic-126m"}
# Commands that take a preset, with the words before it.
PRESET_COMMANDS = {
    readers.EXPLAIN: ("explain",),
    readers.RUN: ("run", "--dry-run", "--nodes", "1"),
    readers.SUBMIT: ("submit", "--on", "slurm", "--dry-run"),
    readers.TUNE: ("tune", "--try", "nothing"),
}
# Other commands that read variables, as far as they check them.
OTHERS = {
    readers.SELFTEST: ("selftest", "--imports-only"),
    readers.BENCH: ("bench", "t5"),
    readers.PROFILE: ("profile", "-o", "x", "--", "true"),
    readers.SPAWN: ("spawn", "--nodes", "2", "--coordinator", "host:1", "--", "true"),
    readers.PLAN: ("plan", "pax", "Synthetic126M"),
    readers.DATA: ("data", "check", "synthetic"),
    readers.ROSETTA: ("info",),
}


@dataclass(frozen=True)
class Program:
    """A program, and how it is given variables.

    Attributes:
      name: Its name, for the test.
      words: What is typed after `rosetta`, or after the name of the script.
      variables: Those that it reads.
      script: The script, or "" for `rosetta`.
      usual: Variables that it needs.
      by_word: Whether variables are words NAME=VALUE; else they are in the environment.
    """

    name: str
    words: tuple[str, ...]
    variables: tuple[Variable, ...]
    script: str = ""
    usual: Mapping[str, str] | None = None
    by_word: bool = False


def programs() -> Iterator[Program]:
    """Yield every program that reads variables."""
    for command in readers.RUNS:
        words, usual = (*command.split(), "--dry-run"), USUAL[command.split()[0]]
        settings = lookup.list_settings(command)
        yield Program(f"{command}, words", words, settings, usual=usual, by_word=True)
        yield Program(command, words, lookup.list_variables(command), usual=usual)
    for script, command in readers.SCRIPT_COMMANDS.items():
        usual = USUAL[command.split()[0]]
        yield Program(script, ("--dry-run",), lookup.list_variables(script), script, usual)
    for command, words in PRESET_COMMANDS.items():
        for framework, preset in PRESETS.items():
            name, typed = f"{command} {preset}", (*words, preset)
            settings = lookup.list_training_settings(framework)
            passed = tuple(variable for variable in settings if variable.passed_to_run)
            yield Program(f"{name}, words", typed, settings, by_word=True)
            yield Program(name, typed, (*passed, *lookup.list_variables(command)))
    for command, words in OTHERS.items():
        variables = (*lookup.list_variables(command), *lookup.list_variables(readers.ROSETTA))
        yield Program(command, words, tuple(dict.fromkeys(variables)))


PROGRAMS = {program.name: program for program in programs()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that passes for the one with the package t5x."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(OVERLAY / "t5x", folder / "t5x", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "t5x" / "train.py").touch()
    return folder


def run(program: Program, variable: str, value: str, tree: Path, folder: Path) -> Ended:
    """Run a program with one variable set to a value."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "JAX_PLATFORMS": "cpu",
        "PYTHON": sys.executable,
        "ROSETTA_DOCTOR": "0",
        **(program.usual or {}),
    }
    words = program.words
    if program.by_word:
        words = (*words, f"{variable}={value}")
    else:
        environment[variable] = value
    if not program.script:
        entry = functools.partial(cli.main, words)
    elif program.script.startswith("run_"):
        entry = functools.partial(pax_trainer.main, (program.script, *words))
    else:
        entry = functools.partial(t5x_trainer.main, (program.script, str(tree), *words))
    return run_in_process(entry, folder, environment)


def find_problem(program: Program, variable: str, value: str, tree: Path, folder: Path) -> str:
    """Return what is wrong with how a program refuses a value, "" if nothing is."""
    ended = run(program, variable, value, tree, folder)
    hidden = [each for each in ended.err[:-1] if unicodedata.category(each) in ("Cc", "Cf", "Cs")]
    if ended.status == 2 and not hidden and ended.err.endswith("\n") and variable in ended.err:
        return ""
    shown = value if len(value) < 20 else f"{value[:20]}..."
    return f"{variable}={shown!r}: status {ended.status}, {ended.err[-200:]!r}"


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not PROGRAMS[name].by_word])
def test_a_bad_value_of_every_variable(
    name: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad value of each variable of the environment, for every save."""
    monkeypatch.setattr(t5x_command, "_find_t5x_folder", lambda: str(tree))
    program = PROGRAMS[name]
    cases = [(each.name, refused_values(each)) for each in program.variables]
    problems = [
        find_problem(program, variable, values[0], tree, tmp_path)
        for variable, values in cases
        if values
    ]
    assert len(problems) >= 3
    assert [problem for problem in problems if problem] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_bad_values_of_every_variable(
    name: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(t5x_command, "_find_t5x_folder", lambda: str(tree))
    program = PROGRAMS[name]
    problems = [
        find_problem(program, variable.name, value, tree, tmp_path)
        for variable in program.variables
        for value in refused_values(variable)
    ]
    assert [problem for problem in problems if problem] == []


@pytest.mark.parametrize("command", [readers.T5X_PRETRAIN, readers.PAX_TRAIN, *PRESET_COMMANDS])
def test_the_programs_refuse_no_valid_value(
    command: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a refusal would not be one of the value."""
    monkeypatch.setattr(t5x_command, "_find_t5x_folder", lambda: str(tree))
    names = [name for name in PROGRAMS if f"{name} ".startswith(f"{command} ")]
    for name in names:
        if PROGRAMS[name].by_word:
            continue
        ended = run(PROGRAMS[name], "TRAIN_STEPS", "", tree, tmp_path)
        assert ended.status == (2 if command == readers.TUNE else 0), ended.err
        assert command != readers.TUNE or "nothing" in ended.err
    assert names
