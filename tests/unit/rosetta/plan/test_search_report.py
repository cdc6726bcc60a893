"""What a search reports: the answer, why the others lost, and the front of memory and time."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from rosetta.plan import search_report, searched_run
from rosetta.plan.layout_search import SearchResult, Trial
from rosetta.plan.search_report import SearchReport
from rosetta.plan.search_space import Candidate, Fixed, Split
from rosetta.plan.searched_run import SearchedRun

USABLE = 40e9


def make_trial(rows: int, peak: float, **parts: float) -> Trial:
    seconds = sum(parts.values())
    likely = {"likely": seconds, "fastest": 0.9 * seconds, "slowest": 1.2 * seconds}
    candidate = Candidate(Split(8, 1, 1), "none", False, rows, 1)
    return Trial(candidate, peak, likely, parts)


BEST = make_trial(4, 30e9, products=1.0, launches=0.25)
SLOW = make_trial(6, 20e9, products=1.5, launches=2.25)
BIG = make_trial(8, 50e9, products=2.0)
FAILED = Trial(Candidate(Split(8, 1, 1), "none", False, 2, 1), problem="it took too long")
SEARCHED = SearchedRun(
    searched_run.read_t5x_model("small", 512, 128), "t5x-small", "h100", 1, 8, {}, Fixed()
)


def make_report(best: Trial = BEST) -> SearchReport:
    compiled: Any = SimpleNamespace(compiled=6, used=6, compile_seconds=90.0, largest_process=2e9)
    split = Split(2, 4, 1)
    result = SearchResult(best, (best, SLOW, BIG, FAILED), {split: 1.5}, {Split(1, 8, 1): 99e9}, 1)
    return SearchReport(best, result, SEARCHED, USABLE, SLOW.candidate, compiled)


def test_the_reason_of_a_loss_is_the_part_that_takes_longer() -> None:
    loss = search_report.explain_loss(SLOW, BEST, USABLE)
    assert "100.0%" in loss
    assert "launches" in loss
    assert "50.0 of 40.0 GB" in search_report.explain_loss(BIG, BEST, USABLE)
    assert search_report.explain_loss(FAILED, BEST, USABLE) == "it took too long"


def test_a_sequence_is_compared_not_a_step() -> None:
    # Twice the batch in 1.5 times the time is faster.
    other = make_trial(8, 30e9, products=1.5, launches=0.375)
    assert other.rate > BEST.rate
    assert "faster" in search_report.explain_loss(other, BEST, USABLE)


def test_the_document_has_all_trials_and_the_rank_of_the_published_settings() -> None:
    document = make_report().as_json()
    json.dumps(document)
    assert document["answer"]["verdict"] == "fits"
    assert document["answer"]["sequences_per_second_per_gpu"] == 32 / 1.25 / 8
    assert [trial["verdict"] for trial in document["trials"]] == [
        *("fits", "fits", "does not fit", "no figures"),
    ]
    assert ["lost" in trial for trial in document["trials"]] == [False, True, True, True]
    assert document["published_rank"] == 2
    assert document["pruned"][0]["state"] == 99e9


def test_the_text_has_a_line_for_each_trial_and_split() -> None:
    text = make_report().format_text("NVIDIA H100")
    lines = text.splitlines()
    assert sum(line.startswith(("  1.", "  2.", "  3.", "  4.")) for line in lines) == 4
    assert "(published settings)" in next(line for line in lines if line.startswith("  2."))
    assert "99.0 GB" in text
    assert "+50%" in text
    assert "no" in next(line for line in lines if line.startswith("confirmed"))


def test_the_front_has_what_no_other_trial_beats() -> None:
    worse = make_trial(4, 35e9, products=3.0)
    groups = search_report.list_front([BEST, SLOW, BIG, worse, FAILED], SEARCHED, USABLE)
    assert {name: [memory for memory, _ in points] for name, points in groups.items()} == {
        "front": [20.0, 30.0],
        "slower": [35.0],
        "does not fit": [50.0],
    }
