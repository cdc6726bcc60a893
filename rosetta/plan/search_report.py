"""Report the end of a search: the answer, why the others lost, and the front of memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.plan import search_space
from rosetta.plan.autotune_results import UNTUNED
from rosetta.plan.step_time import MILLISECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.plan.compile_trials import CompileTrials
    from rosetta.plan.layout_search import SearchResult, Trial
    from rosetta.plan.search_space import Candidate
    from rosetta.plan.searched_run import SearchedRun

GIGA = 1e9
_FITS, _TOO_BIG, _NO_FIGURES = "fits", "does not fit", "no figures"


def describe_trial(trial: Trial, searched: SearchedRun, usable: float) -> dict[str, Any]:
    """Return a trial as part of the JSON of `rosetta plan --search`.

    Args:
        trial: The trial.
        searched: What was searched.
        usable: The memory of a GPU that JAX takes, in bytes.
    """
    candidate = trial.candidate
    split = candidate.split
    document: dict[str, Any] = {
        "split": {"data": split.data, "fsdp": split.fsdp, "tensor": split.tensor},
        "remat": candidate.remat,
        "scan": candidate.scanned,
        "rows": candidate.rows,
        "microbatches": candidate.microbatches,
        "global_batch": candidate.sequences,
        "batch_per_gpu": search_space.compute_batch_per_gpu(candidate, searched.model),
        "verdict": _judge(trial, usable),
    }
    if trial.problem:
        return {**document, "problem": trial.problem}
    rate = trial.rate / searched.gpus
    document |= {
        "peak": trial.peak,
        "seconds": dict(trial.seconds),
        "parts": dict(trial.parts),
        "sequences_per_second_per_gpu": rate,
        "tokens_per_second_per_gpu": rate * searched.model.tokens,
        "whole": trial.whole,
    }
    if trial.unconfirmed:
        document["unconfirmed"] = trial.unconfirmed
    if trial.extrapolated:
        document["extrapolated"] = {
            "peak": trial.extrapolated.peak,
            "seconds": dict(trial.extrapolated.seconds),
        }
    return document


def _judge(trial: Trial, usable: float) -> str:
    """Return the verdict on a trial."""
    if trial.problem:
        return _NO_FIGURES
    return _FITS if trial.peak <= usable else _TOO_BIG


def explain_loss(trial: Trial, best: Trial, usable: float) -> str:
    """Return why a trial is not the answer.

    Args:
        trial: The trial.
        best: The answer.
        usable: The memory of a GPU that JAX takes, in bytes.
    """
    if trial.problem:
        return trial.problem
    if trial.peak > usable:
        return f"does not fit: {trial.peak / GIGA:.1f} of {usable / GIGA:.1f} GB"
    slower = best.rate / trial.rate - 1
    if slower < 0 and trial.whole:
        return f"{-slower:.1%} faster, but it takes {trial.peak / GIGA:.1f} GB"
    if slower < 0:
        return f"{-slower:.1%} faster by few layers, but not compiled as a whole"
    kinds = dict.fromkeys([*trial.parts, *best.parts])
    longer = {
        kind: trial.parts.get(kind, 0.0) / trial.candidate.sequences
        - best.parts.get(kind, 0.0) / best.candidate.sequences
        for kind in kinds
    }
    kind = max(longer, key=lambda kind: longer[kind])
    total = best.seconds["likely"] / best.candidate.sequences
    return f"{slower:.1%} slower: {kind} +{longer[kind] / total:.1%} of the answer's time"


@dataclass(frozen=True)
class SearchReport:
    """The end of a search that found an answer.

    Attributes:
        best: The answer.
        result: The end of the search.
        searched: What was searched.
        usable: The memory of a GPU that JAX takes, in bytes.
        published: The settings of the published run; None if they are outside of the space.
        compiled: What compiled the steps.
    """

    best: Trial
    result: SearchResult
    searched: SearchedRun
    usable: float
    published: Candidate | None
    compiled: CompileTrials

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of `rosetta plan --search`, without the files."""
        documents = []
        for trial in self.result.trials:
            document = describe_trial(trial, self.searched, self.usable)
            if trial is not self.best:
                document["lost"] = explain_loss(trial, self.best, self.usable)
            documents.append(document)
        return {
            "prediction": True,
            "autotuning": UNTUNED,
            "extends": self.searched.preset,
            "gpus": self.searched.gpus,
            "usable": self.usable,
            "answer": describe_trial(self.best, self.searched, self.usable),
            "trials": documents,
            "published_rank": self._find_published_rank(),
            "estimated": [
                {"split": split.describe(), "times_slower": factor}
                for split, factor in self.result.estimated.items()
            ],
            "pruned": [
                {"split": split.describe(), "state": state}
                for split, state in self.result.pruned.items()
            ],
            "compiled": {
                "steps": self.compiled.used,
                "now": self.compiled.compiled,
                "seconds": self.compiled.compile_seconds,
                "rss": self.compiled.largest_process,
                "whole": self.result.whole_compiles,
            },
        }

    def _find_published_rank(self) -> int | None:
        """Return the rank of the published settings; None if they were not tried."""
        candidates = [trial.candidate for trial in self.result.trials]
        return candidates.index(self.published) + 1 if self.published in candidates else None

    def format_text(self, gpu_name: str) -> str:
        """Return the report as text."""
        best, searched, compiled = self.best, self.searched, self.compiled
        seconds = {name: value * MILLISECONDS for name, value in best.seconds.items()}
        rate = best.rate / searched.gpus
        lines = [
            (
                f"answer       {searched.model.name} on {searched.gpus} x {gpu_name}: "
                f"{best.candidate.describe()}"
            ),
            f"batch        {best.candidate.sequences:,} sequences a step",
            f"fits         {best.peak / GIGA:.1f} of {self.usable / GIGA:.1f} GB that JAX takes",
            (
                f"predicted    {seconds['likely']:,.1f} ms a step ({seconds['fastest']:,.1f} to "
                f"{seconds['slowest']:,.1f}), {UNTUNED}; nothing was measured"
            ),
            (
                f"rate         {rate:,.4g} sequences/s/GPU, {rate * searched.model.tokens:,.0f} "
                "tokens/s/GPU"
            ),
            f"confirmed    {_describe_confirmation(best)}",
            "trials, the answer first, then the fastest:",
            *self._format_trials(),
        ]
        if self.published is None:
            lines.append("the settings of the published run are outside of what was searched")
        lines += [
            f"  not compiled: {split.describe()}: estimated {factor - 1:+.0%} time a sequence"
            for split, factor in self.result.estimated.items()
        ]
        if self.result.pruned:
            states = sorted(self.result.pruned.values())
            lines.append(
                f"  cannot fit: {len(states)} splits, whose state alone takes "
                f"{states[0] / GIGA:,.1f} to {states[-1] / GIGA:,.1f} GB"
            )
        lines.append(
            f"{compiled.used} step(s) were compiled, {compiled.compiled} of them now, in "
            f"{compiled.compile_seconds:.0f} s and with {compiled.largest_process / GIGA:.1f} GB "
            "of memory at most"
        )
        return "\n".join(lines)

    def _format_trials(self) -> list[str]:
        """Return a line for each trial."""
        lines = []
        for rank, trial in enumerate(self.result.trials, 1):
            outcome = "the answer"
            if trial is not self.best:
                outcome = explain_loss(trial, self.best, self.usable)
            mark = " (published settings)" if trial.candidate == self.published else ""
            rate = ""
            if not trial.problem:
                rate = f" {trial.rate / self.searched.gpus:,.4g} sequences/s/GPU,"
            lines.append(f"  {rank}. {trial.candidate.describe()}{mark}:{rate} {outcome}")
        return lines


