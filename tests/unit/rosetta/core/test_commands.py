"""The commands of rosetta, their help and their examples."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rosetta import cli
from rosetta.core.commands import PROGRAM
from rosetta.core.variables import lookup, readers
from tests.support.command_tree import (
    check_registry,
    check_variables_in_help,
    leaf_parsers,
    reading_commands,
)

ROOT = Path(__file__).resolve().parents[4]
# Modules that a start of the command line may load before it loads the module of a command.
AT_START = {
    "rosetta",
    "rosetta.cli",
    "rosetta.core",
    "rosetta.core.command_line",
    "rosetta.core.commands",
    "rosetta.core.errors",
    "rosetta.core.exit_status",
    "rosetta.core.json_document",
    "rosetta.core.printable_text",
    "rosetta.core.secrets",
    "rosetta.core.value_parsing",
}
PRINT_MODULES = """
import sys
from rosetta import cli
try:
    cli.main(sys.argv[1:])
finally:
    print(*(name for name in sys.modules if name.partition(".")[0] == "rosetta"), file=sys.stderr)
"""


def list_loaded_modules(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_MODULES, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


def test_the_registry_is_complete() -> None:
    check_registry(PROGRAM, cli.build_parser())


def test_help_describes_the_variables_of_a_command() -> None:
    check_variables_in_help(PROGRAM, cli.build_parser())


def test_readers_of_variables_are_commands() -> None:
    """A misspelt reader in the table would leave a variable out of every help."""
    leaves = [" ".join(words) for words, _ in leaf_parsers(cli.build_parser())]
    programs = {readers.ROSETTA, readers.TRAINER, readers.IMAGE, *readers.SLURM_FILES}
    programs |= set(readers.SCRIPT_COMMANDS)
    for name in {name for variable in lookup.TABLE for name in variable.read_by} - programs:
        if "build.py" not in name:
            assert any(f"{leaf} ".startswith(f"{name} ") for leaf in leaves), name
    reading = reading_commands(PROGRAM, cli.build_parser())
    assert len(reading["t5x pretrain"]) > 50
    assert reading["t5x pretrain"] != reading["t5x eval"]


@pytest.mark.parametrize(
    "words",
    [
        ("--dry-run", "pretrain", "--json", "T5_SIZE=small"),
        ("T5_SIZE=small", "--json", "--dry-run", "pretrain"),
        ("--profile", "1:2", "pretrain", "T5_SIZE=small"),
    ],
)
def test_options_may_be_written_before_a_subcommand(words: tuple[str, ...]) -> None:
    """Older scripts do so, because `pretrain` was once an ordinary argument."""
    args = cli.build_parser("t5x").parse_args(["t5x", *words])
    assert (args.what, args.settings) == ("pretrain", ["T5_SIZE=small"])
    assert args.dry_run == ("--dry-run" in words)
    assert args.json == ("--json" in words)
    assert args.profile == ("1:2" if "--profile" in words else None)


@pytest.mark.parametrize("option", ["--help", "--version", "-V"])
def test_the_help_of_the_program_needs_no_command(option: str) -> None:
    """The help also loads the table of variables."""
    loaded = {name for name in list_loaded_modules(option) if name not in AT_START}
    assert loaded <= {"rosetta.core.lock_record"} or option == "--help"
    assert all(name.startswith("rosetta.core.") for name in loaded)


@pytest.mark.parametrize("name", ["doctor", "run", "t5x"])
def test_a_command_loads_its_own_module_only(name: str) -> None:
    modules = list_loaded_modules(name, "--help")
    commands = {module for module in modules if module.startswith("rosetta.commands.")}
    assert commands == {PROGRAM.find_command(name).module}


def test_the_login_node_program_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"], PROGRAM.keep_commands("run", "submit", "spawn"))
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
    for words, parser in leaf_parsers(cli.build_parser()):
        with pytest.raises(SystemExit):
            cli.main([*words, "--help"])
        out = capsys.readouterr().out
        assert out.startswith(f"usage: rosetta {' '.join(words)} ")
        assert parser.format_help().strip() == out.strip()
