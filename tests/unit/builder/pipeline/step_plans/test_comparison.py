"""Recorded plans against what an environment compiles: same, moved, renewed and refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from builder.pipeline.step_plans import comparison, goldens, plan_runs
from builder.pipeline.step_plans.goldens import Golden
from builder.pipeline.step_plans.plan_runs import PlanEnvironment
from tests.support import errors
from tests.support.plan_environment import (
    JAXLIB,
    SOURCES,
    make_environment,
    make_report,
    write_document,
    write_recorded,
)

NAME = "tiny-h100"


def read_environment(folder: Path, **changes: Any) -> PlanEnvironment:
    return plan_runs.read_environment(make_environment(folder, make_report(**changes)), "--inside")


def compare(folder: Path, golden: Golden, **changes: Any) -> comparison.Comparison:
    environment = read_environment(folder / "env", **changes)
    (entry,) = comparison.compare_goldens([golden], environment, folder)
    return entry


def test_an_environment_says_what_it_consists_of(tmp_path: Path) -> None:
    assert read_environment(tmp_path) == PlanEnvironment(tmp_path, "t5x", JAXLIB, SOURCES)
    with errors.expect_user_error(errors.MISSING, where="--inside env:x"):
        plan_runs.read_environment(tmp_path / "x", "--inside env:x")


def test_a_plan_runs_with_the_rosetta_of_the_checkout_and_without_flags_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = make_environment(tmp_path, make_report())
    plan_runs.compile_plan(environment, "t5x --size tiny", Path("/checkout"))
    plan_runs.compile_plan(environment, "t5x --size tiny")
    words = "-m rosetta plan t5x --size tiny --json"
    assert (tmp_path / "words").read_text() == f"/checkout {words}\n {words}\n"


def test_figures_within_the_tolerance_are_as_recorded(tmp_path: Path) -> None:
    entry = compare(tmp_path, write_recorded(tmp_path, NAME), kernels=1009)
    assert (entry.state, entry.ok) == (comparison.SAME, True)
    assert [move.figure for move in entry.moves] == ["launches"]


def test_a_figure_beyond_the_tolerance_is_shown_with_the_command_that_renews(
    tmp_path: Path,
) -> None:
    entry = compare(tmp_path, write_recorded(tmp_path, NAME), kernels=1024, bytes=45.1e9)
    assert (entry.state, entry.ok) == (comparison.MOVED, False)
    lines = comparison.format_comparison(entry)
    assert [line.split()[0] for line in lines[1:3]] == ["figure", "launches"]
    assert lines[2].split()[1:] == ["1,000", "1,024", "+2.40%"]
    assert f"--plans {NAME} --renew" in lines[-1]
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (
            {"error": {"what": "no such GPU", "where": "--card", "do": "x", "kind": "unknown"}},
            "--card",
        ),
        ({}, "status 0"),
        ([], "status 0"),
    ],
)
def test_a_step_that_does_not_compile_fails_and_does_not_stop_the_others(
    tmp_path: Path, document: Any, names: str
) -> None:
    environment = read_environment(tmp_path / "env")
    write_document(environment.folder, document)
    golden = write_recorded(tmp_path, NAME)
    entries = comparison.compare_goldens([golden, golden], environment, tmp_path)
    assert [entry.state for entry in entries] == [comparison.FAILED] * 2
    assert names in entries[0].problem


def test_a_renewal_records_figures_and_origin_and_shows_what_moved(tmp_path: Path) -> None:
    write_recorded(tmp_path, NAME, jaxlib="0.9.0", kernels=900)
    golden = goldens.read_golden(tmp_path / f"{NAME}.json")
    environment = read_environment(tmp_path / "env")
    (entry,) = comparison.renew_goldens([golden], environment, tmp_path, tmp_path)
    assert (entry.state, entry.ok) == (comparison.RENEWED, True)
    assert [(move.old, move.new) for move in entry.moves] == [(900, 1000)]
    renewed = goldens.read_golden(tmp_path / f"{NAME}.json")
    assert renewed.figures["launches"] == 1000
    assert renewed.record == goldens.Record(golden.renewal, JAXLIB, SOURCES, 61.2)
    path = tmp_path / f"{NAME}.json"
    before = path.read_bytes()
    (entry,) = comparison.renew_goldens([renewed], environment, tmp_path, tmp_path)
    assert entry.state == comparison.SAME
    assert path.read_bytes() == before


def test_a_renewal_that_cannot_be_written_leaves_the_golden_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = write_recorded(tmp_path, NAME, kernels=900)
    environment = read_environment(tmp_path / "env")
    before = (tmp_path / f"{NAME}.json").read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        comparison.renew_goldens([golden], environment, tmp_path, tmp_path)
    assert (tmp_path / f"{NAME}.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env", f"{NAME}.json"]


def test_a_golden_of_another_jaxlib_is_refused(tmp_path: Path) -> None:
    environment = read_environment(tmp_path / "env")
    golden = write_recorded(tmp_path, NAME, jaxlib="0.9.0")
    with errors.expect_user_error(
        errors.DIFFERS, where=NAME, value=JAXLIB, names=("0.9.0", JAXLIB), remedy="--renew"
    ):
        comparison.check_recorded([golden], [], environment)


def test_a_golden_that_is_not_recorded_is_refused_only_by_its_name(tmp_path: Path) -> None:
    environment = read_environment(tmp_path / "env")
    golden = Golden(NAME, "t5x", "t5x --size tiny", True, None, {})
    (entry,) = comparison.check_recorded([golden], ["all"], environment)
    assert (entry.state, entry.ok) == (comparison.UNRECORDED, True)
    with errors.expect_user_error(errors.MISSING, where=NAME, remedy="--renew"):
        comparison.check_recorded([golden], [NAME], environment)


def test_an_environment_compiles_the_steps_of_its_own_distribution(tmp_path: Path) -> None:
    environment = read_environment(tmp_path / "env")
    mine = write_recorded(tmp_path, NAME)
    other = Golden("gpt-h100", "pax", "pax Synthetic126M", True, None, {})
    select = comparison.select_for_environment
    assert select([mine, other], ["all"], environment) == [mine]
    with errors.expect_user_error(errors.DIFFERS, where="gpt-h100", value="pax", names="t5x"):
        select([mine, other], ["gpt-h100"], environment)
    with errors.expect_user_error(errors.MISSING, value="t5x"):
        select([other], [], environment)
