"""What is said of a run's checkpoints: how long each takes and holds the training up, and what
becomes of one that finds no room.
"""

from __future__ import annotations

import errno
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import log, run_folders
from rosetta.core.errors import FAILED, UserError
from rosetta.core.value_parsing import is_address
from rosetta.health import checkpoint_files

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_INTERVAL = 0.2  # s
_COMPLETION_TIMEOUT = 3600.0  # s for a checkpoint to be whole


class DiskFullError(UserError):
    """A checkpoint does not fit on its disk."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or what led to it, is a disk without room.

    TensorStore says it in words.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(words in str(found) for words in ("No space left on device", "Disk quota exceeded")):
            return True
        found = found.__cause__ or found.__context__
    return isinstance(error, DiskFullError)


class SaveTracker:
    """Follows the checkpoints of one folder.

    Args:
      folder: that checkpoint_N folders stand in.
      mode: ON_FULL_DISK.
      speaks: whether this process is the one that says it.
    """

    def __init__(self, folder: str, mode: str, *, speaks: bool) -> None:
        self._folder, self._mode, self._speaks = folder, mode, speaks
        self._missing: UserError | None = None  # the last checkpoint, if it was left out
        self._told: dict[str, float] = {}
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def begun(self, step: int, since: float, stall: float) -> None:
        """Say that a save was begun `since` (time.monotonic) and held the training up for `stall`
        seconds; once it is whole, how long it took is said.
        """
        self._missing = None
        self._ending.clear()
        if self._speaks and not is_address(self._folder):
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads.append(
                threading.Thread(
                    target=self._wait, args=(step, since, stall), name="rosetta-save", daemon=True
                )
            )
            self._threads[-1].start()

    def _wait(self, step: int, since: float, stall: float) -> None:
        while step not in run_folders.list_checkpoint_steps(self._folder):
            if (
                time.monotonic() - since > _COMPLETION_TIMEOUT
                or self._missing
                or self._ending.is_set()
            ):
                return
            self._ending.wait(_POLL_INTERVAL)
        took = time.monotonic() - since
        if problem := checkpoint_files.find_problem(self._folder, step):
            log.warn(f"checkpoint {step:,} is not whole: {problem}", terminal=True)
            return
        self._told = {"save_seconds": took, "save_stall": stall}
        log.info(
            f"checkpoint {step:,} is whole: {took:.1f} s, of which the training stood still "
            f"for {min(stall, took):.1f} s",
            terminal=True,
        )

    def told(self) -> dict[str, float]:
        """Return, once, what the last whole checkpoint took: seconds in all, and of standing
        still.
        """
        told, self._told = self._told, {}
        return told

    def left_out(self, step: int, error: BaseException) -> None:
        """Say that a checkpoint found no room; what is there of it is removed.

        Raises:
          UserError: it is the second one in a row, or ON_FULL_DISK is "stop".
        """
        again = self._missing is not None
        what = error.what if isinstance(error, UserError) else "there is no room on its disk"
        self._missing = UserError(
            f"checkpoint {step:,} is not written: {what}",
            self._folder,
            "make room and start it again: it goes on from its last checkpoint",
            kind=FAILED,
            value=step,
        )
        if self._speaks:
            remove_unfinished(self._folder)
        if again or self._mode == "stop":
            raise self._missing
        if self._speaks:
            log.warn(
                f"{self._folder}: {self._missing.what}; the run keeps its last one and goes "
                "on; if the next one finds no room either, it ends",
                terminal=True,
            )

    def ended(self) -> None:
        """Say what is left to say of checkpoints, all of which are written.

        Raise UserError where the last one was left out: the run's end is not kept.
        """
        self._ending.set()
        for thread in (
            self._threads
        ):  # Python must not end while one is in TensorStore: the process would be aborted
            thread.join()
        if self._missing:
            raise self._missing

    def trying(self, step: int, save: Callable[[], Any]) -> Any:
        """Return what a save returns, or None where it found no room, see `left_out`."""
        before = time.monotonic()
        try:
            done = save()
        except Exception as error:
            if not is_disk_full(error):
                raise
            self.left_out(step, error)
            return None
        if done is not False:
            self.begun(step, before, time.monotonic() - before)
        return done


def remove_unfinished(folder: str) -> None:
    """Remove what Orbax left of checkpoints that it could not finish: it counts for nothing and
    takes up room.
    """
    if is_address(folder):
        return
    for path in Path(folder).glob("checkpoint_*.orbax-checkpoint-tmp*"):
        shutil.rmtree(path, ignore_errors=True)
        log.warn(f"{path}: removed, it is half a checkpoint")
