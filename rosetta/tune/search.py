"""The search: the batch doubled while it pays, then each switch by itself on top of what was kept.

It knows nothing of how a trial is made.
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
MINIMUM_GAIN = (
    0.005  # share: what gains less is not worth another setting, however still the machine
)


@dataclass(frozen=True)
class Choice:
    """What is tried: sequences a GPU (None: what the preset says), switches of presets, and fields
    of them.
    """

    batch: int | None = None
    switches: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()

    def settings(self) -> dict[str, str]:
        """Return it as a command line has it."""
        found = {} if self.batch is None else {"batch.per_gpu": str(self.batch)}
        return {
            **found,
            **({"ROSETTA_WITH": ",".join(self.switches)} if self.switches else {}),
            **dict(self.fields),
        }

    def plus(self, part: Choice) -> Choice:
        """Return it with a part, which takes the place of its opposite: no-X that of X."""
        opposites = {
            each.removeprefix("no-") if each.startswith("no-") else f"no-{each}"
            for each in part.switches
        }
        return replace(
            self,
            switches=(*(each for each in self.switches if each not in opposites), *part.switches),
            fields=(*self.fields, *part.fields),
        )


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: OK with its rate, larger being better, or another word with the reason.

    `more` is for whoever reads the evidence.
    """

    kind: str
    rate: float = 0.0
    reason: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchResult:
    """What was found: the choice, its rate and that of the start, and the noise, the largest
    distance of a repeat from their median as a share of it.
    """

    choice: Choice
    rate: float
    before: float
    noise: float
    kept: tuple[tuple[str, float], ...]  # what was kept, in order, and what it gained as a share


class Search:
    """A search over trials.

    Args:
      measure: makes a trial of a choice; the number tells repeats of one apart.
      repeats: of what it starts from, by which noise is known. 1: what is measured is always the
        same, and once is enough for a choice, too.
      most: trials after those of the start, at the most.
      comes_to: what a choice comes to. One that comes to what is kept already is not tried.
      say: takes a line about each step.
    """

    def __init__(
        self,
        measure: Callable[[Choice, int], Outcome],
        repeats: int,
        *,
        most: float = math.inf,
        comes_to: Callable[[Choice], object] = lambda choice: choice,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._measure, self._repeats, self._comes_to, self._say = measure, repeats, comes_to, say
        self._times, self._left = min(repeats, 2), most

    def run(
        self, batch: int | None, parts: Iterable[tuple[str, Choice]], *, grow: bool
    ) -> SearchResult:
        """Return what is best.

        Args:
          batch: that the preset has; None where it cannot be doubled.
          parts: name -> what it adds, each tried once.
          grow: whether the batch may change upwards. Where it does not fit, it is halved in any
            case.

        Raises:
          UserError: what it starts from does not run.
        """
        choice, outcomes = self._start(batch)
        rates = [each.rate for each in outcomes]
        before = rate = statistics.median(rates)
        noise = max(abs(each / before - 1) for each in rates)
        self._say(
            f"it starts at {before:,.4g}"
            + (f", and repeats differ by up to {noise:.1%}" if self._repeats > 1 else "")
        )
        kept = list[tuple[str, float]]()
        # One that was halved has been tried at twice the size.
        while grow and batch is not None and (choice.batch is None or kept) and self._more():
            larger = replace(choice, batch=2 * (choice.batch or batch))
            better = self._better(larger, rate, noise, f"batch {larger.batch}")
            if better is None:
                break
            kept.append((f"batch {larger.batch}", better / rate - 1))
            choice, rate = larger, better
        for name, part in parts:
            more = choice.plus(part)
            if self._comes_to(more) == self._comes_to(choice):
                self._say(f"{name}: it changes nothing here")
                continue
            if not self._more():
                break
            better = self._better(more, rate, noise, name)
            if better is not None:
                kept.append((name, better / rate - 1))
                choice, rate = more, better
        return SearchResult(choice, rate, before, noise, tuple(kept))

    def _more(self) -> bool:
        if self._left >= self._times:
            return True
        if self._left >= 0:
            self._say("no more trials: see --trials")
            self._left = -1
        return False

    def _start(self, batch: int | None) -> tuple[Choice, list[Outcome]]:
        choice = Choice()
        while True:
            first = self._measure(choice, 0)
            if first.kind == OK:
                break
            smaller = (choice.batch or batch or 1) // 2
            if first.kind != OUT_OF_MEMORY or not smaller:
                raise UserError(
                    f"it does not run: {first.reason}",
                    "rosetta tune",
                    "mend that, or tune another preset; its log is beside the evidence",
                    kind=FAILED,
                    value=first.kind,
                )
            self._say(f"{first.reason}; {smaller} sequences a GPU instead")
            choice = replace(choice, batch=smaller)
        others = [self._measure(choice, number) for number in range(1, self._repeats)]
        return choice, [first, *(each for each in others if each.kind == OK)]

    def _better(self, choice: Choice, rate: float, noise: float, name: str) -> float | None:
        """Return the rate of a choice that gains more than the noise each time, else None."""
        rates = list[float]()
        for number in range(self._times):
            self._left -= 1
            found = self._measure(choice, number)
            if found.kind != OK:
                self._say(f"{name}: {found.kind}, {found.reason}")
                return None
            rates.append(found.rate)
            gain = found.rate / rate - 1
            if gain <= max(noise, MINIMUM_GAIN):
                self._say(f"{name}: {gain:+.1%}, left out")
                return None
        self._say(f"{name}: {min(rates) / rate - 1:+.1%}, kept")
        return min(rates)
