"""Track the checkpoints that a run saves, and handle a full disk.

The checkpoint managers of both trainers use it: it reports how long each checkpoint took and held
up the training, and leaves out a checkpoint that does not fit on its disk.
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

_POLL_INTERVAL = 0.2  # seconds
_COMPLETION_TIMEOUT = 3600.0  # seconds in which a checkpoint has to be complete
_DISK_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")


class DiskFullError(UserError):
    """A checkpoint does not fit on its disk."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or a cause of it, is a full disk.

    TensorStore reports a full disk only in words.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(text in str(cause) for text in _DISK_FULL_TEXTS):
            return True
        cause = cause.__cause__ or cause.__context__
    return isinstance(error, DiskFullError)


class SaveTracker:
    """Tracks the checkpoints of one folder.

    Args:
      folder: the folder that contains the checkpoint_N folders.
      mode: the value of ON_FULL_DISK.
      speaks: whether this process is the one that reports.
    """

    def __init__(self, folder: str, mode: str, *, speaks: bool) -> None:
        self._folder, self._mode, self._speaks = folder, mode, speaks
        self._skipped: UserError | None = None  # about the last checkpoint, if it was left out
        self._durations: dict[str, float] = {}
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def watch_save(self, step: int, start: float, stall: float) -> None:
        """Report, in a thread, once a checkpoint is complete.

        Args:
          step: of the checkpoint.
          start: when the save began (time.monotonic).
          stall: the seconds that it held up the training.
        """
        self._skipped = None
        self._ending.clear()
        if self._speaks and not is_address(self._folder):
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(
                target=self._report_completion,
                args=(step, start, stall),
                name="rosetta-save",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def _report_completion(self, step: int, start: float, stall: float) -> None:
        """Wait until a checkpoint is complete, and report how long it took; see watch_save."""
        while step not in run_folders.list_checkpoint_steps(self._folder):
            is_late = time.monotonic() - start > _COMPLETION_TIMEOUT
            if is_late or self._skipped or self._ending.is_set():
                return
            self._ending.wait(_POLL_INTERVAL)
        seconds = time.monotonic() - start
        if problem := checkpoint_files.find_problem(self._folder, step):
            log.warn(f"checkpoint {step:,} is not complete: {problem}")
            return
        self._durations = {"save_seconds": seconds, "save_stall": stall}
        log.info(
            f"checkpoint {step:,} is complete: {seconds:.1f} s, of which the training stood still "
            f"for {min(stall, seconds):.1f} s",
        )

    def take_durations(self) -> dict[str, float]:
        """Return the durations of the last complete checkpoint, once.

        Returns:
          save_seconds, the whole time, and save_stall, the time that the training stood still;
          empty if there is no new checkpoint.
        """
        durations, self._durations = self._durations, {}
        return durations

    def handle_full_disk(self, step: int, error: BaseException) -> None:
        """Leave out a checkpoint that did not fit on its disk, and remove what was written of it.

        Raises:
          UserError: the checkpoint before was left out too, or ON_FULL_DISK is "stop".
        """
        is_second = self._skipped is not None
        what = error.what if isinstance(error, UserError) else "there is no room on its disk"
        self._skipped = UserError(
            f"checkpoint {step:,} is not written: {what}",
            self._folder,
            "free some space and start the run again: it resumes from its last checkpoint",
            kind=FAILED,
            value=step,
        )
        if self._speaks:
            remove_unfinished(self._folder)
        if is_second or self._mode == "stop":
            raise self._skipped
        if self._speaks:
            log.warn(
                f"{self._folder}: {self._skipped.what}; the run keeps the last checkpoint and goes "
                "on; if the next one finds no room either, the run ends",
            )

    def finish(self) -> None:
        """Wait for the reports, once all checkpoints are written.

        Raises:
          UserError: the last checkpoint was left out, so the end of the run is not saved.
        """
        self._ending.set()
        # Python must not end while a thread is in TensorStore: that would abort the process.
        for thread in self._threads:
            thread.join()
        if self._skipped:
            raise self._skipped

    def save(self, step: int, write: Callable[[], Any]) -> Any:
        """Write a checkpoint and track it.

        Args:
          step: of the checkpoint.
          write: begins the checkpoint; it returns False if it writes none.

        Returns:
          What `write` returns, or None if the disk is full; see handle_full_disk.
        """
        start = time.monotonic()
        try:
            result = write()
        except Exception as error:
            if not is_disk_full(error):
                raise
            self.handle_full_disk(step, error)
            return None
        if result is not False:
            self.watch_save(step, start, time.monotonic() - start)
        return result


def remove_unfinished(folder: str) -> None:
    """Remove what Orbax left of checkpoints that it could not finish, since it takes up room."""
    if is_address(folder):
        return
    for path in Path(folder).glob("checkpoint_*.orbax-checkpoint-tmp*"):
        shutil.rmtree(path, ignore_errors=True)
        log.warn(f"{path}: removed, because the checkpoint in it is not complete")
