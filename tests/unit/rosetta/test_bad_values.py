"""Every argument of every command, and variables, with values that nobody should give.

Each ends in one line and status 2, or in an answer, and never in a traceback. In process, without JAX, network and GPUs.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from rosetta import cli
from rosetta.commands import t5x as t5x_command
from rosetta.core.errors import UserError
from tests.support.command_tree import VARIABLES, dry_run, leaf_parsers

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

if importlib.util.find_spec("jax"):
    pytest.skip(
        "NOT CHECKED here: this environment has JAX, with which some commands compile; checked without it",
        allow_module_level=True,
    )

OVERLAY = Path(__file__).parents[3] / "overlay" / "t5x"
NUMBERS = (
    "x",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "²",
    "٣",
    "1.5.2",
    "9" * 5000,
    "0x10",
    "1;5",
    "1\n",
    " ",
    "\udcff",
    "\x1b[31m",
)
PATHS = ("/", ".", "missing/x", "/dev/full", "/dev/null/x", "../../etc/passwd", "a" * 5000, "-")
ADDRESSES = (
    "host:99999",
    ":",
    "https://[::1/x",
    "s3://",
    "gs://",
    "hf:",
    "text:",
    "text:/dev/full",
    "jsonl:missing",
)
NAMES = ("", " ", "\n", "\udcff", "\x1b[31m\u202e", "nosuch", "=", "A=", "٣")
LISTS = ("[1,", "{", "(((", "a,,b", "'", ",")
TEXTS = (*PATHS, *ADDRESSES, *NAMES, *LISTS)
VARIABLE_TEXTS = (
    "",
    "/dev/full",
    "a" * 5000,
    "text:/dev/full",
    "\n",
    "\udcff",
    "\x1b[31m\u202e",
    "nosuch",
    "[1,",
    "'",
)  # some: each command has sixty variables
# Arguments without which a command does not look at the others.
POSITIONALS = {
    "t5x": ["pretrain"],
    "new t5x": ["m"],
    "pax": ["train"],
    "data check": ["text:missing"],
    "data show": ["text:missing"],
    "data cache": ["text:missing"],
    "vocab show": ["missing"],
    "plan pax": ["Synthetic126M"],
    "convert llama": ["missing", "out"],
    "tune": ["t5x-small"],
    "run": ["t5x-small"],
    "submit": ["t5x-small"],
    "explain": ["t5x-small"],
    "profile": ["true"],
    "spawn": ["true"],
}
OPTIONS = {
    "new t5x": {"--vocab": "byte", "--data": "text:x"},
    "data cache": {"--out": "o"},
    "vocab train": {"--data": "text:missing", "--out": "o"},
    "submit": {"--on": "slurm"},
}
READS_OTHERS = {"doctor"}  # whose answer is status 1 where something is in the way


def argument_cases() -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield each argument: its name, a command line with a place `{}` for its value, and whether it takes numbers."""
    for words, parser in leaf_parsers(cli.build_parser()):
        name = " ".join(words)
        positionals, options = POSITIONALS.get(name, []), OPTIONS.get(name, {})
        for action in parser._actions:
            others = [
                f"{option}={value}"
                for option, value in options.items()
                if option not in action.option_strings
            ]
            start = (*words, *dry_run(parser), *others)
            numeric = action.type not in (None, str, Path)
            if action.nargs == 0:
                continue
            if action.option_strings:
                option = action.option_strings[-1]
                given = f"{option}={{}}" if option.startswith("--") else f"{option}{{}}"
                yield f"{name} {option}", (*start, given, "--", *positionals), numeric
            else:
                index = [other for other in parser._actions if not other.option_strings].index(
                    action
                )
                yield (
                    f"{name} {action.dest}",
                    (*start, "--", *positionals[:index], "{}", *positionals[index + 1 :]),
                    numeric,
                )


