"""Finds a run that stands still, and the process it waits for.

Threads of each process: one gives signs to the others, one for each agreement waits for their
answers, and both may hang with the process that keeps the board; one only looks at the clock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import exit_status, log
from rosetta.core.value_parsing import is_address
from rosetta.health import stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rosetta.health.barrier import StepBarrier
    from rosetta.health.key_value_store import KeyValueStore
    from rosetta.health.step_tracking import StepTracker
    from rosetta.health.supervision_settings import Settings

_MAX_HEARTBEATS_PER_SECOND = 64  # that speak to the process that keeps the board
# s without a sign after which a process is named, while the run still has time
_SILENT_SECONDS = 30.0
_MISSED_HEARTBEATS = 4  # signs in a row


class Watchdog:
    """Watches over one process' part of a run.

    Args:
      board: that all write to.
      rank, ranks: this process, of so many.
      folder: of the run; stacks go into its `stacks`, an object store's into that of the working
        folder.
      follower: of the steps.
      working: whether a step is being made or its data waited for, so that standing still is wrong.
      agreements: whose turn is taken.
    """

    def __init__(
        self,
        board: KeyValueStore,
        rank: int,
        ranks: int,
        folder: str | None,
        settings: Settings,
        follower: StepTracker,
        working: Callable[[], bool],
        agreements: Sequence[StepBarrier],
    ) -> None:
        self._board, self._rank, self._ranks, self._settings = board, rank, ranks, settings
        self._folder = Path.cwd() if folder is None or is_address(folder) else Path(folder)
        self._follower, self._working, self._agreements = follower, working, agreements
        self.interval = max(1.0, ranks / _MAX_HEARTBEATS_PER_SECOND)
        self._signs: dict[
            int, tuple[str, float]
        ] = {}  # rank -> what it last said, and when that was new
        self._who: dict[int, str] = {}
        self._named = set[int]()
        self._spoke = time.monotonic()  # when the board last answered
        self._calling = self._closed = self._cut = False
        self._count = 0  # signs given
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to watch."""
        for turn in (self._talk, *(each.turn for each in self._agreements)):
            threading.Thread(
                target=self._repeat, args=(turn,), name="rosetta-talk", daemon=True
            ).start()
        threading.Thread(target=self._guard, name="rosetta-guard", daemon=True).start()

    def close(self) -> None:
        """Watch no more."""
        self._closed = True

    def name(self, rank: int) -> str:
        """Return a process as people find it."""
        return f"rank {rank} ({self._who.get(rank, 'host unknown')})"

    def silent(self, seconds: float) -> list[int]:
        """Return the processes that gave no sign for so long; where the board itself does not
        answer, that is rank 0.
        """
        now = time.monotonic()
        if now - self._spoke > seconds and self._ranks > 1:
            return [0] if self._rank else []
        with self._lock:
            return sorted(
                rank
                for rank, (_, since) in self._signs.items()
                if now - since > seconds and rank != self._rank
            )

    def lost(self) -> list[int]:
        """Wait until a process that is gone has missed enough signs, and return who has."""
        if self._ranks == 1:
            return []
        self._calling = True
        time.sleep((_MISSED_HEARTBEATS + 1) * self.interval)
        return self.silent(_MISSED_HEARTBEATS * self.interval)

    def _talk(self) -> None:
        if self._ranks > 1:
            if not self._count:
                self._board.put(f"who/{self._rank}", f"{socket.gethostname()}, pid {os.getpid()}")
            self._count += 1
            self._speak(self._count)
        self._spoke = time.monotonic()

    def _repeat(self, turn: Callable[[], None]) -> None:
        while not self._closed:
            try:
                turn()
            except Exception as error:  # noqa: BLE001 (a board that is gone must not end what still trains)
                if not self._cut and not self._closed:
                    self._cut = True
                    what = "the processes of the run cannot speak to each other"
                    log.warn(f"{what}: {first_line(error)}", terminal=True)
            time.sleep(self.interval)

    def _speak(self, count: int) -> None:
        self._board.put(f"signs/{self._rank}", f"{count} {self._follower.given}")
        asked = self._board.under("stacks")
        if asked and not self._calling:
            self._calling = True
            self.stacks()
        if self._rank and not self._calling:  # all of them look only where the run stands still
            return
        now = time.monotonic()
        if not self._who or len(self._who) < self._ranks:
            self._who = {int(rank): who for rank, who in self._board.under("who").items()}
        with self._lock:
            for key, sign in self._board.under("signs").items():
                if self._signs.get(int(key), ("", 0.0))[0] != sign:
                    self._signs[int(key)] = (sign, now)
        for rank in self.silent(max(_SILENT_SECONDS, _MISSED_HEARTBEATS * self.interval)):
            if rank not in self._named:
                self._named.add(rank)
                log.warn(
                    f"{self.name(rank)} has given no sign for {_SILENT_SECONDS:.0f} s: it is "
                    "stopped, lost or cut off",
                    terminal=True,
                )

    def stacks(self) -> Path:
        """Write the stacks of all threads of this process; return the file."""
        path = self._folder / "stacks" / f"rank-{self._rank:04d}.txt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                print(
                    (
                        f"# {time.strftime('%FT%TZ', time.gmtime())} rank {self._rank} of "
                        f"{self._ranks}, {socket.gethostname()}, pid {os.getpid()}"
                    ),
                    file=file,
                    flush=True,
                )
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError:
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        return path

    def _guard(self) -> None:
        while not self._closed:
            time.sleep(min(1.0, self.interval))
            median, floor = self._follower.median, self._settings.watchdog_seconds
            if not floor or median is None or not self._working():
                continue
            stood = time.monotonic() - self._follower.last
            if stood > max(floor, self._settings.watchdog_steps * median):
                self._end(stood, median)

    def _end(self, stood: float, median: float) -> None:
        path = self.stacks()
        self._calling = True
        if self._ranks > 1:
            threading.Thread(target=self._ask, daemon=True).start()
            time.sleep((_MISSED_HEARTBEATS + 2) * self.interval)
        silent = self.silent(_MISSED_HEARTBEATS * self.interval)
        first = min((rank for rank in range(self._ranks) if rank not in silent), default=self._rank)
        line = (
            f"no step for {stood:.0f} s, where one takes {median:.3g} s: {self._cause(silent)}; "
            f"stacks in {path.parent}; it ends with status {exit_status.PROCESS_LOST}: start it "
            "again, it goes on from its last checkpoint"
        )
        if self._rank == 0:
            time.sleep(3 * self.interval)  # the board goes with this process
        if self._rank == first:
            stop_signals.exit_with_line(line, exit_status.PROCESS_LOST)
        os._exit(exit_status.PROCESS_LOST)

    def _ask(self) -> None:
        with contextlib.suppress(Exception):
            self._board.put(f"stacks/{self._rank}", "now")

    def _cause(self, silent: list[int]) -> str:
        if silent:
            return (
                " and ".join(map(self.name, silent)) + " give(s) no sign: stopped, lost or cut off"
            )
        with self._lock:
            given = {rank: int(sign.split()[1]) for rank, (sign, _) in self._signs.items()}
        if given and min(given.values()) < max(given.values()):
            behind = [rank for rank, steps in given.items() if steps == min(given.values())]
            return (
                " and ".join(map(self.name, behind))
                + " is behind all others: its input or its host holds it up"
            )
        return (
            "its input, a device or the network between them holds it up"
            if self._ranks > 1
            else "its input or its device holds it up"
        )


def first_line(error: BaseException) -> str:
    """Return what an error says, on a line of a log."""
    return next(iter(str(error).splitlines()), "")[:200]
