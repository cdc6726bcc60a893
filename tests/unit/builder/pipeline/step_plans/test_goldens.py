"""The files of recorded plans: what is read, chosen and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.pipeline.step_plans import goldens
from tests.support import errors, preset_plans
from tests.support.plan_environment import write_recorded


def test_a_golden_is_read_as_it_was_written(tmp_path: Path) -> None:
    golden = write_recorded(tmp_path, "tiny-h100")
    assert goldens.read_golden(tmp_path / "tiny-h100.json") == golden


def test_names_and_groups_choose_goldens(tmp_path: Path) -> None:
    for name, cheap in (("tiny", True), ("large", False), ("xl", False)):
        write_recorded(tmp_path, name, cheap=cheap)

    def choose(*names: str) -> list[str]:
        return [golden.name for golden in goldens.choose_goldens(tmp_path, names)]

    assert choose() == choose("all") == choose("xl", "all") == ["large", "tiny", "xl"]
    assert choose("cheap") == ["tiny"]
    assert choose("cheap", "xl") == ["tiny", "xl"]


def test_a_name_without_a_golden_is_refused(tmp_path: Path) -> None:
    write_recorded(tmp_path, "tiny-h100")
    with errors.expect_user_error(
        errors.UNKNOWN, where="tiny", value="tiny", remedy=("cheap", "tiny-h100")
    ):
        goldens.choose_goldens(tmp_path, ["tiny"])


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"schema": 2}, "1"),
        ({"distribution": None}, "distribution"),
        ({"plan": 3}, "plan"),
        ({"cheap": "yes"}, "cheap"),
        ({"figures": None}, "figures"),
        ({"record": {"command": "x"}}, "jaxlib"),
        ({"figures": {"peak": "7"}}, "peak"),
        ({"figures": {"peak": True}}, "peak"),
    ],
)
def test_a_file_that_is_not_a_golden_is_refused(
    tmp_path: Path, change: dict[str, Any], names: str
) -> None:
    write_recorded(tmp_path, "tiny-h100")
    path = tmp_path / "tiny-h100.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with errors.expect_user_error(errors.INVALID, where="tiny-h100.json", names=names):
        goldens.read_golden(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_broken_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tiny-h100.json"
    path.write_text(text)
    with errors.expect_user_error(errors.INVALID, where="tiny-h100.json"):
        goldens.read_golden(path)


def test_every_preset_has_a_golden_on_the_gpus_of_the_published_runs() -> None:
    expected = {
        plan.name: (plan.distribution, plan.plan, plan.is_cheap)
        for plan in preset_plans.list_preset_plans()
    }
    written = {
        golden.name: (golden.distribution, golden.plan, golden.cheap)
        for golden in goldens.choose_goldens(preset_plans.FOLDER, [])
    }
    assert {name: written.get(name) for name in expected} == expected
