"""Completion of rosetta's commands in real shells, from files that the builder makes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rosetta import cli
from rosetta.commands import completion
from rosetta.core import gpus
from rosetta.core.commands import PROGRAM
from rosetta.core.variables import lookup, readers
from rosetta.presets import preset_files
from tests.support import interactive_shell
from tests.support.command_tree import leaf_parsers

if TYPE_CHECKING:
    from collections.abc import Iterator

if not importlib.util.find_spec("shtab"):
    pytest.skip("NOT CHECKED here: shtab is the builder's", allow_module_level=True)

import shtab

SHELLS = {name: shutil.which(name) for name in completion.SHELLS}


def make_file(shell: str, folder: Path) -> Path:
    """Write the completion file of a shell; zsh finds its own by the name."""
    file = folder / ("_rosetta" if shell == "zsh" else "rosetta")
    file.write_text(completion.make(shell, cli.build_parser(), shtab.complete))
    return file


def bash(file: Path, program: str) -> list[str]:
    """Return the lines that a program of bash prints after it has read the completion file."""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source '{file}'\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def bash_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_file("bash", tmp_path_factory.mktemp("bash"))


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_file_is_valid_shell_code(shell: str, tmp_path: Path) -> None:
    if not SHELLS[shell]:
        pytest.skip(f"NOT CHECKED: this machine has no {shell}")
    file = make_file(shell, tmp_path)
    subprocess.run([shell, "-n", str(file)], check=True, capture_output=True)


@pytest.mark.parametrize("command", readers.RUNS)
def test_bash_completes_every_setting_and_choice(command: str, bash_file: Path) -> None:
    function = f"_rosetta_of_{command.replace(' ', '_')}"
    settings = lookup.list_settings(command)
    assert bash(bash_file, f"{function} ''") == [f"{each.name}=" for each in settings]
    with_choices = [each for each in settings if each.type.choices and not each.type.completes]
    program = "\n".join(f"{function} {each.name}=" for each in with_choices)
    expected = [f"{each.name}={choice}" for each in with_choices for choice in each.type.choices]
    assert bash(bash_file, program) == expected
    assert len(expected) > 20


def test_bash_completes_names_and_paths(bash_file: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "my file.model").touch()
    cases = {
        "_rosetta_presets ''": list(preset_files.load_presets()),
        "_rosetta_gpus ''": list(gpus.GPUS),
        "_rosetta_presets_and_settings t5x-s": ["t5x-small"],
        "_rosetta_presets_and_settings PAC": ["PACK="],
        "_rosetta_of_presets PREC=": ["PREC=bfloat16", "PREC=float32", "PREC=float16"],
        f"_rosetta_of_t5x_pretrain MODEL_DIR={tmp_path}/": [f"MODEL_DIR={tmp_path}/folder/"],
        f"_rosetta_of_t5x_pretrain VOCAB={tmp_path}/m": [f"VOCAB={tmp_path}/my\\ file.model"],
        "_rosetta_of_t5x_pretrain DATA=js": ["DATA=jsonl:"],
        f"_rosetta_of_t5x_pretrain DATA=jsonl:{tmp_path}/f": [f"DATA=jsonl:{tmp_path}/folder/"],
        f"_rosetta_data text:{tmp_path}/f": [f"text:{tmp_path}/folder/"],
        "_rosetta_of_t5x_pretrain ROSETTA_PRESET=gpt-5": ["ROSETTA_PRESET=gpt-5b"],
    }
    for program, expected in cases.items():
        assert bash(bash_file, program) == expected, program


def test_every_command_and_option_is_in_the_files(bash_file: Path) -> None:
    """shtab has them from the real parsers."""
    text = bash_file.read_text()
    for words, parser in leaf_parsers(cli.build_parser()):
        name = "_".join(("_shtab_rosetta", *words)).replace("-", "_")
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name}_option_strings=")]
        options = [name for action in parser._actions for name in action.option_strings]
        assert line.partition("(")[2].rstrip(")").split() == options
    line = next(line for line in text.splitlines() if line.startswith("_shtab_rosetta_subparsers="))
    assert sorted(line.partition("(")[2].rstrip(")").split()) == sorted(PROGRAM.names)


@contextlib.contextmanager
def started_shell(name: str, folder: Path) -> Iterator[interactive_shell.Shell]:
    """Start an interactive shell that has read its completion file, in a folder with some data."""
    program = SHELLS[name]
    if not program:
        pytest.skip(f"NOT CHECKED: this machine has no {name}")
    file = make_file(name, folder)
    work = folder / "work"
    (work / "corpus").mkdir(parents=True)
    (work / "corpus" / "a b.txt").touch()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "vt100"}
    starts = {
        "bash": ((program, "--norc", "--noprofile", "-i"), (f"source {file}",)),
        "zsh": (
            (program, "-f", "-i"),
            (f"fpath=({folder} $fpath)", "autoload -Uz compinit", "compinit -u -D"),
        ),
    }
    argv, setup = starts[name]
    with interactive_shell.start_shell(argv, environment, work, *setup) as started:
        yield started


@pytest.fixture(scope="module", params=completion.SHELLS)
def shell(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[interactive_shell.Shell]:
    """Return one interactive shell of each kind."""
    with started_shell(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("rosetta t5x pre\t", ["t5x", "pretrain"]),
        ("rosetta pax bo\t", ["pax", "boolq"]),
        ("rosetta t5x pretrain T5_SIZE=sm\t", ["t5x", "pretrain", "T5_SIZE=small"]),
        (
            "rosetta t5x pretrain T5_SIZE=small PAC\t1 MODEL_D\tcor\t",
            ["t5x", "pretrain", "T5_SIZE=small", "PACK=1", "MODEL_DIR=corpus/"],
        ),
        (
            "rosetta t5x pretrain DATA=te\tcor\ta\t VOCAB=by\t",
            ["t5x", "pretrain", "DATA=text:corpus/a b.txt", "VOCAB=byte"],
        ),
        ("rosetta t5x pretrain --dry\t", ["t5x", "pretrain", "--dry-run"]),
        ("rosetta t5x eval PAC\t", ["t5x", "eval", "PAC"]),  # it does not read PACK
        ("rosetta pax train PREC=float16\t", ["pax", "train", "PREC=float16"]),
        ("rosetta explain gpt-5\t --acc\tb30\t", ["explain", "gpt-5b", "--accelerator", "b300"]),
        ("rosetta explain t5x-small TRAIN_S\t7", ["explain", "t5x-small", "TRAIN_STEPS=7"]),
        ("rosetta run t5x-s\t --on do\t", ["run", "t5x-small", "--on", "docker"]),
        ("rosetta selftest --framework t\t", ["selftest", "--framework", "t5x"]),
        ("rosetta data check te\tcor\t", ["data", "check", "text:corpus/"]),
        ("rosetta convert llama cor\t", ["convert", "llama", "corpus/"]),
    ],
)
def test_completion_while_typing(
    keys: str, words: list[str], shell: interactive_shell.Shell
) -> None:
    typed = shell.type(keys)
    # zsh takes the slash of a folder away again when the line ends.
    assert [word.rstrip("/") for word in typed] == [word.rstrip("/") for word in words]


@pytest.mark.slow
def test_bash_completes_a_value_after_an_option_with_an_equals_sign(tmp_path: Path) -> None:
    with started_shell("bash", tmp_path) as shell:
        typed = shell.type("rosetta explain t5x-small --accelerator=gh\t --nodes=2 TRAIN_S\t5")
    assert typed == ["explain", "t5x-small", "--accelerator=gh200", "--nodes=2", "TRAIN_STEPS=5"]


@pytest.mark.slow
def test_bash_completes_words_that_it_does_not_split(tmp_path: Path) -> None:
    """Some people take = and : out of COMP_WORDBREAKS."""
    with started_shell("bash", tmp_path) as shell:
        shell.send("COMP_WORDBREAKS=${COMP_WORDBREAKS//[:=]/}\n")
        typed = shell.type("rosetta t5x pretrain T5_SIZE=sm\t DATA=te\tcor\t --profile=1:2")
        option = shell.type("rosetta explain t5x-small --accelerator=gh\t")
    assert typed == ["t5x", "pretrain", "T5_SIZE=small", "DATA=text:corpus/", "--profile=1:2"]
    assert option == ["explain", "t5x-small", "--accelerator=gh200"]
