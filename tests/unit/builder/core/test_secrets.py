"""No secret in any output: of every verb, by every option, variable and place that takes an address, a path or a key."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import socket
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from builder import cli
from builder.commands.registry import PROGRAM
from builder.core import secrets
from builder.images.registry import transport
from tests.support.published_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.core.cache import Cache

pytestmark = pytest.mark.slow

MARK = "Sekret7Hunter2Marked"
_BODY = f"MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg{MARK}"
FORMS = {
    "url": f"https://me:{MARK}@host.example/team/thing:tag",
    "url with a digest": f"https://me:{MARK}@host.example/team/thing@sha256:{'0' * 64}",
    "registry": f"registry:me:{MARK}@host.example/team/thing:tag",
    "registry url": f"registry:https://me:{MARK}@host.example/team/thing:tag",
    "name": f"me:{MARK}@host.example/team/thing:tag",
    "password with a slash": f"registry:me:a/{MARK}@host.example/team/thing:tag",
    "password with a space": f"https://me:a {MARK}@host.example/thing",
    "password with a quote": f"https://me:a'{MARK}@host.example/thing",
    "password with a newline": f"https://me:a\n{MARK}@host.example/thing",
    "token as the user": f"https://{MARK}@host.example/team/thing:tag",
    "query": f"https://host.example/thing?access_token={MARK}",
    "key text": f"-----BEGIN PRIVATE KEY-----\n{_BODY}\n{MARK}xyz=\n-----END PRIVATE KEY-----\n",
    "key text in a variable's name": f"env:-----BEGIN EC PRIVATE KEY-----\n{_BODY}\n",
    "key on one line": f"-----BEGIN EC PRIVATE KEY-----{_BODY}{MARK}-----END EC PRIVATE KEY-----",
    "key without its frame": f"{_BODY}{MARK}",
}
_UNTRIED = {"test", "docs"}  # they run and write this checkout itself, and take no address
VARIABLES = (
    "ROSETTA_DEBIAN_MIRROR",
    "ROSETTA_DEBIAN_SECURITY_MIRROR",
    "ROSETTA_INSECURE_REGISTRIES",
    "ROSETTA_KEY_PASSWORD",
    "UV_INDEX_URL",
    "PIP_INDEX_URL",
    "https_proxy",
    "SSL_CERT_FILE",
)


def _actions(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[argparse.Action]]]:
    """The words that lead to each parser below a verb's, and what it takes."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for name, child in action.choices.items():
            yield from _actions(child, (*path, name))
    if not below:
        yield (
            path,
            [
                action
                for action in parser._actions
                if action.nargs != 0 and not isinstance(action, argparse._HelpAction)
            ],
        )


def _words(action: argparse.Action, value: str) -> list[str]:
    count = action.nargs if isinstance(action.nargs, int) else 1
    return [*action.option_strings[-1:], *[value] * count]


def _commands() -> Iterator[tuple[str, ...]]:
    """A verb with a secret in the place of the value of one option or word, and what it needs otherwise."""
    for verb in PROGRAM.names:
        if verb in _UNTRIED:
            continue
        for path, actions in _actions(cli.make_command_parser(verb)):
            for tried in actions:
                words: list[str] = []
                for action in actions:
                    if action is tried:
                        words += _words(action, "{}")
                    elif action.required and not (
                        action.option_strings == [] and action.nargs in ("*", "?")
                    ):
                        words += _words(
                            action, str(next(iter(action.choices))) if action.choices else "x"
                        )
                yield (verb, *path, *words)


COMMANDS = sorted(set(_commands()))


