"""A figure of a plan tells builds apart; what compiles it is a stand-in that reads the build."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from builder.pipeline.step_plans import plan_runs
from builder.pipeline.step_plans.plan_runs import CompiledPlan
from rosetta.core.errors import UserError
from tests.support import errors
from tests.support.bisect_history import Story, get_only_culprit

pytestmark = pytest.mark.slow

PLAN = ("--metric", "launches", "--plan", "t5x-tiny-h100")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans that were compiled: bad.py launches 20 kernels more than 1,000, few.py one more."""
    compiled: list[str] = []

    def compile_plan(environment: Path, plan: str) -> CompiledPlan:
        compiled.append(plan)
        thing = environment / "opt/thing"
        if (thing / "broken.py").exists() and not (thing / "mended.py").exists():
            raise UserError("does not compile", "rosetta plan", "")
        launches = 1000 + 20 * (thing / "bad.py").exists() + (thing / "few.py").exists()
        return CompiledPlan({"launches": launches}, 1.0)

    monkeypatch.setattr(plan_runs, "compile_plan", compile_plan)
    return compiled


def bisect(story: Story, *words: str) -> tuple[int, dict[str, Any]]:
    """Start a bisect of the figure, in environments for the CPU without packages."""
    folder = story.folder
    argv = ["bisect", "--good", str(folder / "good"), "--bad", str(folder / "bad")]
    argv += ["--distribution", "thing", "--accelerator", "cpu", "--work", str(folder / "work")]
    return story.main(*argv, *words, *story.common())


def test_the_commit_that_moved_a_figure(story: Story, plans: list[str]) -> None:
    story.end("good")
    story.commit("a kernel more", few_py="1\n")
    commits = story.many(6, bad=3)
    story.end("bad")
    status, document = bisect(story, *PLAN)
    assert status == 0, document
    assert get_only_culprit(document["result"])["commit"] == commits[3]
    assert document["result"]["metric"] == {"figure": "launches", "good": 1000, "bad": 1021}
    assert len(plans) == document["result"]["builds"] + 2
    assert {plan.split()[0] for plan in plans} == {"t5x"}
    _, document = story.main("bisect", "--log", *story.common())
    trials = document["result"]["trials"]
    assert [trial["figure"] for trial in trials[:2]] == [1000, 1021]
    assert all((trial["answer"] == "bad") == (trial["figure"] > 1010) for trial in trials)


def test_figures_are_compared_with_those_of_the_present_good_end(
    story: Story, plans: list[str]
) -> None:
    story.end("good")
    slow = story.commit("slow", bad_py="1\n")
    story.end("bad")
    assert bisect(story, *PLAN)[0] == 0
    for name in ("good", "bad"):
        shutil.rmtree(story.folder / name)
    story.end("good", slow)
    story.commit("nothing new", other_py="1\n")
    story.end("bad")
    status, document = bisect(story, *PLAN)
    assert status == 2
    errors.check_error(errors.from_document(document), errors.CONFLICT, where="--bad", value="good")
    assert len(plans) == 4


def test_builds_whose_step_does_not_compile_are_skipped(story: Story, plans: list[str]) -> None:
    story.end("good")
    story.commit("broken", broken_py="1\n")
    story.commit("mended and slower", mended_py="1\n", bad_py="1\n")
    story.end("bad")
    status, document = bisect(story, *PLAN)
    assert status == 1  # both commits remain
    ((first, second),) = document["result"]["culprits"]
    assert (first["subject"], second["subject"]) == ("broken", "mended and slower")
    assert plans


def test_ends_with_the_same_figure_are_refused(story: Story, plans: list[str]) -> None:
    story.end("good")
    story.commit("a kernel more", few_py="1\n")
    story.end("bad")
    status, document = bisect(story, *PLAN)
    assert (status, len(plans)) == (2, 2)
    error = errors.from_document(document)
    errors.check_error(
        error, errors.CONFLICT, where="--bad", names=("1,000", "1,001", "+0.10%"), value="good"
    )


@pytest.mark.parametrize(
    ("words", "kind", "where"),
    [
        (("--metric", "launches"), errors.MISSING, "--metric"),
        (("--plan", "t5x-tiny-h100"), errors.MISSING, "bisect"),
        ((*PLAN, "--stage", "tree"), errors.CONFLICT, "--metric"),
        ((*PLAN, "--repeat", "2"), errors.CONFLICT, "--metric"),
        (("--metric", "launches", "--plan", "cheap"), errors.INVALID, "--plan"),
        (("--metric", "launches", "--plan", "t5x-huge"), errors.UNKNOWN, "t5x-huge"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    story: Story, plans: list[str], words: tuple[str, ...], kind: str, where: str
) -> None:
    status, document = bisect(story, *words)
    assert (status, plans) == (2, [])
    errors.check_error(errors.from_document(document), kind, where=where)
