from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rosetta import cli, lock
from rosetta.errors import UserError
from rosetta.t5x import command, launch
from rosetta.t5x.launch import Command


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the launcher was asked for, which is not done."""
    seen: list[Any] = []

    def command_(script: str, words: list[str], environment: dict[str, str], here: str) -> Command:
        seen.append((script, words, environment, here))
        return Command(["trainer", "--gin.A=1"], {}, None, ("said",))

    def reading(what: str, environment: dict[str, str]) -> Command:
        return command_(what, [], environment, "")

    monkeypatch.setattr(launch, "command", command_)
    monkeypatch.setattr(launch, "reading", reading)
    monkeypatch.setattr(command, "_tree", lambda: "/tree")
    return seen


@pytest.mark.parametrize("words", [["--dry-run", "A=1", "B=x=y"], ["A=1", "--dry-run", "B=x=y"], ["A=1", "B=x=y", "--dry-run"]])
@pytest.mark.parametrize(("what", "script"), [("pretrain", "multiprocess_pretrain_pile"), ("finetune", "multiprocess_ft_frompile"), ("eval", "eval"), ("infer", "infer")])
def test_settings_are_variables_wherever_the_options_stand(what: str, script: str, words: list[str], asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("A", "0")
    monkeypatch.setenv("C", "3")
    assert cli.main(["t5x", what, *words]) == 0
    ((name, positionals, environment, _),) = asked
    assert (name, positionals) == (script, [])
    assert [environment[each] for each in "ABC"] == ["1", "x=y", "3"]
    assert capsys.readouterr().out == "said\ntrainer\n--gin.A=1\n"


@pytest.mark.parametrize("word", ["T5_SIZE", "t5_size=small", "=x", "1A=2"])
def test_what_is_no_setting(word: str, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["t5x", "pretrain", word, "--dry-run"]) == 2
    assert asked == []
    assert "write NAME=VALUE" in capsys.readouterr().err


def test_the_environments_own_python_runs_the_trainer(tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setattr(lock, "path", lambda: tmp_path / "lock.json")
    cli.main(["t5x", "pretrain", "--dry-run"])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    cli.main(["t5x", "pretrain", "--dry-run"])
    cli.main(["t5x", "pretrain", "--dry-run", "PYTHON=mine"])
    assert [each[2].get("PYTHON") for each in asked] == [None, str(tmp_path / "bin" / "python"), "mine"]


def test_an_environment_without_t5x(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="this environment has no t5x"):
        command._tree()
