from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.commands import t5x
from rosetta.core import lock_record
from rosetta.launch import t5x_evaluation, t5x_trainer
from rosetta.launch.execution import Command
from tests.support import errors


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the launcher was asked for, which is not done."""
    seen: list[Any] = []

    def command_(script: str, words: list[str], environment: dict[str, str], here: str) -> Command:
        seen.append((script, words, environment, here))
        return Command(["trainer", "--gin.A=1"], {}, None, ("said",))

    def reading_(what: str, environment: dict[str, str]) -> Command:
        return command_(what, [], environment, "")

    monkeypatch.setattr(t5x_trainer, "make_command", command_)
    monkeypatch.setattr(t5x_evaluation, "make_command", reading_)
    monkeypatch.setattr(t5x, "_find_t5x_folder", lambda: "/tree")
    return seen


@pytest.mark.parametrize(
    "words",
    [
        ["--dry-run", "PREC=1", "DATA=x=y"],
        ["PREC=1", "--dry-run", "DATA=x=y"],
        ["PREC=1", "DATA=x=y", "--dry-run"],
    ],
)
@pytest.mark.parametrize(
    ("what", "script"),
    [
        ("pretrain", "multiprocess_pretrain_pile"),
        ("finetune", "multiprocess_ft_frompile"),
        ("eval", "eval"),
        ("infer", "infer"),
    ],
)
def test_settings_are_variables_wherever_the_options_stand(
    what: str,
    script: str,
    words: list[str],
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PREC", "0")
    monkeypatch.setenv("MINE", "3")
    assert cli.main(["t5x", what, *words]) == 0
    ((name, positionals, environment, _),) = asked
    assert (name, positionals) == (script, [])
    assert [environment[each] for each in ("PREC", "DATA", "MINE")] == ["1", "x=y", "3"]
    assert capsys.readouterr().out == "said\ntrainer --gin.A=1\n"


@pytest.mark.parametrize("word", ["T5_SIZE", "t5_size=small", "=x", "1A=2"])
def test_what_is_no_setting(
    word: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["t5x", "pretrain", word, "--dry-run"]) == 2
    assert asked == []
    assert "write NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "word", "advice"),
    [
        ("pretrain", "T5_SZIE=small", "did you mean T5_SIZE?"),
        ("pretrain", "GRAD_ACCUM=2", "did you mean NUM_MICROBATCHES?"),
        ("pretrain", "FT_STEPS=10", "did you mean TRAIN_STEPS?"),
        ("eval", "BSIZE_PER_GPU=8", "did you mean BSIZE?"),
        ("infer", "NCCL_DEBUG=INFO", "see rosetta t5x infer --help"),
    ],
)
def test_a_variable_that_nothing_would_read_is_refused_with_the_nearest(
    what: str, word: str, advice: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["t5x", what, word, "--dry-run"]) == 2
    assert asked == []
    (line,) = capsys.readouterr().err.splitlines()
    assert f"rosetta t5x {what}: there is no setting {word.partition('=')[0]!r}; {advice}" in line


def test_steps_to_trace_are_a_variable_too(asked: list[Any]) -> None:
    assert cli.main(["t5x", "pretrain", "--profile", "20:25", "--dry-run"]) == 0
    assert asked[0][2]["PROFILE_STEPS"] == "20:25"
    assert cli.main(["t5x", "eval", "--profile", "20:25", "--dry-run"]) == 2, "nothing there traces"


def test_the_environments_own_python_runs_the_trainer(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setattr(lock_record, "get_lock_path", lambda: tmp_path / "lock.json")
    cli.main(["t5x", "pretrain", "--dry-run"])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    cli.main(["t5x", "pretrain", "--dry-run"])
    cli.main(["t5x", "pretrain", "--dry-run", "PYTHON=mine"])
    assert [each[2].get("PYTHON") for each in asked] == [
        None,
        str(tmp_path / "bin" / "python"),
        "mine",
    ]


def test_an_environment_without_t5x(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t5x, "find_spec", lambda _: None)
    with errors.expect_user_error(errors.MISSING, where="rosetta t5x"):
        t5x._find_t5x_folder()
