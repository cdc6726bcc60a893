"""The order in which candidates are compiled, the choice of finalists, and the end of a search.

A formula stands in for the compiler: it gives the figures of a candidate at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rosetta.plan.layout_estimate import Estimate
from rosetta.plan.layout_search import MOST_WHOLE_COMPILES, LayoutSearch, SearchResult, Trial
from rosetta.plan.search_space import Candidate, Split

ONE, TWO, FOUR = Split(8, 1, 1), Split(4, 1, 2), Split(2, 1, 4)
SPLITS = (ONE, TWO, FOUR)
CANDIDATES = [
    Candidate(split, remat, False, rows, 1)
    for split in SPLITS
    for remat in ("none", "full")
    for rows in (1, 2, 4, 8, 16, 32)
]
# GB of the state and of a sequence.
STATE = {ONE: 50e9, TWO: 25e9, FOUR: 12e9}
ROW = {"none": 4e9, "full": 0.5e9}


def estimate_roughly(candidate: Candidate) -> Estimate:
    """Return an estimate that is right about the order, and wrong by a factor."""
    size = compute_peak(candidate) - STATE[candidate.split]
    return Estimate(STATE[candidate.split], 0.5 * size, 3.0 * compute_seconds(candidate))


def compute_peak(candidate: Candidate) -> float:
    return STATE[candidate.split] + ROW[candidate.remat] * candidate.rows / candidate.split.tensor


def compute_seconds(candidate: Candidate) -> float:
    work = candidate.rows * {"none": 1.0, "full": 1.3}[candidate.remat] / candidate.split.tensor
    return 0.5 + work * (1 + 0.2 * (candidate.split.tensor - 1))


def make_trial(candidate: Candidate, whole: bool = False) -> Trial:
    seconds = compute_seconds(candidate)
    likely = {"likely": seconds, "fastest": seconds, "slowest": seconds}
    return Trial(candidate, compute_peak(candidate), likely, {"products": seconds}, whole)


class Compiler:
    """What is compiled, and its figures."""

    def __init__(self, **whole: Any) -> None:
        self.few: list[Candidate] = []
        self.whole: list[Candidate] = []
        self._changes = whole

    def measure(self, candidate: Candidate) -> Trial:
        self.few.append(candidate)
        return make_trial(candidate)

    def compile_whole(self, candidate: Candidate) -> Trial:
        self.whole.append(candidate)
        return replace(make_trial(candidate, whole=True), **self._changes)


def search(
    compiler: Any, *, usable: float = 70e9, known: tuple[Candidate, ...] = (), trials: int = 10
) -> tuple[SearchResult, list[str]]:
    lines: list[str] = []
    result = LayoutSearch(
        CANDIDATES,
        known,
        estimate=estimate_roughly,
        usable=usable,
        measure=compiler.measure,
        compile_whole=compiler.compile_whole,
        most_trials=trials,
        report=lines.append,
    ).run()
    return result, lines


def find_best(usable: float) -> Candidate:
    """Return the fastest candidate that fits, by trying all."""
    fitting = [candidate for candidate in CANDIDATES if compute_peak(candidate) <= usable]
    return max(fitting, key=lambda candidate: make_trial(candidate).rate)


@pytest.mark.parametrize("usable", [20e9, 45e9, 70e9, 100e9])
def test_the_fastest_candidate_is_found_with_few_compilations(usable: float) -> None:
    compiler = Compiler()
    result, lines = search(compiler, usable=usable)
    assert result.best is not None
    assert result.best.rate >= 0.97 * make_trial(find_best(usable)).rate
    assert result.best.whole
    assert result.best.extrapolated is not None
    assert len(compiler.few) <= 10 < len(CANDIDATES)
    assert any("trial 1 of at most 10" in line for line in lines)


def test_a_state_that_does_not_fit_is_left_out_without_compiling() -> None:
    compiler = Compiler()
    result, _ = search(compiler, usable=20e9)
    assert {candidate.split for candidate in compiler.few} == {FOUR}
    assert result.pruned == {ONE: 50e9, TWO: 25e9}


def test_splits_that_were_not_compiled_have_an_estimate() -> None:
    result, _ = search(Compiler(), usable=100e9, trials=2)
    assert {trial.candidate.split for trial in result.trials} == {ONE}
    assert {split: factor > 1 for split, factor in result.estimated.items()} == {
        TWO: True,
        FOUR: True,
    }


def test_published_settings_are_tried_first_and_ranked() -> None:
    published = Candidate(FOUR, "full", True, 3, 2)
    compiler = Compiler()
    result, _ = search(compiler, known=(published,))
    assert compiler.few[0] == published
    assert published in [trial.candidate for trial in result.trials]
    rates = [trial.rate for trial in result.trials if trial.peak <= 70e9]
    assert rates == sorted(rates, reverse=True)


def test_at_most_three_finalists_are_compiled_as_a_whole() -> None:
    # Each whole step is slower than its few layers promised.
    slow = {"seconds": {"likely": 1e6, "fastest": 1e6, "slowest": 1e6}}
    compiler = Compiler(**slow)
    result, _ = search(compiler)
    assert len(compiler.whole) == MOST_WHOLE_COMPILES == result.whole_compiles
    assert result.best is not None
    assert result.best.whole, "the answer is one that was compiled as a whole"


def test_a_finalist_that_does_not_fit_as_a_whole_is_not_the_answer() -> None:
    class Growing(Compiler):
        def compile_whole(self, candidate: Candidate) -> Trial:
            trial = super().compile_whole(candidate)
            return replace(trial, peak=1e12) if len(self.whole) == 1 else trial

    compiler = Growing()
    result, _ = search(compiler)
    assert result.best is not None
    assert result.best.candidate == compiler.whole[1]
    assert result.trials[-1].peak == 1e12


def test_a_whole_step_that_cannot_be_compiled_leaves_the_extrapolation() -> None:
    result, _ = search(Compiler(problem="it took too long"))
    assert result.best is not None
    assert not result.best.whole
    assert result.best.unconfirmed == "it took too long"


def test_steps_without_figures_do_not_end_the_search() -> None:
    class Failing(Compiler):
        def measure(self, candidate: Candidate) -> Trial:
            trial = super().measure(candidate)
            return trial if len(self.few) > 2 else Trial(candidate, problem="it failed")

    result, _ = search(Failing())
    assert result.best is not None
    assert [trial.problem for trial in result.trials[-2:]] == ["it failed", "it failed"]


def test_of_equally_fast_trials_the_one_with_less_memory_is_the_answer() -> None:
    class Equal(Compiler):
        def measure(self, candidate: Candidate) -> Trial:
            trial = super().measure(candidate)
            # Each is a little faster than the one before, and takes more memory.
            seconds = candidate.sequences * (1 - 1e-4 * len(self.few))
            times = {"likely": seconds, "fastest": seconds, "slowest": seconds}
            return replace(trial, seconds=times, peak=1e9 * len(self.few), whole=True)

    compiler = Equal()
    known = (CANDIDATES[0], CANDIDATES[1], CANDIDATES[2])
    result, _ = search(compiler, known=known, trials=3)
    assert result.best is not None
    assert (result.best.candidate, result.best.peak) == (CANDIDATES[0], 1e9)
    assert result.trials[0] is result.best


def test_nothing_fits() -> None:
    compiler = Compiler()
    result, _ = search(compiler, usable=12.05e9)
    assert result.best is None
    assert not compiler.whole
    assert min(trial.peak for trial in result.trials) > 12.05e9
    assert search(Compiler(), usable=1e9)[0].trials == ()
