"""Search the fastest predicted run that fits in memory, with few compilations.

1. Candidates whose state alone does not fit are left out.
2. A rough estimate orders the others. The best one is compiled with few layers and extrapolated.
   What was compiled corrects the estimates of the others, and the next best one follows.
3. The best candidate is compiled as a whole. If it disappoints, the search goes on. At most three
   candidates are compiled as a whole, not counting those whose layers are scanned over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rosetta.plan.layout_estimate import Estimate
    from rosetta.plan.search_space import Candidate, Split

MOST_WHOLE_COMPILES = 3
# A layout that was not compiled may be faster than its estimate by this factor.
OPTIMISM = 1.10
# Another batch of a layout that was compiled is tried if it promises this much.
WORTHWHILE = 1.01
# The share of the memory that an estimate may fill.
CAUTION = 0.97
# Trials whose rates differ by less are equally fast: the one with the least memory is better.
EQUAL = 1.005
# How much more than the memory an estimate may need to be compiled if nothing else fits.
NEARLY = 1.25


@dataclass(frozen=True)
class Trial:
    """What compiled steps say about a candidate.

    Attributes:
        candidate: The candidate.
        peak: The peak memory of a GPU, in bytes.
        seconds: "likely", "fastest" and "slowest" -> the predicted time of a step.
        parts: Where the likely time goes, kind -> seconds.
        whole: Whether the whole model was compiled; else few layers were extrapolated.
        problem: Why there are no figures; "" if there are.
        extrapolated: Of a whole step: the figures that few layers gave before; None if there are
            none.
        unconfirmed: Of figures that were extrapolated: why the whole model could not be compiled.
    """

    candidate: Candidate
    peak: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    whole: bool = False
    problem: str = ""
    extrapolated: Trial | None = None
    unconfirmed: str = ""

    @property
    def rate(self) -> float:
        """The sequences per second of all GPUs."""
        return self.candidate.sequences / self.seconds["likely"]


@dataclass(frozen=True)
class SearchResult:
    """The end of a search.

    Attributes:
        best: The fastest trial that fits; None if nothing fits.
        trials: All trials, the best first, then the fastest that fit, then those that do not fit,
            then those with a problem.
        estimated: Split -> the promised time of its best candidate that was not compiled, as a
            multiple of the best trial's for each sequence.
        pruned: Split -> the bytes of its state, for splits that cannot fit.
        whole_compiles: How many unrolled steps were compiled as a whole.
    """

    best: Trial | None
    trials: tuple[Trial, ...]
    estimated: Mapping[Split, float]
    pruned: Mapping[Split, float]
    whole_compiles: int


class LayoutSearch:
    """A search.

    Args:
        candidates: All candidates.
        known: Candidates that are tried first: the settings of a published run.
        estimate: Candidate -> its rough estimate.
        usable: The memory of a GPU that JAX takes, in bytes.
        measure: Candidate -> its trial, extrapolated from few layers where that is possible.
        compile_whole: Candidate -> its trial, of the whole model.
        most_trials: The largest number of trials.
        report: Takes a line about the progress.
        finish_trial: Is called after each trial.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        known: Sequence[Candidate],
        *,
        estimate: Callable[[Candidate], Estimate],
        usable: float,
        measure: Callable[[Candidate], Trial],
        compile_whole: Callable[[Candidate], Trial],
        most_trials: int,
        report: Callable[[str], None],
        finish_trial: Callable[[], None] = lambda: None,
    ) -> None:
        self._usable = usable
        self._finish_trial = finish_trial
        self._measure, self._compile_whole = measure, compile_whole
        self._most_trials, self._report = most_trials, report
        everything = dict.fromkeys([*known, *candidates])
        self._estimates = {candidate: estimate(candidate) for candidate in everything}
        self._known = known
        self._trials: dict[Candidate, Trial] = {}
        self._whole_compiles = 0

    def run(self) -> SearchResult:
        """Search, and return what was found."""
        open_candidates = [
            candidate
            for candidate, estimate in self._estimates.items()
            if estimate.state <= self._usable
        ]
        self._report(
            f"{len(open_candidates):,} of {len(self._estimates):,} candidates have a state that "
            "fits"
        )
        for candidate in self._known:
            if candidate in open_candidates:
                self._try(candidate)
        best = self._find_best(open_candidates)
        return SearchResult(
            best,
            tuple(self._order_trials()),
            self._compare_untried(open_candidates, best),
            self._list_pruned_splits(open_candidates),
            self._whole_compiles,
        )

    def _try(self, candidate: Candidate) -> None:
        """Compile a candidate with few layers."""
        number = len(self._trials) + 1
        self._report(f"trial {number} of at most {self._most_trials}: {candidate.describe()}")
        trial = self._measure(candidate)
        self._trials[candidate] = trial
        self._report(self._describe_outcome(trial))
        self._finish_trial()

    def _describe_outcome(self, trial: Trial) -> str:
        """Return one line about a trial."""
        if trial.problem:
            return f"no figures: {trial.problem}"
        verdict = "fits" if trial.peak <= self._usable else "does not fit"
        return (
            f"{verdict}, {trial.peak / 1e9:.1f} of {self._usable / 1e9:.1f} GB; "
            f"{trial.rate:,.4g} sequences/s on all GPUs"
        )

    def correct(self, candidate: Candidate) -> Estimate:
        """Return the estimate of a candidate, corrected by the trial that is most like it."""
        estimate = self._estimates[candidate]
        trials = [trial for trial in self._trials.values() if not trial.problem]
        if not trials:
            return estimate
        trial = min(trials, key=lambda trial: _count_differences(candidate, trial.candidate))
        reference = self._estimates[trial.candidate]
        memory = max(trial.peak - reference.state, 0.0) / max(reference.activations, 1.0)
        return replace(
            estimate,
            activations=estimate.activations * memory,
            seconds=estimate.seconds * trial.seconds["likely"] / reference.seconds,
        )

    def _promise(self, candidate: Candidate) -> float:
        """Return the sequences per second that a candidate promises."""
        return candidate.sequences / self.correct(candidate).seconds

    def _fits(self, candidate: Candidate) -> bool:
        """Return whether a candidate promises to fit."""
        estimate = self.correct(candidate)
        return estimate.state + estimate.activations <= CAUTION * self._usable

    def _choose_next(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """Return the candidate to compile next; None if none promises enough."""
        untried = [candidate for candidate in candidates if candidate not in self._trials]
        promising = [candidate for candidate in untried if self._fits(candidate)]
        best_rate = max((trial.rate for trial in self._list_fitting_trials()), default=0.0)
        if not promising:
            if best_rate or not untried:
                return None
            smallest = min(untried, key=self._estimate_memory)
            # Nothing fits so far. A candidate that is far too big is compiled only if no other one
            # was: its figures correct the estimates.
            is_near = self._estimate_memory(smallest) <= NEARLY * self._usable
            return smallest if is_near or not self._trials else None
        layouts = {candidate.layout for candidate in self._trials}
        worthwhile = [
            candidate
            for candidate in promising
            if self._promise(candidate)
            * (1 / WORTHWHILE if candidate.layout in layouts else OPTIMISM)
            > best_rate
        ]
        return max(worthwhile, key=self._rank, default=None)

    def _rank(self, candidate: Candidate) -> tuple[float, int, int]:
        """Return the key by which the best candidate is chosen; fewer microbatches break a tie."""
        promise = self._promise(candidate)
        return float(f"{promise:.3g}"), -candidate.microbatches, -candidate.sequences

    def _estimate_memory(self, candidate: Candidate) -> float:
        """Return the memory that a candidate is estimated to need."""
        estimate = self.correct(candidate)
        return estimate.state + estimate.activations

    def _list_fitting_trials(self) -> list[Trial]:
        """Return the trials that fit, the best first, then the fastest."""
        fitting = [
            trial
            for trial in self._trials.values()
            if not trial.problem and trial.peak <= self._usable
        ]
        fitting.sort(key=lambda trial: -trial.rate)
        equal = [trial for trial in fitting if trial.rate * EQUAL >= fitting[0].rate]
        best = min(equal, key=lambda trial: trial.peak, default=None)
        return sorted(fitting, key=lambda trial: trial is not best)

    def _find_best(self, candidates: Sequence[Candidate]) -> Trial | None:
        """Compile candidates until the best one is compiled as a whole; return it.

        A finalist that disappoints corrects the estimates, and the search goes on. If no more steps
        may be compiled as a whole, the best one that was is returned, or else the best one.
        """
        while True:
            while len(self._trials) < self._most_trials:
                following = self._choose_next(candidates)
                if following is None:
                    break
                self._try(following)
            fitting = self._list_fitting_trials()
            open_trials = [trial for trial in fitting if not trial.unconfirmed]
            if open_trials and open_trials[0].whole:
                return open_trials[0]
            if not open_trials or self._whole_compiles == MOST_WHOLE_COMPILES:
                confirmed = [trial for trial in fitting if trial.whole]
                return next(iter(confirmed or fitting), None)
            self._confirm(open_trials[0])

    def _confirm(self, trial: Trial) -> None:
        """Compile a finalist as a whole."""
        candidate = trial.candidate
        self._whole_compiles += 1
        self._report(f"finalist, whole model: {candidate.describe()}")
        whole = self._compile_whole(candidate)
        self._report(self._describe_outcome(whole))
        if whole.problem:
            self._trials[candidate] = replace(trial, unconfirmed=whole.problem)
        else:
            self._trials[candidate] = replace(whole, extrapolated=trial)

    def _order_trials(self) -> list[Trial]:
        """Return the trials that fit, then those that do not, then those with a problem."""
        fitting = self._list_fitting_trials()
        others = [trial for trial in self._trials.values() if trial not in fitting]
        return fitting + sorted(others, key=lambda trial: (bool(trial.problem), trial.peak))

    def _compare_untried(
        self, candidates: Iterable[Candidate], best: Trial | None
    ) -> dict[Split, float]:
        """Return `estimated` of SearchResult."""
        if best is None:
            return {}
        tried = {candidate.split for candidate in self._trials}
        rates: dict[Split, float] = {}
        for candidate in candidates:
            if candidate.split not in tried and self._fits(candidate):
                rate = self._promise(candidate)
                rates[candidate.split] = max(rates.get(candidate.split, 0.0), rate)
        return {split: best.rate / rate for split, rate in sorted(rates.items())}

    def _list_pruned_splits(self, candidates: Iterable[Candidate]) -> dict[Split, float]:
        """Return `pruned` of SearchResult."""
        open_splits = {candidate.split for candidate in candidates}
        pruned: dict[Split, float] = {}
        for candidate, estimate in self._estimates.items():
            if candidate.split not in open_splits:
                state = min(pruned.get(candidate.split, math.inf), estimate.state)
                pruned[candidate.split] = state
        return dict(sorted(pruned.items()))


def _count_differences(candidate: Candidate, other: Candidate) -> tuple[bool, bool, bool, float]:
    """Return how unlike two candidates are, the most important difference first."""
    return (
        (candidate.remat, candidate.scanned) != (other.remat, other.scanned),
        candidate.split != other.split,
        (candidate.microbatches > 1) != (other.microbatches > 1),
        abs(math.log2(candidate.rows / other.rows)),
    )
