"""No secret leaves a process: not by a message, a dry run, a refusal or a document."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.core import log, secrets
from rosetta.core.errors import UserError
from tests.support.command_tree import VARIABLES, dry_run, leaf_parsers, required_positionals

pytestmark = pytest.mark.slow

MARK = "hunter2"
ADDRESS = f"https://me:PW-{MARK}@host.example/a?X-Amz-Signature=AMZ-{MARK}&sig=SAS-{MARK}"
SECRETS = (
    ADDRESS,
    f"text:{ADDRESS}",
    f"hf:{ADDRESS}",
    f"s3://ID-{MARK}:PW/{MARK}@host.example/a",
    f"gs://bucket/a?X-Goog-Signature=G-{MARK}&X-Goog-Credential=C-{MARK}",
)


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Raise an error with the command line instead of starting a program.

    The error is then searched for secrets, too.
    """

    def refuse(*words: Any, **_: Any) -> None:
        raise UserError(f"this test does not start {words[:2]}", "test", "look at the words")

    for name in ("execv", "execve", "execvp", "execvpe", "fork"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def takes_text(action: argparse.Action) -> bool:
    """Return whether an argument may be an address or a path."""
    return action.nargs != 0 and not action.choices and action.type in (None, str, Path)


def command_lines() -> Iterator[tuple[str, ...]]:
    """Yield a command line for each text argument of each command, with `{}` for the text.

    The command line is a dry run if the command has dry runs.
    """
    for words, parser in leaf_parsers(cli.build_parser()):
        dry = dry_run(parser)
        required = required_positionals(parser)
        fill = [
            (str(next(iter(action.choices))) if action.choices else "{}")
            for action in required
            if action.nargs not in ("*", "...")
        ]
        for option in (
            action
            for action in parser._actions
            if action.option_strings and action.required and action.choices
        ):
            dry += (f"{option.option_strings[-1]}={next(iter(option.choices or ()))}",)
        if fill or any(
            takes_text(action) and not action.option_strings for action in parser._actions
        ):
            yield (*words, *dry, *(fill or ["{}"]))
        for action in parser._actions:
            if action.option_strings and takes_text(action):
                yield (*words, *dry, f"{action.option_strings[-1]}={{}}", *fill)
    for place in ("run", "explain"):
        for name in ("t5x-small", "gpt-126m"):
            for setting in (
                "DATA",
                "EVAL_DATA",
                "VOCAB",
                "VOCAB_PATH",
                "MODEL_DIR",
                "LOG_DIR",
                "TFDS_DATA_DIR",
                "INITIAL_CHECKPOINT_PATH",
            ):
                yield (place, *(("--dry-run",) if place == "run" else ()), name, setting + "={}")


LINES = sorted(set(command_lines()))


def run_command(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    with contextlib.suppress(SystemExit):
        cli.main(words)
    captured = capfd.readouterr()
    return captured.out + captured.err


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_each_argument_of_each_command(
    line: tuple[str, ...], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for secret in SECRETS:
        for extra in ((), ("--json",)):
            shown = run_command([*(word.replace("{}", secret) for word in line), *extra], capfd)
            assert MARK not in shown
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or MARK not in path.read_text(errors="replace")


@pytest.mark.parametrize("command", VARIABLES, ids=" ".join)
def test_each_variable(
    command: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    for name in sorted(set(VARIABLES[command])):
        for secret in SECRETS:
            with monkeypatch.context() as patched:
                patched.setenv(name, secret)
                assert MARK not in run_command([*command, "--dry-run"], capfd), name
            assert MARK not in run_command([*command, "--dry-run", f"{name}={secret}"], capfd), name


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "DB_PASSWORD",
        "hf_token",
    ],
)
def test_secret_variables(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Their values are hidden also where they stand in something else."""
    monkeypatch.setenv(name, f"value-{MARK}")
    for line in (
        ["explain", "t5x-small", f"MODEL_DIR=/runs/value-{MARK}"],
        ["convert", "llama", f"/value-{MARK}", "out"],
        ["run", f"value-{MARK}", "--dry-run"],
        [f"value-{MARK}"],
    ):
        assert MARK not in run_command(line, capfd)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:PW@host/x", "https://...@host/x"),
        ("https://me:P/W@host/x", "https://...@host/x"),
        ("https:/me:PW@host/x", "https:/...@host/x"),
        ("https://token@host/x", "https://...@host/x"),
        ("https://host/x?X-Amz-Signature=abc&part=1", "https://host/x?X-Amz-Signature=...&part=1"),
        ("https://host/x?se=1&sig=abc", "https://host/x?se=1&sig=..."),
        ("HF_TOKEN=abc", "HF_TOKEN=..."),
        ('{"a": "Authorization: Bearer abc"}', '{"a": "Authorization: Bearer ..."}'),
        (
            "-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----\n",
            "... (a private key)\n",
        ),
        ("give KEY=VALUE", "give KEY=VALUE"),
        ("https://host/a.git@" + "0" * 40, "https://host/a.git@" + "0" * 40),
        (
            "docker://localhost:5000/t5x@sha256:" + "0" * 64,
            "docker://localhost:5000/t5x@sha256:" + "0" * 64,
        ),
        ("s3://host/x@y", "s3://host/x@y"),
        ("text:/data/me@corp/a.txt", "text:/data/me@corp/a.txt"),
        ("TOKENIZER=a KEYS=b MONKEY=c", "TOKENIZER=a KEYS=b MONKEY=c"),
        ("$oauthtoken@nvcr.io#nvidia/jax:24.04-py3", "$oauthtoken@nvcr.io#nvidia/jax:24.04-py3"),
    ],
)
def test_forms(text: str, shown: str) -> None:
    assert secrets.hide_forms(text) == shown
    assert secrets.hide_forms(shown) == shown


def test_lines_for_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Progress is written past sys.stderr, where that is a log."""
    into, out = os.pipe()
    monkeypatch.setenv(log.TERMINAL_VARIABLE, str(out))
    log.info(f"reading {ADDRESS}")
    os.close(out)
    with os.fdopen(into) as terminal:
        assert MARK not in terminal.read()
    assert MARK not in capfd.readouterr().err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters() -> None:
    text = "a\x1b[31m\u202eb\tc\udcff\n"
    for below, shown in (
        (_Terminal(), "a\\x1b[31m\\u202eb\tc\\udcff\n"),
        (io.StringIO(), "a\x1b[31m\u202eb\tc\\udcff\n"),
    ):
        secrets.RedactedStream(below, escaped=True).write(text)
        assert below.getvalue() == shown
    trainers = _Terminal()
    secrets.RedactedStream(trainers).write("\x1b[32m50 %\r")
    assert trainers.getvalue() == "\x1b[32m50 %\r", "what other libraries print stays as it is"


def test_an_error_is_one_visible_line() -> None:
    assert (
        str(UserError("not\na number", "A=\x1b[31m", "give\u202e one"))
        == "A=\\x1b[31m: not\\na number; give\\u202e one"
    )


def test_other_methods_are_those_of_the_wrapped_stream() -> None:
    below = io.StringIO()
    stream = secrets.RedactedStream(below)
    assert stream.write(ADDRESS) == len(ADDRESS)
    stream.writelines(["a\n", f"{ADDRESS}\n"])
    assert MARK not in below.getvalue()
    assert not stream.isatty()
