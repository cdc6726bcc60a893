"""The commands of build.py, their help and their examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from builder import cli
from builder.commands.registry import PROGRAM
from tests.support.command_tree import (
    check_registry,
    check_variables_in_help,
    leaf_parsers,
)

ROOT = Path(__file__).resolve().parents[4]
NAMES_ITS_MODULES = """
import sys
from builder import cli
cli.main(sys.argv[1:])
print(*(name for name in sys.modules if name.startswith("builder.")), file=sys.stderr)
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
    check_registry(PROGRAM, cli.make_parser())


def test_help_describes_the_variables_of_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_variables_in_help(PROGRAM, cli.make_parser())
    assert cli.main(["publish", "--help"]) == 0
    assert "\n  ROSETTA_KEY_PASSWORD=PASSWORD" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["-V"]])
def test_the_help_of_the_program_needs_no_command(words: list[str]) -> None:
    assert loaded(*words) <= {
        "builder.cli",
        "builder.commands",
        "builder.commands.registry",
        "builder.core",
        "builder.core.cache_folder",
        "builder.core.log",
        "builder.core.secrets",
    }


@pytest.mark.parametrize("name", ["cache", "verify-published"])
def test_a_command_loads_its_own_module_only(name: str) -> None:
    commands = {each for each in loaded(name, "--help") if each.startswith("builder.commands.")}
    assert commands == {"builder.commands.registry", PROGRAM.find_command(name).module}


def test_all_commands_have_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, _ in leaf_parsers(cli.make_parser()):
        assert cli.main([*words, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"usage: build.py {' '.join(words)} ")
        assert f"examples:\n  python3 build.py {' '.join(words)}" in out
