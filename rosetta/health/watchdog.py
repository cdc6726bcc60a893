"""Find out that a run makes no progress, and which process holds it up.

Each process runs threads for this. One sends heartbeats to the other processes, and one for each
barrier waits for their answers; these may hang together with the process that keeps the key-value
store. Another thread only looks at the clock.
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
from rosetta.health.error_text import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rosetta.health.barrier import StepBarrier
    from rosetta.health.key_value_store import KeyValueStore
    from rosetta.health.step_tracking import StepTracker
    from rosetta.health.supervision_settings import Settings

_MAX_HEARTBEATS_PER_SECOND = 64  # of all processes together, to the one that keeps the store
# Seconds without a heartbeat after which rank 0 names a process, while the run can still recover.
_SILENT_SECONDS = 30.0
_MISSED_HEARTBEATS = 4  # in a row, after which a process counts as silent


class Watchdog:
    """Watches one process's part of a run.

    Args:
      store: the key-value store of all processes.
      rank: the number of this process.
      ranks: the number of processes.
      folder: of the run. Stacks are written to its `stacks`; for an object store, to that of the
        working folder.
      settings: when a run counts as hanging.
      step_tracker: the steps of this process.
      is_working: whether steps are running or waiting for data, so that no progress is a fault.
      barriers: the barriers to poll.
    """

    def __init__(
        self,
        store: KeyValueStore,
        rank: int,
        ranks: int,
        folder: str | None,
        settings: Settings,
        step_tracker: StepTracker,
        is_working: Callable[[], bool],
        barriers: Sequence[StepBarrier],
    ) -> None:
        self._store, self._rank, self._ranks, self._settings = store, rank, ranks, settings
        self._folder = Path.cwd() if folder is None or is_address(folder) else Path(folder)
        self._step_tracker, self._is_working = step_tracker, is_working
        self._barriers = barriers
        self.interval = max(1.0, ranks / _MAX_HEARTBEATS_PER_SECOND)
        # rank -> the last heartbeat, and when it was new (time.monotonic)
        self._heartbeats: dict[int, tuple[str, float]] = {}
        self._process_names: dict[int, str] = {}
        self._reported_silent = set[int]()
        self._store_answered = time.monotonic()
        self._is_hanging = False  # so that every process reads the heartbeats, not only rank 0
        self._is_closed = False
        self._is_store_failure_reported = False
        self._heartbeat_count = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the threads."""
        polls = (barrier.poll for barrier in self._barriers)
        for action in (self._exchange_heartbeats, *polls):
            threading.Thread(
                target=self._repeat, args=(action,), name="rosetta-talk", daemon=True
            ).start()
        threading.Thread(target=self._watch_clock, name="rosetta-guard", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._is_closed = True

    def describe_process(self, rank: int) -> str:
        """Return how a message names a process: its rank, host and process id."""
        return f"rank {rank} ({self._process_names.get(rank, 'host unknown')})"

    def find_silent(self, seconds: float) -> list[int]:
        """Return the processes without a heartbeat for so many seconds.

        If the store itself does not answer, that is rank 0, which keeps it.
        """
        now = time.monotonic()
        if now - self._store_answered > seconds and self._ranks > 1:
            return [0] if self._rank else []
        with self._lock:
            return sorted(
                rank
                for rank, (_, since) in self._heartbeats.items()
                if now - since > seconds and rank != self._rank
            )

    def wait_for_lost(self) -> list[int]:
        """Wait for a few heartbeats, and return the processes that missed them."""
        if self._ranks == 1:
            return []
        self._is_hanging = True
        time.sleep((_MISSED_HEARTBEATS + 1) * self.interval)
        return self.find_silent(_MISSED_HEARTBEATS * self.interval)

    def _exchange_heartbeats(self) -> None:
        """Send a heartbeat, and read those of the others if this process needs them."""
        if self._ranks > 1:
            if not self._heartbeat_count:
                self._store.put(f"who/{self._rank}", f"{socket.gethostname()}, pid {os.getpid()}")
            self._heartbeat_count += 1
            self._store.put(
                f"signs/{self._rank}", f"{self._heartbeat_count} {self._step_tracker.dispatched}"
            )
            self._answer_stack_request()
            # In a run that makes progress, only rank 0 reads the heartbeats.
            if not self._rank or self._is_hanging:
                self._read_heartbeats()
        self._store_answered = time.monotonic()

    def _repeat(self, action: Callable[[], None]) -> None:
        """Call a function at intervals until the watchdog is closed."""
        while not self._is_closed:
            try:
                action()
            except Exception as error:  # noqa: BLE001 (without the store, training may still work)
                if not self._is_store_failure_reported and not self._is_closed:
                    self._is_store_failure_reported = True
                    what = "the processes of the run cannot speak to each other"
                    log.warn(f"{what}: {first_line(error)}")
            time.sleep(self.interval)

    def _answer_stack_request(self) -> None:
        """Write the stacks if any process requested the stacks of all."""
        requests = self._store.list_folder("stacks")
        if requests and not self._is_hanging:
            self._is_hanging = True
            self.write_stacks()

    def _read_heartbeats(self) -> None:
        """Read all heartbeats, and warn once of each process that is silent for long."""
        now = time.monotonic()
        if len(self._process_names) < self._ranks:
            names = self._store.list_folder("who")
            self._process_names = {int(rank): name for rank, name in names.items()}
        with self._lock:
            for key, heartbeat in self._store.list_folder("signs").items():
                if self._heartbeats.get(int(key), ("", 0.0))[0] != heartbeat:
                    self._heartbeats[int(key)] = (heartbeat, now)
        for rank in self.find_silent(max(_SILENT_SECONDS, _MISSED_HEARTBEATS * self.interval)):
            if rank not in self._reported_silent:
                self._reported_silent.add(rank)
                log.warn(
                    f"{self.describe_process(rank)} has sent no heartbeat for "
                    f"{_SILENT_SECONDS:.0f} s: the process is stopped, lost or cut off",
                )

    def write_stacks(self) -> Path:
        """Write the stacks of all threads of this process; return the file.

        If the file cannot be written, the stacks go to stderr.
        """
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

    def _watch_clock(self) -> None:
        """End the run if no step is done for longer than the settings allow."""
        while not self._is_closed:
            time.sleep(min(1.0, self.interval))
            median = self._step_tracker.median_duration
            min_seconds = self._settings.watchdog_seconds
            if not min_seconds or median is None or not self._is_working():
                continue
            seconds = time.monotonic() - self._step_tracker.last_done
            if seconds > max(min_seconds, self._settings.watchdog_steps * median):
                self._end_hanging_run(seconds, median)

    def _end_hanging_run(self, seconds: float, median: float) -> None:
        """End the process; the lowest rank that is not silent prints the cause.

        Args:
          seconds: since the last step was done.
          median: the median duration of a step in seconds.
        """
        path = self.write_stacks()
        self._is_hanging = True
        if self._ranks > 1:
            threading.Thread(target=self._request_stacks, daemon=True).start()
            time.sleep((_MISSED_HEARTBEATS + 2) * self.interval)
        silent = self.find_silent(_MISSED_HEARTBEATS * self.interval)
        responsive = (rank for rank in range(self._ranks) if rank not in silent)
        speaker = min(responsive, default=self._rank)
        line = (
            f"no step for {seconds:.0f} s, where one takes {median:.3g} s: "
            f"{self._describe_cause(silent)}; stacks in {path.parent}; the run ends with status "
            f"{exit_status.PROCESS_LOST}: start it again, and it resumes from its last checkpoint"
        )
        if self._rank == 0:
            time.sleep(3 * self.interval)  # The store ends with this process.
        if self._rank == speaker:
            stop_signals.exit_with_line(line, exit_status.PROCESS_LOST)
        os._exit(exit_status.PROCESS_LOST)

    def _request_stacks(self) -> None:
        """Request the stacks of all processes."""
        with contextlib.suppress(Exception):
            self._store.put(f"stacks/{self._rank}", "now")

    def _describe_cause(self, silent: list[int]) -> str:
        """Return what holds the run up, as a clause: silent processes, or those that are behind."""
        if silent:
            names = " and ".join(map(self.describe_process, silent))
            return f"{names} send(s) no heartbeat: stopped, lost or cut off"
        with self._lock:
            heartbeats = {rank: text for rank, (text, _) in self._heartbeats.items()}
        steps = {rank: int(text.split()[1]) for rank, text in heartbeats.items()}
        if steps and min(steps.values()) < max(steps.values()):
            behind = [rank for rank, count in steps.items() if count == min(steps.values())]
            names = " and ".join(map(self.describe_process, behind))
            return f"{names} is behind all others: its input or its host holds it up"
        if self._ranks > 1:
            return "its input, a device or the network between them holds it up"
        return "its input or its device holds it up"
