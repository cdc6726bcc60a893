"""Search for the fastest settings: double the batch as long as that pays, then try each switch.

A switch is tried on top of what was kept before. The search does not know how a trial is made.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import FAILED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OK, OUT_OF_MEMORY = "ok", "out-of-memory"
# A gain below this share of the rate is not worth another setting, even if repeats do not differ.
MINIMUM_GAIN = 0.005


@dataclass(frozen=True)
class Choice:
    """The settings of a trial, on top of those of the preset.

    Attributes:
        batch: Sequences per GPU; None for the preset's.
        switches: Switches of presets.
        fields: (field, value) of presets.
    """

    batch: int | None = None
    switches: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()

    def settings(self) -> dict[str, str]:
        """Return the settings as NAME -> VALUE of a command line."""
        settings = {}
        if self.batch is not None:
            settings["batch.per_gpu"] = str(self.batch)
        if self.switches:
            settings["ROSETTA_WITH"] = ",".join(self.switches)
        settings.update(self.fields)
        return settings

    def plus(self, part: Choice) -> Choice:
        """Return this choice with the switches and fields of another one added.

        A switch replaces its opposite: `no-X` replaces `X`, and the other way round.
        """
        opposites = {
            name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
            for name in part.switches
        }
        remaining = [name for name in self.switches if name not in opposites]
        return replace(
            self,
            switches=(*remaining, *part.switches),
            fields=(*self.fields, *part.fields),
        )


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        kind: OK, OUT_OF_MEMORY, "too long", "refused" or "failed".
        rate: The speed if the trial is OK; larger is better.
        reason: Why the trial is not OK.
        more: Details for the people who read the evidence.
    """

    kind: str
    rate: float = 0.0
    reason: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        choice: The best settings.
        rate: Their rate.
        before: The rate of the settings at the start.
        noise: The largest distance of a repeat from the median, as a share of the median.
        kept: (name, gain) of what was kept, in this order. The gain is a share of the rate.
    """

    choice: Choice
    rate: float
    before: float
    noise: float
    kept: tuple[tuple[str, float], ...]


class Search:
    """A search over trials.

    Args:
        measure: Makes a trial of a choice. The number tells repeats of one choice apart.
        repeats: Trials of the settings at the start, from which the noise is known. 1 means that
            repeats do not differ, so that one trial of a choice is enough too.
        max_trials: The most trials, not counting those of the start.
        identify: Returns what a choice means for a run. A choice is not tried if it means the same
            as the settings that are kept already.
        report: Takes a line about each step.
    """

    def __init__(
        self,
        measure: Callable[[Choice, int], Outcome],
        repeats: int,
        *,
        max_trials: float = math.inf,
        identify: Callable[[Choice], object] = lambda choice: choice,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._measure, self._repeats = measure, repeats
        self._identify, self._report = identify, report
        self._trials_per_choice = min(repeats, 2)
        self._trials_left = max_trials

    def run(
        self, batch: int | None, parts: Iterable[tuple[str, Choice]], *, grow: bool
    ) -> SearchResult:
        """Return the best settings.

        Args:
            batch: The batch of the preset; None if it cannot be doubled.
            parts: (name, what it adds) of the switches and fields to try, each of them once.
            grow: Whether to try larger batches. A batch that does not fit into memory is halved in
                any case.

        Raises:
            UserError: The settings at the start do not run.
        """
        choice, outcomes = self._start(batch)
        rates = [outcome.rate for outcome in outcomes]
        before = rate = statistics.median(rates)
        noise = max(abs(repeat / before - 1) for repeat in rates)
        line = f"the rate at the start is {before:,.4g}"
        if self._repeats > 1:
            line += f", and repeats differ by up to {noise:.1%}"
        self._report(line)
        kept = list[tuple[str, float]]()
        # A batch that was halved did not fit at twice the size.
        was_halved = choice.batch is not None
        while grow and batch is not None and not was_halved and self._has_trials_left():
            larger = replace(choice, batch=2 * (choice.batch or batch))
            name = f"batch {larger.batch}"
            better = self._measure_gain(larger, rate, noise, name)
            if better is None:
                break
            kept.append((name, better / rate - 1))
            choice, rate = larger, better
        for name, part in parts:
            extended = choice.plus(part)
            if self._identify(extended) == self._identify(choice):
                self._report(f"{name}: changes nothing in this run")
                continue
            if not self._has_trials_left():
                break
            better = self._measure_gain(extended, rate, noise, name)
            if better is not None:
                kept.append((name, better / rate - 1))
                choice, rate = extended, better
        return SearchResult(choice, rate, before, noise, tuple(kept))

    def _has_trials_left(self) -> bool:
        """Return whether another choice may be tried; report it once if none may."""
        if self._trials_left >= self._trials_per_choice:
            return True
        if self._trials_left >= 0:
            self._report("no more trials: see --trials")
            self._trials_left = -1
        return False

    def _start(self, batch: int | None) -> tuple[Choice, list[Outcome]]:
        """Return the settings at the start with a batch that fits, and the outcomes of its trials.

        Raises:
            UserError: The settings do not run.
        """
        choice = Choice()
        while True:
            first = self._measure(choice, 0)
            if first.kind == OK:
                break
            smaller = (choice.batch or batch or 1) // 2
            if first.kind != OUT_OF_MEMORY or not smaller:
                raise UserError(
                    f"the preset does not run: {first.reason}",
                    "rosetta tune",
                    "correct that, or tune another preset; the log is beside the evidence",
                    kind=FAILED,
                    value=first.kind,
                )
            self._report(f"{first.reason}; {smaller} sequences a GPU instead")
            choice = replace(choice, batch=smaller)
        others = [self._measure(choice, number) for number in range(1, self._repeats)]
        return choice, [first, *(outcome for outcome in others if outcome.kind == OK)]

    def _measure_gain(self, choice: Choice, rate: float, noise: float, name: str) -> float | None:
        """Return the lowest rate of a choice, None if a trial does not gain more than the noise.

        Args:
            choice: The choice to try.
            rate: The rate without the choice.
            noise: The noise, as a share of the rate.
            name: What is tried, for the report.
        """
        rates = list[float]()
        for number in range(self._trials_per_choice):
            self._trials_left -= 1
            outcome = self._measure(choice, number)
            if outcome.kind != OK:
                self._report(f"{name}: {outcome.kind}, {outcome.reason}")
                return None
            rates.append(outcome.rate)
            gain = outcome.rate / rate - 1
            if gain <= max(noise, MINIMUM_GAIN):
                self._report(f"{name}: {gain:+.1%}, left out")
                return None
        self._report(f"{name}: {min(rates) / rate - 1:+.1%}, kept")
        return min(rates)