CASES = {name: (line, numeric) for name, line, numeric in argument_cases()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that passes for the one with the package t5x: what rosetta lays over it, without upstream's files."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(OVERLAY / "t5x", folder / "t5x", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "t5x" / "train.py").touch()
    return folder


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: Path) -> Iterator[None]:
    """Start no program, reach no network, see no GPU and no settings of the machine, and refuse memory rather than read a device for ever."""

    def start_nothing(*words: Any, **_: Any) -> NoReturn:
        if "nvidia-smi" in str(words):
            raise FileNotFoundError(2, "No such file or directory", "nvidia-smi")
        raise UserError(
            f"this test does not start {words[:1]!r}"[:200], "test", "look at the words"
        )

    def refuse_connection(*_: Any, **__: Any) -> NoReturn:
        raise ConnectionRefusedError(111, "Connection refused")

    for name in ("execv", "execve", "execvp", "execvpe", "fork"):
        monkeypatch.setattr(os, name, start_nothing)
    for name in ("run", "Popen"):
        monkeypatch.setattr(subprocess, name, start_nothing)
    monkeypatch.setattr(socket.socket, "connect", refuse_connection)
    monkeypatch.setattr(socket, "getaddrinfo", refuse_connection)
    monkeypatch.setattr(t5x_command, "_find_t5x_folder", lambda: str(tree))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROSETTA_DOCTOR", "0")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def problem(words: list[str], capfd: pytest.CaptureFixture[str], *, numeric: bool) -> str:
    """Run a command; return what is wrong with how it ends, empty where nothing is."""
    capfd.readouterr()
    try:
        status = cli.main(words)
    except SystemExit as error:
        status = int(error.code or 0)
    captured = capfd.readouterr()
    lines = captured.err.replace(
        "rosetta: trying the preset as it is\n", ""
    )  # of tune, before it starts what this test does not start
    accepted = (2,) if numeric else (0, 1, 2) if words[0] in READS_OTHERS else (0, 2)
    if status not in accepted or "Traceback" in captured.err:
        return f"status {status}: {captured.err[-300:]!r}"
    if status == 2 and not re.fullmatch(r"rosetta[: ].+\n", lines):
        return f"{captured.err.count(chr(10))} lines: {captured.err[-300:]!r}"
    hidden = {
        character
        for character in captured.err
        if unicodedata.category(character) in ("Cc", "Cf", "Cs")
    } - {"\n", "\t"}
    return f"hidden characters {hidden}" if hidden else ""


def problems(
    line: tuple[str, ...],
    values: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    *,
    numeric: bool,
) -> list[str]:
    """Return what is wrong with a command for each of the values."""
    outcomes = {
        value: problem([word.replace("{}", value) for word in line], capfd, numeric=numeric)
        for value in values
    }
    return [f"{value[:40]!r}: {outcome}" for value, outcome in outcomes.items() if outcome]


@pytest.mark.parametrize("name", CASES)
def test_each_argument_of_each_command(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    line, numeric = CASES[name]
    wrong = problems(line, NUMBERS if numeric else TEXTS, capfd, numeric=numeric)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", VARIABLES, ids=" ".join)
def test_each_variable_with_hostile_texts(
    command: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Some are valid. test_variable_values.py has the values that are not valid by their type."""
    usual = (
        {"T5_SIZE": "small", "DATA": "synthetic", "VOCAB": "byte"}
        if command[0] == "t5x"
        else {"CONFIG": "Synthetic126M"}
    )
    wrong = []
    for name in dict.fromkeys(VARIABLES[command]):
        others = [f"{other}={value}" for other, value in usual.items() if other != name]
        line = (*command, "--dry-run", *others, f"{name}={{}}")
        wrong += [f"{name}={text}" for text in problems(line, VARIABLE_TEXTS, capfd, numeric=False)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", [("t5x", "pretrain"), ("pax", "train")], ids=" ".join)
def test_the_command_lines_are_valid_except_for_the_value(
    command: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a refusal of a value would be one of something else."""
    usual = (
        ("T5_SIZE=small", "DATA=synthetic", "VOCAB=byte")
        if command[0] == "t5x"
        else ("CONFIG=Synthetic126M",)
    )
    assert cli.main([*command, "--dry-run", *usual]) == 0, capfd.readouterr().err
