"""Schedules that are played, with times that are computed by hand."""

from __future__ import annotations

import pytest

from rosetta.core import gpus
from rosetta.plan import hlo_text, roofline, schedule
from rosetta.plan.roofline import LAUNCH_SECONDS, Shares

H100 = gpus.GPUS["h100"]
FULL = Shares(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
COPY_BYTES = 2 * 400_000_000
COPY = COPY_BYTES / H100.bandwidth
GATHER = (
    roofline.NCCL_BASE_SECONDS
    + 7 * roofline.RING_STEP_SECONDS["node"]
    + 7 / 8 * 400_000_000 / (H100.nvlink / 2)
)
ARRAY = "f32[100000000]"
HEAD = f"  %a = {ARRAY} parameter(0)\n"


def play(entry: str, *computations: str) -> schedule.Timeline:
    """The timeline of a module with these lines as its entry."""
    text = "\n".join(
        [
            "HloModule step, is_scheduled=true",
            *computations,
            "ENTRY %main (p: f32[]) -> f32[] {",
            HEAD + entry.strip("\n"),
            "}",
        ]
    )
    return schedule.Player(hlo_text.parse_module(text), H100, 8, FULL).play_step()


START = (
    f"  %s = ({ARRAY}, {ARRAY}) all-gather-start(%a), replica_groups=[1,8]<=[8], dimensions={{0}}"
)
DONE = f"  %d = {ARRAY} all-gather-done(%s)"


def copies(count: int, name: str = "c") -> str:
    return "\n".join(f"  %{name}.{index} = {ARRAY} copy(%a)" for index in range(count))


def test_kernels_run_one_after_another() -> None:
    timeline = play(copies(3))
    assert timeline.compute == pytest.approx(3 * (COPY + LAUNCH_SECONDS))
    assert timeline.seconds == pytest.approx(
        {"transposes and copies": 3 * COPY, schedule.LAUNCHES: 3 * LAUNCH_SECONDS}
    )


def test_a_collective_is_hidden_by_the_kernels_beside_it() -> None:
    timeline = play(f"{START}\n{copies(9)}\n{DONE}")
    assert timeline.communicated == pytest.approx(GATHER)
    assert schedule.EXPOSED not in timeline.seconds
    assert timeline.compute == pytest.approx(9 * COPY + 10 * LAUNCH_SECONDS)


def test_what_is_not_hidden_is_waited_for() -> None:
    timeline = play(f"{START}\n{copies(1)}\n{DONE}")
    hidden = COPY + LAUNCH_SECONDS
    assert timeline.seconds[schedule.EXPOSED] == pytest.approx(GATHER - hidden)
    assert timeline.compute == pytest.approx(LAUNCH_SECONDS + GATHER)


def test_collectives_wait_for_one_another() -> None:
    """The second one starts with the first, and ends after both."""
    other_start, other_done = START.replace("%s", "%s.2"), DONE.replace("%d", "%d.2")
    timeline = play(f"{START}\n{other_start}\n{DONE}\n{other_done.replace('%s', '%s.2')}")
    assert timeline.compute == pytest.approx(LAUNCH_SECONDS + 2 * GATHER)


SYNCHRONOUS = {
    "one instruction": f"  %g = {ARRAY} all-gather(%a), replica_groups=[1,8]<=[8]\n{copies(9)}",
    "marked": START
    + ', backend_config={"collective_backend_config":{"is_sync":true}}'
    + f"\n{copies(9)}\n{DONE}",
}


@pytest.mark.parametrize("entry", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
def test_a_synchronous_collective_hides_nothing(entry: str) -> None:
    timeline = play(entry)
    assert timeline.seconds[schedule.EXPOSED] == pytest.approx(GATHER)
    assert timeline.compute == pytest.approx(GATHER + 9 * COPY + 10 * LAUNCH_SECONDS)


def loop(body: str, trips: int) -> schedule.Timeline:
    """The timeline of a loop."""
    entry = (
        f"  %w = {ARRAY} while(%a), condition=%more, body=%body, "
        f'backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
    )
    return play(entry, "%body (a: f32[]) -> f32[] {", HEAD + body, "}")


@pytest.mark.parametrize("trips", [1, 2, 3, 24])
def test_a_loop_repeats_its_body(trips: int) -> None:
    timeline = loop(f"{START}\n{copies(1)}\n{DONE}", trips)
    assert timeline.compute == pytest.approx(trips * (LAUNCH_SECONDS + GATHER))
    assert timeline.communicated == pytest.approx(trips * GATHER)
    assert timeline.compute == pytest.approx(sum(timeline.seconds.values()))


def test_of_two_branches_the_longer_one_runs() -> None:
    entry = f"  %x = {ARRAY} conditional(%a, %a, %a), branch_computations={{%short, %long}}"
    branches = [
        line
        for name, count in (("short", 1), ("long", 3))
        for line in (f"%{name} (a: f32[]) -> f32[] {{", HEAD + copies(count), "}")
    ]
    assert play(entry, *branches).compute == pytest.approx(3 * (COPY + LAUNCH_SECONDS))
