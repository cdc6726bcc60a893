from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from builder.core import manifest
from rosetta import cli
from rosetta.selftest import project_checks, runner
from rosetta.selftest.project_checks import Project
from tests.support import errors

ROOT = Path(__file__).parents[4]


def test_each_project_of_the_manifest_has_a_model() -> None:
    loaded = manifest.load(ROOT / "manifest.yaml")
    assert project_checks.list_projects() == sorted(loaded.projects_of("t5x"))
    # Gin finds a file on Python's path only inside a package.
    assert (project_checks.GIN_FOLDER / "__init__.py").is_file()


def test_the_training_command(tmp_path: Path) -> None:
    command = Project(name="prompt-tuning").make_command(tmp_path, steps=3)
    assert command.argv[1:4] == ["-P", "-m", "t5x.train"]
    assert "--gin_file=rosetta/selftest/projects/prompt-tuning.gin" in command.argv
    assert f'--gin.MODEL_DIR="{tmp_path}/model"' in command.argv
    assert "--gin.TRAIN_STEPS=3" in command.argv
    assert Project(name="prompt-tuning").package == "prompt_tuning"


def test_an_unknown_project_is_refused() -> None:
    with errors.expect_user_error(errors.UNKNOWN, where="--project", value="mt4"):
        project_checks.check_projects(["mt4"], runner.Options("t5x"))


def test_a_project_that_the_environment_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with errors.expect_user_error(errors.MISSING, where="--project", value="mt3"):
        project_checks.check_projects(["mt3"], runner.Options("t5x"))


@pytest.mark.parametrize(
    ("losses", "problems"),
    [
        ({1: 3.0, 2: 2.0, 3: 2.5}, 0),
        ({}, 1),
        ({1: 3.0, 2: 2.0}, 1),
        ({1: 3.0, 2: 2.0, 3: math.nan}, 1),
        ({1: 3.0, 2: 2.9, 3: 3.1}, 0),
        ({1: 3.0, 2: 3.0, 3: 2.5}, 0),
        ({1: 3.0, 2: 3.0, 3: 3.0}, 1),
        ({1: 3.0, 2: 31.0, 3: 3.0}, 1),
    ],
    ids=[
        "complete",
        "none",
        "one missing",
        "not finite",
        "a little higher",
        "two equal",
        "never changes",
        "much higher",
    ],
)
def test_the_losses_of_the_steps(losses: dict[int, float], problems: int) -> None:
    assert len(project_checks.find_loss_problems(losses)) == problems


def test_the_result_is_formatted() -> None:
    project = {
        "name": "mt3",
        "modules": 21,
        "skipped": {"mt3.tool": "needs ddsp"},
        "failed": {},
        "losses": {"1": 3.0},
    }
    result = {"projects": [project], "workdir": None, "ok": False, "problems": ["mt3: no"]}
    lines = project_checks.format_result(result).splitlines()
    assert lines[0] == "mt3: 21 modules, 0 failed, 1 skipped"
    assert lines[-1] == "FAILED"
    assert "PROBLEM mt3: no" in lines


def test_a_repeated_project_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_checks, "_require_project", lambda _: None)
    monkeypatch.setattr(
        project_checks,
        "_check_project",
        lambda _context, project, *_: {"name": project.name, "problems": []},
    )
    options = runner.Options("t5x", workdir=tmp_path / "work")
    result = project_checks.check_projects(["mt3", "longt5", "mt3"], options)
    assert [row["name"] for row in result["projects"]] == ["mt3", "longt5"]


@pytest.mark.parametrize(
    "words",
    [("--steps", "20"), ("--devices", "1"), ("--framework", "pax")],
    ids=["steps", "devices", "framework"],
)
def test_options_that_a_project_ignores_are_refused(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["selftest", "--project", "mt3", *words]) == 2
    message = capsys.readouterr().err
    assert words[0] in message
    assert "--project" in message
