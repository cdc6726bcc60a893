"""Steps are compiled in processes of their own, once: a shell script stands in for Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import limited_programs
from rosetta.plan import compile_trials, searched_run
from rosetta.plan.compile_trials import CompileTrials
from rosetta.plan.search_space import Candidate, Fixed, Split
from rosetta.plan.searched_run import SearchedRun
from tests.support import errors

UNROLLED = Candidate(Split(1, 1, 1), "none", False, 8, 1)
SCANNED = Candidate(Split(1, 1, 1), "none", True, 8, 1)


def make_answer(peak: float, seconds: float) -> str:
    """Return the document that `rosetta plan --json` prints."""
    likely = {"likely": seconds, "fastest": 0.9 * seconds, "slowest": 1.1 * seconds}
    result = {
        "memory": {"peak": peak},
        "time": {"seconds": likely, "parts": {"products": seconds}},
        "kernels": 1,
        "bytes": 1.0,
        "gemm_flops": 1.0,
        "compile": {"seconds": 30.0, "rss": 2e9},
    }
    return json.dumps({"ok": True, "result": result})


# Few layers take 1 GB and 1 s each, and all have 10 GB and 2 s more.
PROGRAM = f"""
echo "$@" >> {{calls}}
case "$*" in
  *num_encoder_layers=1*) echo '{make_answer(11e9, 3.0)}';;
  *num_encoder_layers=2*) echo '{make_answer(12e9, 4.0)}';;
  *) echo '{make_answer(35e9, 27.0)}';;
esac
"""


@pytest.fixture
def searched() -> SearchedRun:
    settings, _ = searched_run.make_t5x_settings({"fp8": "off"}, 512, 128)
    model = searched_run.read_t5x_model("large", 512, 128)
    return SearchedRun(model, "t5x-large", "l40s", 1, 1, settings, Fixed())


def make_trials(
    searched: SearchedRun, folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, **more: Any
) -> CompileTrials:
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{program.replace('{calls}', str(folder / 'calls'))}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    options = {"versions": {"jaxlib": "0.10.2"}, "seconds": 20.0, **more}
    return CompileTrials(
        searched.model,
        searched.describe_run,
        "l40s",
        evidence=folder / "steps.jsonl",
        logs=folder / "logs",
        **options,
    )


def read_calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_few_layers_are_extrapolated(
    searched: SearchedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = make_trials(searched, tmp_path, monkeypatch, PROGRAM)
    trial = trials.measure(UNROLLED)
    assert (trial.peak, trial.seconds["likely"]) == pytest.approx((34e9, 26.0))
    assert trial.parts == pytest.approx({"products": 26.0})
    assert not trial.whole
    few, more = read_calls(tmp_path)
    assert few.startswith("-P -m rosetta plan t5x --size large --card l40s --gpus 1")
    assert few.endswith("num_encoder_layers=1 num_decoder_layers=1 --json")
    assert "num_encoder_layers=2" in more
    assert (trials.compiled, trials.compile_seconds) == (2, 60.0)
    whole = trials.compile_whole(UNROLLED)
    assert (whole.peak, whole.whole) == (35e9, True)
    assert "num_encoder_layers" not in read_calls(tmp_path)[-1]


def test_scanned_layers_are_compiled_as_a_whole(
    searched: SearchedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trials(searched, tmp_path, monkeypatch, PROGRAM).measure(SCANNED)
    assert (trial.peak, trial.whole) == (35e9, True)
    assert len(read_calls(tmp_path)) == 1


def test_a_killed_search_continues(
    searched: SearchedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_trials(searched, tmp_path, monkeypatch, PROGRAM).measure(UNROLLED)
    with (tmp_path / "steps.jsonl").open("a") as cut:
        cut.write('{"arguments": ["t5x"')
    again = make_trials(searched, tmp_path, monkeypatch, "exit 1")
    assert again.measure(UNROLLED) == first
    assert (again.compiled, again.used, again.compile_seconds) == (0, 2, 60.0)
    assert again.largest_process == 2e9
    entries = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert len([json.loads(entry) for entry in entries]) == 3


def test_figures_of_other_versions_are_refused(
    searched: SearchedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trials(searched, tmp_path, monkeypatch, PROGRAM)
    with errors.expect_user_error(
        errors.DIFFERS, where="steps.jsonl", names="jaxlib", remedy="--evidence"
    ):
        make_trials(searched, tmp_path, monkeypatch, PROGRAM, versions={"jaxlib": "0.11"})


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ('echo \'{"ok": false, "error": {"where": "--tp", "what": "no", "do": "x"}}\'', "--tp: no"),
        ("echo gone >&2; kill -KILL $$", "status -9: gone"),
        ("exec sleep 600", "--seconds"),
        (PROGRAM.replace("12000000000.0", "9000000000.0"), "linear"),
    ],
)
def test_a_step_without_figures_has_a_reason_and_is_tried_again(
    searched: SearchedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    word: str,
) -> None:
    trials = make_trials(searched, tmp_path, monkeypatch, program, seconds=1.0)
    assert word in trials.measure(UNROLLED).problem


def test_nothing_is_compiled_without_memory(
    searched: SearchedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = make_trials(searched, tmp_path, monkeypatch, PROGRAM)
    monkeypatch.setattr(limited_programs, "read_available_memory", lambda: 10**9)
    with errors.expect_user_error(errors.TOO_BIG, where="--search"):
        trials.measure(UNROLLED)
    assert not (tmp_path / "calls").exists()


def test_the_layers_of_glam_come_in_pairs(
    searched: SearchedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = make_trials(searched, tmp_path, monkeypatch, PROGRAM, layer_step=2)
    trials.measure(UNROLLED)
    assert "num_encoder_layers=4" in read_calls(tmp_path)[-1]
    assert compile_trials.FEWEST_LAYERS == (1, 2)