def _describe_confirmation(best: Trial) -> str:
    """Return whether the whole model was compiled, and how well few layers agreed."""
    if not best.whole:
        return f"no: few layers were extrapolated ({best.unconfirmed or 'no compile was left'})"
    few = best.extrapolated
    if few is None:
        return "yes: the whole model was compiled"
    return (
        f"yes: the whole model was compiled; from few layers came {few.peak / GIGA:.1f} GB "
        f"({few.peak / best.peak - 1:+.1%}) and {few.seconds['likely'] * MILLISECONDS:,.1f} ms "
        f"({few.seconds['likely'] / best.seconds['likely'] - 1:+.1%})"
    )


def list_front(
    trials: Sequence[Trial], searched: SearchedRun, usable: float
) -> dict[str, list[tuple[float, float]]]:
    """Return the points of the picture, name -> (GB of a GPU, GPU milliseconds of a sequence).

    The front has the trials that fit and that no other beats in both. The other groups are the
    remaining trials that fit, and those that do not.

    Args:
        trials: The trials.
        searched: What was searched.
        usable: The memory of a GPU that JAX takes, in bytes.
    """
    groups: dict[str, list[tuple[float, float]]] = {"front": [], "slower": [], _TOO_BIG: []}
    points = sorted(
        (trial.peak / GIGA, MILLISECONDS * searched.gpus / trial.rate)
        for trial in trials
        if not trial.problem
    )
    fastest = float("inf")
    for memory, time in points:
        if memory * GIGA > usable:
            groups[_TOO_BIG].append((memory, time))
        elif time < fastest:
            groups["front"].append((memory, time))
            fastest = time
        else:
            groups["slower"].append((memory, time))
    return {name: group for name, group in groups.items() if group}
