"""The comparison of predicted step times with published ones."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from typing import TYPE_CHECKING

import pytest

from bench import plan_times
from rosetta.core import gpus
from rosetta.plan import hlo_text, step_time, t5x_step
from tests.support.hlo_module import TEXT

if TYPE_CHECKING:
    from pathlib import Path

ROWS = {row.name: row for row in plan_times.list_rows()}


def keep(text: str, name: str, folder: Path) -> None:
    plan_times.keep_step(t5x_step.CompiledStep(text, 1, 1, 0, 1, 1.0, 1), name, folder)


def predict(text: str, gpu: str) -> dict[str, float]:
    return step_time.predict_seconds(hlo_text.parse_module(text), gpus.GPUS[gpu], 8)


def test_a_published_rate_is_a_time() -> None:
    """75.8 sequences a second and GPU, with 32 sequences; 1657.24 rows a second, with 8 of 256."""
    assert ROWS["t5-large-a100"].seconds == pytest.approx(32 / 75.8)
    assert ROWS["gpt-5b-h100"].seconds == pytest.approx(8 * 256 / 1657.24)
    assert ROWS["t5-xxl-a100"].seconds == pytest.approx(36 / 8 / 3.69)
    assert ROWS["llama-7b-maxtext"].seconds == pytest.approx(2 * 4096 / 11400)


def test_a_whole_step_is_predicted_as_it_is(tmp_path: Path) -> None:
    keep(TEXT, "gpt-5b-h100", tmp_path)
    predicted = plan_times.predict_row(ROWS["gpt-5b-h100"], tmp_path)
    assert predicted == predict(TEXT, "h100")


def test_few_layers_are_extrapolated(tmp_path: Path) -> None:
    """From 2 and 4 layers to 24: the step with 2, and eleven times what two more add."""
    more = TEXT.replace('"known_trip_count":{"n":"4"}', '"known_trip_count":{"n":"9"}')
    keep(TEXT, "t5-large-a100.2", tmp_path)
    keep(more, "t5-large-a100.4", tmp_path)
    predicted = plan_times.predict_row(ROWS["t5-large-a100"], tmp_path)
    two, four = predict(TEXT, "a100"), predict(more, "a100")
    assert four["likely"] > two["likely"]
    for name, seconds in predicted.items():
        assert seconds == pytest.approx(two[name] + 11 * (four[name] - two[name]))


def test_rows_with_equal_steps_share_what_is_compiled() -> None:
    names = {
        row.name: [name for name, _ in plan_times.list_compilations(row)] for row in ROWS.values()
    }
    assert names["gpt-126m-a100"] == names["gpt-126m-a100-te"]
    assert names["llama-7b"] != names["llama-7b-te"]


def test_only_pairs_of_one_model_that_differ_by_more_than_a_tenth_count() -> None:
    base = ROWS["gpt-5b-h100"]
    slower = dataclasses.replace(base, name="slower", rate=base.rate / 2)
    similar = dataclasses.replace(base, name="similar", rate=base.rate * 1.05)
    other = dataclasses.replace(base, name="other", model="another", rate=base.rate / 4)
    predicted = {base.name: 1.0, "slower": 1.5, "similar": 2.0, "other": 0.1}
    rows = (base, slower, similar, other)
    assert plan_times.count_ordered_pairs(rows, predicted) == (1, 2)


def test_a_step_that_cannot_be_compiled_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho killed >&2\nexit 137\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert plan_times.compile_rows([ROWS["t5-small-a100"]], tmp_path / "steps") == 1
    assert capsys.readouterr().out == "t5-small-a100: killed\n\n"
