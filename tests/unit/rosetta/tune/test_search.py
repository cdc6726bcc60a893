from __future__ import annotations

from collections.abc import Callable

import pytest

from rosetta.tune.search import OK, Choice, Outcome, Search
from tests.support import errors

MEMORY = Outcome("out-of-memory", reason="the run does not fit into memory")
PARTS = [
    ("a", Choice(switches=("a",))),
    ("b", Choice(switches=("b",))),
    ("combine", Choice(fields=(("combine", "layers"),))),
]


def machine(
    fits: int, gains: dict[str, float], noise: float = 0.01, start: int = 8
) -> tuple[Callable[[Choice, int], Outcome], list[tuple[Choice, int]]]:
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
    measure, tried = machine(3, {})
    found = Search(measure, 3).run(8, [], grow=True)
    assert (found.choice.batch, found.kept) == (2, ())
    assert [choice.batch for choice, repeat in tried if not repeat] == [None, 4, 2], (
        "what did not fit is not tried again"
    )


def test_gains_above_the_noise_are_kept_on_top_of_each_other() -> None:
    found = Search(machine(8, {"a": 0.05, "b": -0.2, "combine": 0.04})[0], 3).run(
        8, PARTS, grow=True
    )
    assert found.choice == Choice(None, ("a",), (("combine", "layers"),))
    assert [name for name, _ in found.kept] == ["a", "combine"]
    assert found.noise == pytest.approx(0.01)
    assert found.choice.settings() == {"ROSETTA_WITH": "a", "combine": "layers"}


def test_gains_below_the_noise_are_dropped() -> None:
    measure, tried = machine(8, {"a": 0.05}, noise=0.08)
    assert Search(measure, 3).run(8, PARTS[:1], grow=False).kept == ()
    assert [repeat for choice, repeat in tried if choice.switches] == [0]


def test_a_choice_has_to_gain_twice() -> None:
    rates = iter([100.0, 100.0, 120.0, 99.0])
    assert Search(lambda *_: Outcome(OK, next(rates)), 2).run(8, PARTS[:1], grow=False).kept == ()


def test_a_failed_trial_does_not_end_the_search() -> None:
    said: list[str] = []
    found = Search(machine(8, {"a": 0.1})[0], 2, report=said.append).run(
        8, [("broken", Choice(switches=("broken",))), *PARTS], grow=False
    )
    assert found.choice.switches == ("a",)
    assert "broken: failed, XLA has no flag" in said


def test_an_identical_run_is_not_tried() -> None:
    measure, tried = machine(8, {"a": 0.1})
    said: list[str] = []
    found = Search(
        measure, 3, identify=lambda choice: "a" in choice.switches, report=said.append
    ).run(8, PARTS, grow=False)
    assert found.choice.switches == ("a",)
    assert {choice.switches for choice, _ in tried} == {(), ("a",)}
    assert said[-2:] == ["b: changes nothing in this run", "combine: changes nothing in this run"]


def test_a_switch_replaces_its_opposite() -> None:
    parts = [(name, Choice(switches=(name,))) for name in ("x", "a", "no-x")]
    found = Search(machine(8, {"x": 0.1, "a": 0.1, "no-x": 0.3})[0], 3).run(8, parts, grow=False)
    assert found.choice.switches == ("a", "no-x")
    assert Choice(switches=("no-x", "a")).plus(Choice(switches=("x",))).switches == ("a", "x")


def test_rates_without_noise_are_measured_once() -> None:
    measure, tried = machine(16, {"a": 0.1}, noise=0.0)
    assert Search(measure, 1).run(8, PARTS[:1], grow=True).choice == Choice(16, ("a",))
    assert [(choice.batch, repeat) for choice, repeat in tried] == [
        (None, 0),
        (16, 0),
        (32, 0),
        (16, 0),
    ]


@pytest.mark.parametrize(
    ("most", "batch", "count"), [(0, None, 0), (1, None, 0), (2, 16, 2), (5, 32, 4)]
)
def test_the_number_of_trials_is_limited(most: int, batch: int | None, count: int) -> None:
    measure, tried = machine(10**9, {})
    said: list[str] = []
    assert (
        Search(measure, 3, max_trials=most, report=said.append)
        .run(8, PARTS, grow=True)
        .choice.batch
        == batch
    )
    assert len(tried) - 3 == count
    assert [said.index(line) for line in said if "no more" in line] == [len(said) - 1], "once"


def test_a_preset_that_does_not_run_is_an_error() -> None:
    with errors.expect_user_error(errors.FAILED, where="rosetta tune", value="refused"):
        Search(lambda *_: Outcome("refused", reason="no such vocabulary"), 3).run(
            8, PARTS, grow=True
        )
    with errors.expect_user_error(errors.FAILED, where="rosetta tune", value="out-of-memory"):
        Search(lambda *_: MEMORY, 3).run(8, PARTS, grow=True)
