from __future__ import annotations

from collections.abc import Callable

import pytest

from rosetta.errors import UserError
from rosetta.tune.search import OK, Choice, Outcome, Search

MEMORY = Outcome("out-of-memory", reason="it does not fit into memory")
PARTS = [("a", Choice(switches=("a",))), ("b", Choice(switches=("b",))), ("combine", Choice(fields=(("combine", "layers"),)))]


def machine(fits: int, gains: dict[str, float], noise: float = 0.01, start: int = 8) -> tuple[Callable[[Choice, int], Outcome], list[tuple[Choice, int]]]:
    """A machine on which a doubled batch is a tenth faster up to 32, and a switch gains what is said; repeats go up and down."""
    tried: list[tuple[Choice, int]] = []

    def measure(choice: Choice, repeat: int) -> Outcome:
        tried.append((choice, repeat))
        batch = choice.batch or start
        if batch > fits:
            return MEMORY
        rate = 100.0 * min(batch, 32) ** 0.14
        for name in (*choice.switches, *(field for field, _ in choice.fields)):
            if name == "broken":
                return Outcome("failed", reason="XLA has no flag")
            rate *= 1 + gains.get(name, 0.0)
        return Outcome(OK, rate * (1 + noise * (repeat % 3 - 1)))

    return measure, tried


def test_the_batch_is_doubled_while_it_pays_and_fits() -> None:
    assert Search(machine(10**6, {})[0], 3).run(8, [], grow=True).choice.batch == 32
    assert Search(machine(16, {})[0], 3).run(8, [], grow=True).choice.batch == 16
    assert Search(machine(10**6, {})[0], 3).run(8, [], grow=False).choice.batch is None
    assert Search(machine(10**6, {})[0], 3).run(None, [], grow=True).choice.batch is None


def test_a_batch_that_does_not_fit_is_halved() -> None:
    found = Search(machine(3, {})[0], 3).run(8, [], grow=True)
    assert (found.choice.batch, found.kept) == (2, ())


def test_what_gains_more_than_the_noise_is_kept_one_on_top_of_the_other() -> None:
    found = Search(machine(8, {"a": 0.05, "b": -0.2, "combine": 0.04})[0], 3).run(8, PARTS, grow=True)
    assert found.choice == Choice(None, ("a",), (("combine", "layers"),))
    assert [name for name, _ in found.kept] == ["a", "combine"]
    assert found.noise == pytest.approx(0.01)
    assert found.choice.settings() == {"ROSETTA_WITH": "a", "combine": "layers"}


def test_what_gains_less_than_the_noise_is_not() -> None:
    measure, tried = machine(8, {"a": 0.05}, noise=0.08)
    assert Search(measure, 3).run(8, PARTS[:1], grow=False).kept == ()
    assert [repeat for choice, repeat in tried if choice.switches] == [0]


def test_it_has_to_gain_twice() -> None:
    rates = iter([100.0, 100.0, 120.0, 99.0])
    assert Search(lambda *_: Outcome(OK, next(rates)), 2).run(8, PARTS[:1], grow=False).kept == ()


def test_a_trial_that_fails_is_left_out_and_the_search_goes_on() -> None:
    said: list[str] = []
    found = Search(machine(8, {"a": 0.1})[0], 2, said.append).run(8, [("broken", Choice(switches=("broken",))), *PARTS], grow=False)
    assert found.choice.switches == ("a",)
    assert "broken: failed, XLA has no flag" in said


def test_a_preset_that_does_not_run_is_told() -> None:
    with pytest.raises(UserError, match="it does not run: no such vocabulary"):
        Search(lambda *_: Outcome("refused", reason="no such vocabulary"), 3).run(8, PARTS, grow=True)
    with pytest.raises(UserError, match="does not fit"):
        Search(lambda *_: MEMORY, 3).run(8, PARTS, grow=True)
