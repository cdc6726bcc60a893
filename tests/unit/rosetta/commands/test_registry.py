"""The commands of rosetta, their help and their examples."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rosetta import cli
from rosetta.commands.registry import PROGRAM
from tests.support.command_tree import check_registry, leaf_parsers

ROOT = Path(__file__).resolve().parents[4]
# Modules that a start of the command line may load before it loads the module of a command.
AT_START = {
    "rosetta",
    "rosetta.cli",
    "rosetta.commands",
    "rosetta.commands.registry",
    "rosetta.core",
    "rosetta.core.command_line",
    "rosetta.core.errors",
    "rosetta.core.exit_status",
    "rosetta.core.printable_text",
    "rosetta.core.secrets",
    "rosetta.core.value_parsing",
}
NAMES_ITS_MODULES = """
import sys
from rosetta import cli
try:
    cli.main(sys.argv[1:])
finally:
    print(*(name for name in sys.modules if name.partition(".")[0] == "rosetta"), file=sys.stderr)
"""


def loaded(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", NAMES_ITS_MODULES, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


def test_the_registry_is_complete() -> None:
    check_registry(PROGRAM, cli.parser())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["-V"]])
def test_the_help_of_the_program_needs_no_command(words: list[str]) -> None:
    assert loaded(*words) - {"rosetta.core.lock_record"} <= AT_START


@pytest.mark.parametrize("name", ["doctor", "run", "t5x"])
def test_a_command_loads_its_own_module_only(name: str) -> None:
    commands = {each for each in loaded(name, "--help") if each.startswith("rosetta.commands.")}
    assert commands == {"rosetta.commands.registry", PROGRAM.command(name).module}


def test_the_login_node_program_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"], PROGRAM.only("run", "submit", "spawn"))
    text = capsys.readouterr().out
    assert "operate machines:\n  spawn " in text
    assert "  doctor" not in text


@pytest.mark.parametrize(
    "example",
    [
        example
        for command in PROGRAM.commands
        for example in PROGRAM.format_examples(command)
        if command.name in ("explain", "doctor", "submit", "run")
    ],
)
def test_examples_that_run_anywhere_run(
    example: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert cli.main(shlex.split(example)[1:]) in (0, 1)


def test_all_commands_have_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, parser in leaf_parsers(cli.parser()):
        with pytest.raises(SystemExit):
            cli.main([*words, "--help"])
        out = capsys.readouterr().out
        assert out.startswith(f"usage: rosetta {' '.join(words)} ")
        assert parser.format_help().strip() == out.strip()