@pytest.fixture
def closed(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A small project on a machine where no program runs and nothing is reached."""
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project", cache)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def refuse(*words: Any, **_: Any) -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory", str(words[1]))

    def unreachable(*_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda _: None)
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr(transport, "TRIES", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here"))
    for name in list(os.environ):
        if re.search(r"(?i)proxy|index_url|SSL_CERT", name):
            monkeypatch.delenv(name)
    return project


def _leaks(project: Project, argv: list[str], capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Run a command; the places where the secret is to be found after it."""
    capfd.readouterr()
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        cli.main(argv)
    shown = capfd.readouterr()
    texts = {"stdout": out.getvalue() + shown.out, "stderr": err.getvalue() + shown.err}
    for file in project.folder.parent.rglob("*"):
        if file.is_file() and not file.is_symlink():
            texts[str(file)] = file.read_bytes().decode("utf-8", "replace")
    return [
        f"{place}: {text[max(0, text.find(MARK) - 200) :][:400]}"
        for place, text in texts.items()
        if MARK in text
    ]


@pytest.mark.parametrize("gate", [True, False], ids=["as it is", "without the refusal"])
@pytest.mark.parametrize("form", FORMS)
def test_no_option_shows_a_secret(
    closed: Project,
    form: str,
    gate: bool,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most forms are refused at once; where one would get further, nothing shows it either."""
    if not gate:
        monkeypatch.setattr(cli, "find_exposed", lambda _: "")
    shown = {}
    for command in COMMANDS:
        argv = [command[0], *(FORMS[form] if word == "{}" else word for word in command[1:])]
        if "--manifest" not in argv:
            argv += ["--manifest", str(closed.manifest)]
        if leaks := _leaks(closed, [*argv, "--json"], capfd):
            shown[" ".join(command)] = leaks
    assert shown == {}
    if gate and form != "query":
        assert [path for path in closed.folder.parent.rglob("*") if MARK in str(path)] == []


@pytest.mark.parametrize("form", [form for form in FORMS if not form.startswith("key")])
@pytest.mark.parametrize("variable", VARIABLES)
def test_no_variable_shows_a_secret(
    closed: Project,
    variable: str,
    form: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, FORMS[form])
    layout = closed.layout(architectures=("amd64",))
    for words in (
        ["build", "--distribution", "thing", "--output", "oci:out"],
        ["lock", "--base"],
        ["publish", layout, "--to", "host.example/a/b"],
    ):
        key = ["--key", f"{closed.keys['ours']}.pem"] if words[0] == "publish" else []
        assert (
            _leaks(closed, [*words, *key, "--manifest", str(closed.manifest), "--json"], capfd)
            == []
        )


@pytest.mark.parametrize(
    "word",
    [
        "host.example:5000/team/thing:tag@sha256:" + "0" * 64,
        "registry:localhost:5000/a/b:tag@sha256:" + "0" * 64,
        "git@host.example:group/thing.git",
        "oci:build/a@b",
        "https://host.example/a/b.git",
        "git+https://host.example/a.git@" + "a" * 40,
        "pkg:pypi/jax@0.5",
        "env:KEY",
        "M" * 80,
    ],
)
def test_what_is_no_secret_stays(word: str) -> None:
    secrets.remember([word], {})
    assert secrets.redact(f"see {word!r}, {word}") == f"see {word!r}, {word}"
    assert secrets.find_exposed(["--to", word]) == ""


@pytest.mark.parametrize(
    "text",
    [
        "password=PW",
        "UV_INDEX_X_PASSWORD=PW",
        "?sig=1&access_token=PW&x=1",
        "Authorization: Bearer PW",
        "authorization: basic PW",
        "X-Amz-Signature=PW",
    ],
)
def test_settings_and_headers(text: str) -> None:
    assert "PW" not in secrets.redact(f"it said {text}")
    assert "it said" in secrets.redact(f"it said {text}")


def test_key_text_without_quotes_around_it(
    closed: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    words = FORMS["key text"].split()
    assert (
        _leaks(
            closed,
            [
                "verify-published",
                "host.example/a:b",
                "--key",
                *words,
                "--manifest",
                str(closed.manifest),
            ],
            capfd,
        )
        == []
    )
    assert cli.main(["verify-published", "host.example/a:b", "--key", *words]) == 2
    assert "private key" in capfd.readouterr().err
