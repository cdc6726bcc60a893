"""`bump --plans`: which recorded plans the new pins moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import cli
from builder.commands import bump
from builder.core.cache import Cache
from builder.core.command_context import Context, Result
from builder.pipeline.step_plans import comparison, goldens, plan_runs
from builder.pipeline.step_plans.plan_runs import PlanEnvironment
from rosetta.core.errors import UserError
from tests.support import errors, plan_environment

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A checkout with two goldens of T5X, of which one was recorded with another jaxlib."""
    folder = tmp_path / goldens.FOLDER
    plan_environment.write_recorded(folder, "same", jaxlib="0.9.0")
    plan_environment.write_recorded(folder, "slower", kernels=900)
    return Context(tmp_path, ROOT / "manifest.yaml", Cache(tmp_path / "cache"))


def test_the_report_names_the_plans_that_moved(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = plan_environment.make_environment(
        context.root / "env", plan_environment.make_report()
    )
    monkeypatch.setattr(
        plan_runs,
        "bake_environment",
        lambda *_: plan_runs.read_environment(environment, ""),
    )
    before = Result({"sources": {}}, "t5x: moved")
    result = bump._add_plans(before, context, ["t5x"], ["all"], context.root)
    assert result.ok  # the figures are for the reader to judge
    assert [(plan["name"], plan["state"]) for plan in result.data["plans"]] == [
        ("same", comparison.SAME),
        ("slower", comparison.MOVED),
    ]
    assert result.data["plans"][0]["jaxlib"] == plan_environment.JAXLIB
    assert "+11.11%" in result.text
    assert bump._add_plans(before, context, ["t5x"], [], context.root) is before
    assert bump._add_plans(before, context, ["paxml"], ["all"], context.root).data["plans"] == []


def test_an_environment_that_cannot_be_baked_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> PlanEnvironment:
        raise UserError("needs build.py lock", "locks/t5x-cuda13.txt", "run it")

    monkeypatch.setattr(plan_runs, "bake_environment", refuse)
    result = bump._add_plans(Result({}, ""), context, ["t5x"], ["slower"], context.root)
    assert not result.ok
    (plan,) = result.data["plans"]
    assert (plan["state"], "locks/t5x-cuda13.txt" in plan["problem"]) == (comparison.FAILED, True)


def test_an_unknown_plan_is_refused_before_anything_moves(context: Context) -> None:
    arguments = cli.make_command_parser("bump").parse_args(["--plans", "slow"])
    with errors.expect_user_error(errors.UNKNOWN, where="slow", value="slow", remedy="slower"):
        bump.run(context, arguments)
