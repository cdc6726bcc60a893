"""Every option and argument of every command, with values that nobody should give.

Each ends in one line and status 2, or in an answer, and never in a fault of ours. In process,
without network and engines, on a copy of the manifest and an empty cache.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import socket
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from builder import cli
from builder.commands.registry import PROGRAM
from rosetta.core.variables import lookup, readers
from tests.support.variable_values import refused_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.core.variables.declaration import Variable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
NUMBERS = ["", "x", "-1", "nan", "inf", "1e999", "²", "1.5.2", "9" * 5000, "0x10", "1,5", "\udcff"]
TEXTS = [
    "",
    " ",
    "\n",
    "-",
    ":",
    "/",
    "../../etc",
    "/dev/null/x",
    "/dev/full",
    "a" * 5000,
    "\udcff",
    "\x1b[31m\u202e",
    "nosuch",
    "oci:",
    "oci:/dev/null",
    "https://me:hunter2@[::1/x",
    "host:99999/a/b",
    "localhost:1/a/b@sha256:" + "0" * 63,
    "sha256:" + "g" * 64,
    "linux/amd64,,linux/amd64",
    "2027-02-30",
    "٣.١١",
]
# What else a command needs so that the tested value is looked at, and nothing long is done with it.
OTHERS = {
    "build": ["--distribution", "t5x", "--dry-run"],
    "quickstart": ["--distribution", "t5x"],
    "verify": [],
    "lock": ["--check"],
    "patches": [],
    "bump": ["--forecast"],
    "bisect": ["--status"],
    "wheel": [],
    "publish": ["--dry-run"],
    "nightly": ["--only", "report"],
}
POSITIONALS = {
    "verify": ["env:nosuch"],
    "wheel": ["transformer-engine"],
    "context": ["t5x", "context"],
    "publish": ["oci:nosuch"],
    "verify-published": ["localhost:1/a/b"],
    "promote": ["localhost:1/a/b@sha256:" + "0" * 64],
    "changelog": ["localhost:1/a/b", "localhost:1/a/c"],
    "reproduce": ["oci:nosuch"],
    "patches import": ["abc1234"],
}
REQUIRED = {
    "--to": "localhost:1/a/b",
    "--key": "nosuch.pem",
    "--suite": "s",
    "--result": "nosuch.json",
}
NOT_RUN = {"test"}  # it would run all tests, this one too


def _commands() -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command and the parser of its own options."""
    for verb in PROGRAM.names:
        parser = cli.make_command_parser(verb)
        below = [
            action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
        ]
        if not below:
            yield (verb,), parser
        for action in below:
            for name, sub in action.choices.items():
                yield (verb, name), sub


def _cases() -> Iterator[tuple[str, list[str]]]:
    """The name of each tested value's place, and the words around the value "VALUE"."""
    shared = {
        option for action in cli.make_shared_parser()._actions for option in action.option_strings
    }
    for command, parser in _commands():
        if command[0] in NOT_RUN:
            continue
        words = [*command, *OTHERS.get(command[0], [])]
        positionals = POSITIONALS.get(" ".join(command), [])
        required = {
            action.option_strings[-1]: REQUIRED[action.option_strings[-1]]
            for action in parser._actions
            if action.option_strings and action.required
        }
        for action in parser._actions:
            if action.nargs == 0 or (command[0] != "build" and shared & set(action.option_strings)):
                continue
            others = [
                part
                for option, value in required.items()
                if option not in action.option_strings
                for part in (option, value)
            ]
            if action.option_strings:
                yield (
                    f"{' '.join(command)} {action.option_strings[-1]}",
                    [*words, *others, f"{action.option_strings[-1]}=VALUE", *positionals],
                )
            elif not isinstance(action, argparse._SubParsersAction):
                at = [each for each in parser._actions if not each.option_strings].index(action)
                given = [*positionals[:at], "VALUE", *positionals[at + 1 :]]
                yield (
                    f"{' '.join(command)} {action.metavar or action.dest}",
                    [*words, *others, "--", *given],
                )


CASES = dict(_cases())


@functools.cache
def _is_number(place: str) -> bool:
    return (
        any(word in place for word in ("--days", "--steps", "--repeat", "--jobs", "--keep"))
        or place == "bump --log"
    )


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad-values")
    shutil.copyfile(ROOT / "manifest.yaml", folder / "manifest.yaml")
    for name in ("patches", "overlay", "locks"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "bin").mkdir()
    (folder / "bin/git").symlink_to(shutil.which("git") or "/usr/bin/git")
    return folder


@pytest.fixture(autouse=True)
def alone(workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, no engine, no settings of the machine, and no waiting."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise ConnectionRefusedError(111, "Connection refused")

    sleeps: list[float] = []

    def count(seconds: float) -> None:
        sleeps.append(seconds)
        assert len(sleeps) < 100, "it waits for something"

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(time, "sleep", count)
    monkeypatch.setenv("PATH", str(workplace / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROSETTA_CACHE", str(workplace / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("place", CASES)
def test_a_bad_value_is_one_line(
    place: str, workplace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for value in NUMBERS if _is_number(place) else TEXTS:
        argv = [word.replace("VALUE", value) for word in CASES[place]]
        at = argv.index("--") if "--" in argv else len(argv)
        argv[at:at] = [
            "--offline",
            *([] if "--manifest" in place else ["--manifest", str(workplace / "manifest.yaml")]),
        ]
        status = cli.main(argv)
        shown = capfd.readouterr()
        if problem := _problem(status, shown.out, shown.err, number=_is_number(place)):
            wrong.append(f"{value[:60]!r}: {problem}: {shown.err[-300:]!r}")
    assert not wrong, "\n".join(wrong)
    assert not [each for each in os.listdir(tmp_path) if each.startswith("rosetta-error-")]


@pytest.mark.parametrize(
    "variable", lookup.list_variables(readers.BUILDER), ids=lambda variable: variable.name
)
def test_a_bad_value_of_a_variable_is_one_line(
    variable: Variable,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every command refuses it, before it does anything."""
    manifest = ["--offline", "--manifest", str(workplace / "manifest.yaml")]
    for value in refused_values(variable):
        monkeypatch.setenv(variable.name, value)
        assert cli.main(["cache", "du", *manifest]) == 2
        shown = capfd.readouterr()
        assert variable.name in shown.err
        assert _problem(2, shown.out, shown.err, number=True) == ""


def _problem(status: int, out: str, err: str, *, number: bool) -> str:
    """What is wrong with an answer; empty where nothing is."""
    if "Traceback" in err or status not in ((2,) if number else (0, 1, 2)):
        return f"status {status}"
    lines = [line for line in err.splitlines() if line.startswith("rosetta: ")]
    if status == 2 and (len(lines) != 1 or not err.endswith(f"{lines[0]}\n")):
        return f"{len(lines)} lines"
    if "hunter2" in out + err:
        return "a secret is shown"
    hidden = {
        character
        for character in out + err
        if unicodedata.category(character) in ("Cc", "Cf", "Cs")
    } - {"\n", "\t"}
    return f"hidden characters {hidden}" if hidden else ""
