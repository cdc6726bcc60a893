"""What one process asks for happens before the same step in all of them."""

from __future__ import annotations

import threading
import time

import pytest

from rosetta.health import barrier
from rosetta.health.barrier import StepBarrier
from rosetta.health.key_value_store import CoordinationStore, LocalStore


def test_one_process_needs_nobody() -> None:
    alone = StepBarrier("stop", LocalStore(), 0, 1)
    assert not alone.is_reached(4)
    alone.request("SIGTERM")
    alone.poll()
    assert alone.is_reached(5)
    assert alone.reason == "SIGTERM"
    assert not alone.is_reached(6)


def _run(ranks: int, who: int, at: int, *, hurry: float = 0.0) -> list[int]:
    """Steps that each of so many processes, as threads, stopped before; rank `who` asks before step `at`."""
    board, stopped = LocalStore(), [-1] * ranks
    each = [StepBarrier("stop", board, rank, ranks) for rank in range(ranks)]
    done = threading.Event()

    def talk(rank: int) -> None:
        while not done.is_set():
            each[rank].poll()
            time.sleep(0.01)

    def train(rank: int) -> None:
        for step in range(10_000):
            if rank == who and step == at:
                each[rank].request("USR1")
            if each[rank].is_reached(step):
                stopped[rank] = step
                return
            time.sleep(0.002 + hurry * rank)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
    talkers = [threading.Thread(target=talk, args=(rank,)) for rank in range(ranks)]
    for thread in threads + talkers:
        thread.start()
    for thread in threads:
        thread.join(60)
    done.set()
    for thread in talkers:
        thread.join(60)
    assert {one.reason for one in each} == {"USR1"}
    return stopped


@pytest.mark.parametrize("who", [0, 2])
def test_all_stop_before_the_same_step(who: int) -> None:
    (step,) = set(_run(4, who, 20))
    assert step > 20


def test_one_that_is_ahead_is_caught_up_with() -> None:
    (step,) = set(_run(3, 2, 3, hurry=0.002))  # rank 0 runs ahead of rank 2
    assert step > 3


def test_it_can_be_asked_for_again() -> None:
    board = LocalStore()
    both = [StepBarrier("save", board, rank, 2) for rank in range(2)]
    for begin in (10, 20):
        both[0].request("time")
        threads = [threading.Thread(target=one.poll) for one in both]
        for one in both:
            assert not one.is_reached(begin)
        threads[0].start()
        threads[0].join(0.2)  # it has asked, and waits for the other
        threads[1].start()
        for thread in threads:
            thread.join(60)
        assert [one.is_reached(begin) for one in both] == [False, False]
        assert [one.is_reached(begin + 1) for one in both] == [True, True]


def test_one_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier, "ANSWER_TIMEOUT", 0.1)
    first = StepBarrier("stop", LocalStore(), 0, 3)
    first.request("TERM")
    with pytest.raises(TimeoutError, match=r"1, 2 did not answer"):
        first.poll()


class Client:
    """JAX's client as jaxlib 0.4.26 has it: nothing is written over."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def key_value_set(self, key: str, value: str) -> None:
        assert key not in self.kept
        self.kept[key] = value

    def key_value_delete(self, key: str) -> None:
        self.kept.pop(key, None)

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self.kept.items() if key.startswith(prefix)]


def test_the_old_service_is_written_over_too() -> None:
    shared = CoordinationStore(Client())
    shared.put("signs/1", "1 2")
    shared.put("signs/1", "2 2")
    shared.put("asks/1", "x")
    assert shared.list_folder("signs") == {"1": "2 2"}
