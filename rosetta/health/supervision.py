"""The health of one run, as its trainer sees it: asked before each step, told of each, asked before
each checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta.core import exit_status, log
from rosetta.core.errors import UserError
from rosetta.health import (
    bad_losses,
    checkpoint_files,
    goodput,
    key_value_store,
    profiling,
    step_failure,
    stop_signals,
    trainer_exit,
    watchdog,
    weights_and_biases,
)
from rosetta.health.bad_losses import BadStep
from rosetta.health.barrier import StepBarrier
from rosetta.health.step_tracking import StepTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rosetta.health.checkpoint_saves import SaveTracker
    from rosetta.health.supervision_settings import Settings

_SLOW_INPUT = 0.1  # of a step
# Steps that may be given to the devices before their results are seen; JAX itself queues up to 32.
_MAX_STEPS_IN_FLIGHT = 16
_SAVE_TIMEOUT = (
    60.0  # s that a process which fails alone waits for a checkpoint that all are writing
)

_current: Supervisor | None = None


class RunStopped(Exception):  # noqa: N818 (nothing went wrong)
    """The run ends before its time.

    `bad` says why where its state is not worth a checkpoint, `error` what its data cannot give.
    """

    def __init__(
        self, reason: str, step: int, bad: BadStep | None = None, error: UserError | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.step, self.bad, self.error = reason, step, bad, error


@dataclass(frozen=True)
class DumpSource:
    """What a trainer can say of a step for the dump: this process' rows, and FP8's scales by
    name.
    """

    batch: Callable[[int], Mapping[str, Any] | None]
    scales: Callable[[], Mapping[str, list[float]]]


class Supervisor:
    """Watches over a run from its first step to its last. One a process.

    Args:
      folder: of the run.
      settings: see Settings.
      rank, ranks: this process, of so many.
      source: what the dump of a bad step asks.
    """

    def __init__(
        self, folder: str | None, settings: Settings, rank: int, ranks: int, source: DumpSource
    ) -> None:
        global _current  # noqa: PLW0603 (signals, and what a crash is blamed on, are the process's)
        self._folder, self.settings, self._rank, self.ranks, self._source = (
            folder or ".",
            settings,
            rank,
            ranks,
            source,
        )
        self._board = key_value_store.open_store(ranks)
        self._stop, self._save = (
            StepBarrier(name, self._board, rank, ranks) for name in ("stop", "save")
        )
        self._judge = bad_losses.LossMonitor(settings.spike)
        self._bad: BadStep | None = None
        self._within = False
        self.ending: RunStopped | None = None
        self.follower = StepTracker(self._look)
        self.watch = watchdog.Watchdog(
            self._board,
            rank,
            ranks,
            folder,
            settings,
            self.follower,
            self._working,
            (self._stop, self._save),
        )
        self._saved = time.monotonic()
        self.saves: SaveTracker | None = None  # of the last checkpoint that was begun
        self._trace = profiling.StepProfiler(self._folder, settings.profile, rank)
        self._wandb = weights_and_biases.WandbRun(self._folder, os.environ) if rank == 0 else None
        self.goodput = goodput.Goodput(folder) if rank == 0 else None
        stop_signals.install_handlers()
        stop_signals.set_stop_request(self._stop.ask)
        self.watch.start()
        _current = self

    def _working(self) -> bool:
        return self._within or self.follower.given > self.follower.done

    def begin(self) -> None:
        """Start watching: steps follow."""
        self.follower.rest()
        self._within = True

    def pause(self) -> None:
        """Pause watching for what is not a step: evaluation, a checkpoint, the end."""
        self._within = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause watching for a block of code; continue after it if steps were watched before.

        If the block raises an error, the run ends, so watching does not continue.
        """
        watched = self._within
        self.pause()
        yield
        if watched:
            self.begin()

    def before(self, step: int, program: Callable[[], Any] | None = None) -> None:
        """Say that a step is about to begin.

        Args:
          step: its number.
          program: see Trace.turn.

        Raises:
          Stopped: it must not.
          StepFailedError: one before it failed on its devices.
        """
        self.follower.wait_until_behind(_MAX_STEPS_IN_FLIGHT)
        self._raise_failure()
        if self._trace.due(step):
            self.follower.settle()
            self._trace.turn(program)
            self.follower.rest()
        if self._stop.reached(step):
            raise self._stopped(self._stop.reason or "", step, self.checked())

    def _stopped(self, reason: str, step: int, bad: BadStep | None) -> RunStopped:
        self.ending = RunStopped(reason, step, bad)  # gin raises a copy, which knows less
        return self.ending

    def stop_for_data(self, error: UserError, step: int) -> RunStopped:
        """Return what ends the run before a step for which there is no batch, with a checkpoint of
        the steps before it.

        Args:
          error: why there is none.
          step: the one that is not trained.

        Raises:
          UserError: the error itself, where several processes would have to save together and the
            others know nothing of it.
        """
        if self.ranks > 1:
            raise error
        bad = self.checked()
        self.ending = RunStopped("its data", step, bad, error)
        return self.ending

    def wants_checkpoint(self, step: int) -> bool:
        """Return whether the time for a checkpoint has come, in all processes before the same step.

        To be asked before each.
        """
        minutes = self.settings.checkpoint_minutes
        if minutes and self._rank == 0 and time.monotonic() - self._saved > 60 * minutes:
            self._saved = time.monotonic()
            self._save.ask("time")
        return bool(minutes) and self._save.reached(step)

    def given(self, step: int, loss: Callable[[], float]) -> None:
        """Say that a step was given to the devices; the function waits for its loss."""
        self.follower.give(step, loss)

    def _look(self, step: int, loss: float) -> None:
        found = self._judge.look(step, loss)
        mode = self.settings.on_bad_loss
        if found is None or self._bad is not None or mode == "ignore":
            return
        if mode == "skip" and self._judge.row <= bad_losses.MAX_SKIPPED_IN_A_ROW:
            if self._rank == 0:
                what = (
                    "its update stays: only what is not finite is left out"
                    if math.isfinite(found.loss)
                    else "its update is left out"
                )
                log.warn(f"step {found.step:,}: {found.why}; {what}", terminal=True)
            return
        self._bad = found
        self._stop.ask("a bad loss")

    def checked(self) -> BadStep | None:
        """Wait for the steps that were given; return what is bad about one of them.

        StepFailedError where one failed.
        """
        self.follower.settle()
        self._raise_failure()
        return self._bad

    def _raise_failure(self) -> None:
        if self.follower.failed is not None:
            raise self.follower.failed

    def before_checkpoint(self, step: int, finite: Callable[[], bool]) -> None:
        """Say that a checkpoint of a step is about to be written.

        Args:
          step: steps that are done.
          finite: whether all parameters are; a loss tells it one step later.

        Raises:
          Stopped: what it would hold is not worth keeping.
        """
        bad = self.checked()
        if bad is None and self.settings.on_bad_loss != "ignore" and not finite():
            bad = BadStep(
                step - 1,
                self._judge.history[-1][1] if self._judge.history else math.nan,
                "it left parameters that are not finite",
            )
        if bad is not None:
            raise self._stopped("a bad loss", step, bad)
        self._saved = time.monotonic()

    def ends(self, stopped: RunStopped, folder: str | None) -> NoReturn:
        """End the process as it was asked to: after a signal with status 75, after a bad loss with
        a dump and status 1.

        Args:
          stopped: what `before` or `before_checkpoint` raised.
          folder: of the checkpoints; None where none are written. A checkpoint that is missing or
            damaged there ends the process with status 1.
        """
        self.close()
        if stopped.bad is not None:
            self._refuses(stopped.bad)
        if stopped.error is not None:
            self._ends_for_data(stopped.error, stopped.step, folder)
        line = f"ended by {stopped.reason} before step {stopped.step:,}"
        if folder is None:
            self._finish(f"{line}: no checkpoint is written in this run", exit_status.ENDED_EARLY)
        problem = checkpoint_files.find_problem(folder, stopped.step)
        if problem:
            self._finish(
                f"{line}, and its checkpoint is not written: {problem}", exit_status.FAILED
            )
        self._finish(
            f"{line}: its checkpoint is written, and the next start goes on from it",
            exit_status.ENDED_EARLY,
        )

    def _ends_for_data(self, error: UserError, step: int, folder: str | None) -> NoReturn:
        """End the process with status 2 over data that cannot be used; say what became of the steps
        that are done.
        """
        if folder is None:
            saved = "no checkpoint is written in this run"
        else:
            problem = checkpoint_files.find_problem(folder, step)
            saved = (
                f"its checkpoint is not written: {problem}"
                if problem
                else (
                    "its checkpoint is written; with the file mended, go on with "
                    "CHANGED_DATA=accept"
                )
            )
        self._finish(
            f"{error} (the run ended before step {step:,}, and {saved})", exit_status.USER_ERROR
        )

    def fail(self, line: str, code: int) -> NoReturn:
        """End the process with a line and a status."""
        self.close()
        self._finish(line, code)

    def _refuses(self, bad: BadStep) -> NoReturn:
        """End the process over a bad step, with what is known of it written down."""
        try:
            into = bad_losses.write_dump(
                self._folder,
                self._rank,
                bad,
                list(self._judge.history),
                self._source.batch(bad.step),
                self._source.scales(),
            )
            known = f"is in {into}"
        except Exception as error:  # noqa: BLE001 (that it is bad counts more than what is known of it)
            known = f"cannot be written ({type(error).__name__}: {watchdog.first_line(error)})"
        self._finish(
            (
                f"step {bad.step:,}: {bad.why}; no checkpoint was written after it, what is known "
                f"of it {known} (ON_BAD_LOSS=skip leaves such steps out)"
            ),
            1,
        )

    def _finish(self, line: str, code: int) -> NoReturn:
        if self._rank == 0:
            time.sleep(
                2 * self.watch.interval if self.ranks > 1 else 0
            )  # the others' end needs the board
        stop_signals.exit_with_line(line if self._rank == 0 else f"rank {self._rank}: {line}", code)

    def report(
        self, step: int, seconds: float, held: float
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return what a report on steps says of a run's health, for programs and for people. For
        rank 0; the others call `tell`.

        Args:
          step: that the report ends with.
          seconds: that its steps took.
          held: seconds a step that this host waited for its data.
        """
        more: dict[str, Any] = {}
        said: list[str] = []
        if self.goodput:
            more["goodput"] = self.goodput.report(step, seconds)
            said.append(f"goodput {100 * more['goodput']:.1f} %")
        more |= self.saves.told() if self.saves else {}
        if hosts := self._spread(step, held):
            median, largest, whose = hosts
            more |= {"host_wait_median": median, "host_wait_max": largest, "host_wait_rank": whose}
            if largest - median > _SLOW_INPUT * (self.follower.median or math.inf):
                said.append(
                    f"{self.watch.name(whose)} is slow: its input takes {largest:.3g} s a "
                    f"step, of the others {median:.3g} s"
                )
        return more, tuple(said)

    def publish(self, step: int, scalars: Mapping[str, float]) -> None:
        """Give a report's scalars to who else wants them."""
        if self._wandb:
            self._wandb.log(step, scalars)

    def tell(self, step: int, held: float) -> None:
        """Tell rank 0 how many seconds a step this host waited for its data."""
        with contextlib.suppress(Exception):  # the thread that talks says it
            if self.ranks > 1:
                self._board.put(f"spread/{self._rank}", f"{step} {held}")

    def _spread(self, step: int, held: float) -> tuple[float, float, int] | None:
        """(median, largest, whose) of what all hosts told of a step; None where some do not in
        time.
        """
        self.tell(step, held)
        end = time.monotonic() + 3 * self.watch.interval
        with contextlib.suppress(Exception):
            while self.ranks > 1 and time.monotonic() < end:
                found = {
                    int(rank): value.split() for rank, value in self._board.under("spread").items()
                }
                told = {
                    rank: float(value[1]) for rank, value in found.items() if int(value[0]) >= step
                }
                if len(told) == self.ranks:
                    values, slowest = sorted(told.values()), max(told, key=lambda rank: told[rank])
                    return values[(len(values) - 1) // 2], told[slowest], slowest
                time.sleep(0.1)
        return None

    def close(self) -> None:
        """Stop watching at the end of the run, and restore the default signal handlers."""
        self.pause()
        stop_signals.restore_default_handlers()
        self.watch.close()
        self._trace.close()
        if self._wandb:
            self._wandb.close()


def get_supervisor() -> Supervisor | None:
    """Return the health of this process' run, None before its first step."""
    return _current


def pause_watchdog() -> contextlib.AbstractContextManager[None]:
    """Pause watching over this process' run, if there is one, for a block of code; see Health."""
    return contextlib.nullcontext() if _current is None else _current.paused()


def has_trained() -> bool:
    """Return whether this process has given a step to its devices."""
    return _current is not None and _current.follower.given > 0


def end_if_stopped(finish: Callable[[], str | None]) -> None:
    """End the process where training was to end before its time, see Health.ends; return where it
    was not.

    Args:
      finish: waits for the checkpoints that are begun, and returns their folder, None where the run
        saves none; what it raises for the user is said.
    """
    if _current is None or _current.ending is None:
        return
    try:
        folder = finish()
    except UserError as error:
        if _current.ending.bad is None:
            trainer_exit.exit_with_error(error)
        # The loss is the news: it is written down first.
        log.warn(str(error), terminal=True)
        folder = None
    _current.ends(_current.ending, folder)


def end_if_step_failed(error: Exception, advice: str, finish: Callable[[], object]) -> None:
    """End the process in one line where memory was not enough, or a step failed on its devices;
    return where it was neither.

    Args:
      error: what ended the training.
      advice: what takes less memory.
      finish: waits for the checkpoints that are begun.
    """
    failed = _current.follower.failed if _current else None
    cause = failed or error
    step = failed.step if failed else _current.follower.given if _current else None
    where = "the start of the run" if step is None else f"step {step:,}"
    if step_failure.is_out_of_memory(cause):
        line, code = (
            str(step_failure.describe_out_of_memory(cause, where, advice)),
            exit_status.USER_ERROR,
        )
    elif failed is not None:
        line, code = (
            (
                f"{where} failed on its device: {step_failure.describe_error(failed.error)}; "
                "start it again: it goes on from its last checkpoint"
            ),
            exit_status.FAILED,
        )
    else:
        return
    if exit_status.wants_traceback():
        traceback.print_exception(cause)
    if _current is None:
        stop_signals.exit_with_line(line, code)
    # The others may wait for this process, so what it waits for has an end.
    saving = threading.Thread(target=_finish_saving, args=(finish,), daemon=True)
    saving.start()
    saving.join(_SAVE_TIMEOUT if _current.ranks > 1 else None)
    _current.fail(line, code)


def _finish_saving(finish: Callable[[], object]) -> None:
    try:
        finish()
    except Exception as error:  # noqa: BLE001 (what ended the training is the news)
        line = f"the last checkpoint is not written: {watchdog.first_line(error)}"
        log.warn(line, terminal=True)


def end_if_process_lost(error: BaseException) -> None:
    """End the process where what went wrong is that another one is gone, and name that; return
    where it is not.
    """
    if _current is None:
        return
    lost = _current.watch.lost()
    if lost:
        who = " and ".join(map(_current.watch.name, lost))
        stop_signals.exit_with_line(
            (
                f"{who} is lost ({type(error).__name__}: {watchdog.first_line(error)}); it ends "
                f"with status {exit_status.PROCESS_LOST}: start it again, it goes on from its "
                "last checkpoint"
            ),
            exit_status.PROCESS_LOST,
        )
