"""Supervise one run for its trainer: stop signals, bad losses, lost processes and checkpoints.

The trainer of T5X or Pax makes a `Supervisor`, asks it before each step and before each checkpoint,
and tells it of each step. The other functions end the process when the training has ended early.
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
    mlflow_tracking,
    profiling,
    step_failure,
    stop_signals,
    trainer_exit,
    watchdog,
    weights_and_biases,
)
from rosetta.health.bad_losses import BadStep
from rosetta.health.barrier import StepBarrier
from rosetta.health.error_text import first_line
from rosetta.health.step_tracking import StepTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rosetta.health.checkpoint_saves import SaveTracker
    from rosetta.health.supervision_settings import Settings

# A host is slow if it waits for data so much of a step longer than the median host.
_SLOW_INPUT = 0.1
# The number of dispatched steps whose results are not seen yet; JAX itself queues up to 32.
_MAX_STEPS_IN_FLIGHT = 16
# Seconds that a process which fails alone waits for a checkpoint that all processes are writing.
_SAVE_TIMEOUT = 60.0

_current: Supervisor | None = None


class RunStopped(Exception):  # noqa: N818 (nothing went wrong)
    """The run ends early.

    Attributes:
      reason: what asked for it, for example the name of a signal.
      step: the step that is not trained any more.
      bad_step: why the run's state is not worth a checkpoint; None if it is.
      error: why the data has no batch for the step; None for other reasons.
    """

    def __init__(
        self,
        reason: str,
        step: int,
        bad_step: BadStep | None = None,
        error: UserError | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.step, self.bad_step, self.error = reason, step, bad_step, error


@dataclass(frozen=True)
class DumpSource:
    """What a trainer can tell of a step for the dump of a bad step.

    Attributes:
      batch: returns hash, shard and examples of this process's rows of a step.
      scales: returns FP8's scales by the name of the array.
    """

    batch: Callable[[int], Mapping[str, Any] | None]
    scales: Callable[[], Mapping[str, list[float]]]


class Supervisor:
    """Supervises a run from its first step to its last; a process has one.

    Args:
      folder: of the run; None for a run without one.
      settings: how the run is supervised.
      rank: the number of this process.
      ranks: the number of processes.
      source: what the dump of a bad step contains.

    Attributes:
      ending: why the run ends early; None while it does not.
      saves: tracks the checkpoints of the run; the trainer sets it.
    """

    def __init__(
        self, folder: str | None, settings: Settings, rank: int, ranks: int, source: DumpSource
    ) -> None:
        global _current  # noqa: PLW0603 (a process handles signals and failures for one run)
        self._folder = folder or "."
        self.settings, self._rank, self.ranks, self._source = settings, rank, ranks, source
        self._store = key_value_store.open_store(ranks)
        self._stop_barrier = StepBarrier("stop", self._store, rank, ranks)
        self._save_barrier = StepBarrier("save", self._store, rank, ranks)
        self._loss_monitor = bad_losses.LossMonitor(settings.spike)
        self._bad_step: BadStep | None = None
        self._is_in_steps = False
        self.ending: RunStopped | None = None
        self.step_tracker = StepTracker(self._check_loss)
        self.watchdog = watchdog.Watchdog(
            self._store,
            rank,
            ranks,
            folder,
            settings,
            self.step_tracker,
            self._is_working,
            (self._stop_barrier, self._save_barrier),
        )
        self._last_save = time.monotonic()
        self.saves: SaveTracker | None = None
        self._profiler = profiling.StepProfiler(self._folder, settings.profile, rank)
        services = (weights_and_biases.WandbRun, mlflow_tracking.MlflowRun) if rank == 0 else ()
        self._tracked_runs = [make_run(self._folder, os.environ) for make_run in services]
        self.goodput = goodput.Goodput(folder) if rank == 0 else None
        stop_signals.install_handlers()
        stop_signals.set_stop_request(self._stop_barrier.request)
        self.watchdog.start()
        _current = self

    def _is_working(self) -> bool:
        """Return whether a step runs or waits for its data, so that the watchdog has to watch."""
        return self._is_in_steps or self.step_tracker.dispatched > self.step_tracker.done

    def begin_steps(self) -> None:
        """Let the watchdog watch: steps follow."""
        self.step_tracker.restart_clock()
        self._is_in_steps = True

    def end_steps(self) -> None:
        """Let the watchdog rest: evaluation, a checkpoint or the end of the run follows."""
        self._is_in_steps = False

    @contextlib.contextmanager
    def pause_watchdog(self) -> Iterator[None]:
        """Pause the watchdog for a block of code, and resume it afterwards if it watched before.

        If the block raises an error, the run ends, so the watchdog does not resume.
        """
        was_in_steps = self._is_in_steps
        self.end_steps()
        yield
        if was_in_steps:
            self.begin_steps()

    def before_step(self, step: int, program: Callable[[], Any] | None = None) -> None:
        """Check that a step may begin.

        Args:
          step: its number.
          program: see StepProfiler.toggle.

        Raises:
          RunStopped: the run ends before this step.
          StepFailedError: an earlier step failed on its devices.
        """
        self.step_tracker.wait_until_fewer_than(_MAX_STEPS_IN_FLIGHT)
        self._raise_failure()
        if self._profiler.is_due(step):
            self.step_tracker.wait_for_all()
            self._profiler.toggle(program)
            self.step_tracker.restart_clock()
        if self._stop_barrier.is_reached(step):
            bad_step = self._wait_for_bad_step()
            raise self._set_ending(RunStopped(self._stop_barrier.reason or "", step, bad_step))

    def _set_ending(self, stopped: RunStopped) -> RunStopped:
        """Record why the run ends: gin raises a copy of the exception that lacks its fields."""
        self.ending = stopped
        return stopped

    def stop_for_data(self, error: UserError, step: int) -> RunStopped:
        """Return the exception that ends the run, with a checkpoint, before a step without a batch.

        Args:
          error: why there is no batch.
          step: the step that is not trained.

        Raises:
          UserError: the error itself in a run of several processes. They would have to save
            together, and the others do not know of the error.
        """
        if self.ranks > 1:
            raise error
        return self._set_ending(RunStopped("its data", step, self._wait_for_bad_step(), error))

    def is_checkpoint_due(self, step: int) -> bool:
        """Return whether a checkpoint by time is due, in all processes before the same step.

        Call it before each step.
        """
        minutes = self.settings.checkpoint_minutes
        if minutes and self._rank == 0 and time.monotonic() - self._last_save > 60 * minutes:
            self._last_save = time.monotonic()
            self._save_barrier.request("time")
        return bool(minutes) and self._save_barrier.is_reached(step)

    def track_step(self, step: int, wait_for_loss: Callable[[], float]) -> None:
        """Follow a step that was given to the devices; the function waits for its loss."""
        self.step_tracker.track(step, wait_for_loss)

    def _check_loss(self, step: int, loss: float) -> None:
        """Check a loss, and request a stop if it is bad and the settings say so."""
        bad_step = self._loss_monitor.check_loss(step, loss)
        mode = self.settings.on_bad_loss
        if bad_step is None or self._bad_step is not None or mode == "ignore":
            return
        if mode == "skip" and self._loss_monitor.bad_in_a_row <= bad_losses.MAX_SKIPPED_IN_A_ROW:
            if self._rank == 0:
                consequence = "its update is left out"
                if math.isfinite(bad_step.loss):
                    consequence = "its update stays: only what is not finite is left out"
                line = f"step {bad_step.step:,}: {bad_step.why}; {consequence}"
                log.warn(line)
            return
        self._bad_step = bad_step
        self._stop_barrier.request("a bad loss")

    def _wait_for_bad_step(self) -> BadStep | None:
        """Wait for the dispatched steps; return the bad one, or None if all are good.

        Raises:
          StepFailedError: a step failed on its devices.
        """
        self.step_tracker.wait_for_all()
        self._raise_failure()
        return self._bad_step

    def _raise_failure(self) -> None:
        if self.step_tracker.failure is not None:
            raise self.step_tracker.failure

    def before_checkpoint(self, step: int, is_finite: Callable[[], bool]) -> None:
        """Check that a checkpoint of a step is worth writing.

        Args:
          step: the number of steps that are done.
          is_finite: returns whether all parameters are finite; a loss tells that a step later.

        Raises:
          RunStopped: a loss is bad, or a parameter is not finite.
          StepFailedError: a step failed on its devices.
        """
        bad_step = self._wait_for_bad_step()
        if bad_step is None and self.settings.on_bad_loss != "ignore" and not is_finite():
            history = self._loss_monitor.history
            last_loss = history[-1][1] if history else math.nan
            bad_step = BadStep(step - 1, last_loss, "it left parameters that are not finite")
        if bad_step is not None:
            raise self._set_ending(RunStopped("a bad loss", step, bad_step))
        self._last_save = time.monotonic()

    def end_stopped_run(self, stopped: RunStopped, folder: str | None) -> NoReturn:
        """End the process of a run that was stopped early.

        The status is 75 after a signal, 1 after a bad loss, which also writes a dump, and 2 if the
        data has an error.

        Args:
          stopped: what `before_step`, `stop_for_data` or `before_checkpoint` gave.
          folder: of the checkpoints; None if the run writes none. If the last checkpoint is missing
            or damaged, the status is 1 instead of 75.
        """
        self.close()
        if stopped.bad_step is not None:
            self._end_for_bad_step(stopped.bad_step)
        if stopped.error is not None:
            self._end_for_data(stopped.error, stopped.step, folder)
        line = f"ended by {stopped.reason} before step {stopped.step:,}"
        if folder is None:
            self._exit_with_line(
                f"{line}: no checkpoint is written in this run", exit_status.ENDED_EARLY
            )
        problem = checkpoint_files.find_problem(folder, stopped.step)
        if problem:
            self._exit_with_line(
                f"{line}, and its checkpoint is not written: {problem}", exit_status.FAILED
            )
        self._exit_with_line(
            f"{line}: its checkpoint is written, and the next start resumes from it",
            exit_status.ENDED_EARLY,
        )

    def _end_for_data(self, error: UserError, step: int, folder: str | None) -> NoReturn:
        """End the process with status 2 for unusable data, and name the state of the checkpoint."""
        if folder is None:
            checkpoint = "no checkpoint is written in this run"
        elif problem := checkpoint_files.find_problem(folder, step):
            checkpoint = f"its checkpoint is not written: {problem}"
        else:
            checkpoint = (
                "its checkpoint is written; with the file mended, resume with CHANGED_DATA=accept"
            )
        line = f"{error} (the run ended before step {step:,}, and {checkpoint})"
        self._exit_with_line(line, exit_status.USER_ERROR)

    def end_with_line(self, line: str, code: int) -> NoReturn:
        """End supervision and the process, with a line and a status."""
        self.close()
        self._exit_with_line(line, code)

    def _end_for_bad_step(self, bad_step: BadStep) -> NoReturn:
        """Write the dump of a bad step, and end the process with status 1."""
        try:
            dump = bad_losses.write_dump(
                self._folder,
                self._rank,
                bad_step,
                list(self._loss_monitor.history),
                self._source.batch(bad_step.step),
                self._source.scales(),
            )
            outcome = f"is in {dump}"
        except Exception as error:  # noqa: BLE001 (the bad loss is reported even without its dump)
            outcome = f"cannot be written ({type(error).__name__}: {first_line(error)})"
        self._exit_with_line(
            (
                f"step {bad_step.step:,}: {bad_step.why}; no checkpoint was written after it, what "
                f"is known of it {outcome} (ON_BAD_LOSS=skip leaves such steps out)"
            ),
            exit_status.FAILED,
        )

    def _exit_with_line(self, line: str, code: int) -> NoReturn:
        """End the process with a line and a status."""
        if self._rank == 0:
            # The other processes need the store, which ends with this one, to end themselves.
            time.sleep(2 * self.watchdog.interval if self.ranks > 1 else 0)
        stop_signals.exit_with_line(line if self._rank == 0 else f"rank {self._rank}: {line}", code)

    def collect_report(
        self, step: int, seconds: float, input_wait: float
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return what a progress report says of the run's health.

        Only rank 0 calls this; the others call `publish_input_wait`.

        Args:
          step: the last step of the report.
          seconds: how long the steps of the report took.
          input_wait: seconds a step that this host waited for its data.

        Returns:
          Values for programs, by name, and notes for people.
        """
        values: dict[str, Any] = {}
        notes: list[str] = []
        if self.goodput:
            values["goodput"] = self.goodput.record(step, seconds)
            notes.append(f"goodput {100 * values['goodput']:.1f} %")
        if self.saves:
            values |= self.saves.take_durations()
        waits = self._gather_input_waits(step, input_wait)
        if waits:
            values |= {
                "host_wait_median": waits.median,
                "host_wait_max": waits.largest,
                "host_wait_rank": waits.slowest_rank,
            }
            step_seconds = self.step_tracker.median_duration or math.inf
            if waits.largest - waits.median > _SLOW_INPUT * step_seconds:
                notes.append(
                    f"{self.watchdog.describe_process(waits.slowest_rank)} is slow: its input "
                    f"takes {waits.largest:.3g} s a step, of the others {waits.median:.3g} s"
                )
        return values, tuple(notes)

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send a report's scalars to Weights & Biases and MLflow, if they are used."""
        for tracked_run in self._tracked_runs:
            tracked_run.log_scalars(step, scalars)

    def publish_input_wait(self, step: int, input_wait: float) -> None:
        """Tell rank 0 how many seconds a step this host waited for its data."""
        with contextlib.suppress(Exception):  # The heartbeat thread reports a failing store.
            if self.ranks > 1:
                self._store.put(f"spread/{self._rank}", f"{step} {input_wait}")

    def _gather_input_waits(self, step: int, input_wait: float) -> _InputWaits | None:
        """Return the input waits of all hosts; None if some do not publish theirs in time."""
        self.publish_input_wait(step, input_wait)
        deadline = time.monotonic() + 3 * self.watchdog.interval
        with contextlib.suppress(Exception):
            while self.ranks > 1 and time.monotonic() < deadline:
                waits = self._read_input_waits(step)
                if len(waits) == self.ranks:
                    ordered = sorted(waits.values())
                    slowest = max(waits, key=lambda rank: waits[rank])
                    return _InputWaits(ordered[(len(ordered) - 1) // 2], waits[slowest], slowest)
                time.sleep(0.1)
        return None

    def _read_input_waits(self, step: int) -> dict[int, float]:
        """Return the waits that hosts published for a step, by rank, in seconds a step."""
        waits = {}
        for rank, text in self._store.list_folder("spread").items():
            published_step, wait = text.split()
            if int(published_step) >= step:
                waits[int(rank)] = float(wait)
        return waits

    def close(self, wait_for_reports: Callable[[], object] | None = None) -> None:
        """End supervision at the end of the run, and restore the default signal handlers.

        Args:
          wait_for_reports: waits until the last report is sent, before the run ends in the services
            that keep it.
        """
        self.end_steps()
        stop_signals.restore_default_handlers()
        self.watchdog.close()
        self._profiler.close()
        if wait_for_reports is not None:
            wait_for_reports()
        for tracked_run in self._tracked_runs:
            tracked_run.close()


@dataclass(frozen=True)
class _InputWaits:
    """How long the hosts of a run waited for their data, in seconds a step."""

    median: float
    largest: float
    slowest_rank: int


def get_supervisor() -> Supervisor | None:
    """Return the supervisor of this process's run; None before its first step."""
    return _current


def pause_watchdog() -> contextlib.AbstractContextManager[None]:
    """Pause the watchdog of this process's run, if there is one, for a block of code."""
    return contextlib.nullcontext() if _current is None else _current.pause_watchdog()


def has_trained() -> bool:
    """Return whether this process has given a step to its devices."""
    return _current is not None and _current.step_tracker.dispatched > 0


def end_if_stopped(finish: Callable[[], str | None]) -> None:
    """End the process if its run was stopped early; return otherwise.

    Args:
      finish: waits for the checkpoints that are being written, and returns their folder, or None if
        the run writes none. A UserError that it raises is reported.
    """
    if _current is None or _current.ending is None:
        return
    try:
        folder = finish()
    except UserError as error:
        if _current.ending.bad_step is None:
            trainer_exit.exit_with_error(error)
        # The bad loss is the cause to report, so the failed checkpoint is only a warning.
        log.warn(str(error))
        folder = None
    _current.end_stopped_run(_current.ending, folder)


def end_if_step_failed(error: Exception, advice: str, finish: Callable[[], object]) -> None:
    """End the process in one line if memory ran out or a step failed on its devices.

    Returns for any other error.

    Args:
      error: what ended the training.
      advice: how to take less memory.
      finish: waits for the checkpoints that are being written.
    """
    failure = _current.step_tracker.failure if _current else None
    cause = failure or error
    where = _describe_failed_step()
    if step_failure.is_out_of_memory(cause):
        line = str(step_failure.describe_out_of_memory(cause, where, advice))
        code = exit_status.USER_ERROR
    elif failure is not None:
        line = (
            f"{where} failed on its device: {step_failure.describe_error(failure.error)}; "
            "start it again, and it resumes from its last checkpoint"
        )
        code = exit_status.FAILED
    else:
        return
    if exit_status.wants_traceback():
        traceback.print_exception(cause)
    if _current is None:
        stop_signals.exit_with_line(line, code)
    # Saving may need the other processes, which may wait for this one, so the wait is limited.
    saving = threading.Thread(target=_finish_saving, args=(finish,), daemon=True)
    saving.start()
    saving.join(_SAVE_TIMEOUT if _current.ranks > 1 else None)
    _current.end_with_line(line, code)


def _describe_failed_step() -> str:
    """Return the name of the step that failed, or of the last one that was dispatched."""
    if _current is None:
        return "the start of the run"
    failure = _current.step_tracker.failure
    step = failure.step if failure else _current.step_tracker.dispatched
    return f"step {step:,}"


def _finish_saving(finish: Callable[[], object]) -> None:
    """Wait for the checkpoints; report an error as a warning, next to what ended the training."""
    try:
        finish()
    except Exception as error:  # noqa: BLE001 (what ended the training is the news)
        line = f"the last checkpoint is not written: {first_line(error)}"
        log.warn(line)


def end_if_process_lost(error: BaseException) -> None:
    """End the process, and name the lost one, if another process of the run is lost.

    Waits for a few heartbeats first. Returns if no process is lost.
    """
    if _current is None:
        return
    lost = _current.watchdog.wait_for_lost()
    if lost:
        names = " and ".join(map(_current.watchdog.describe_process, lost))
        stop_signals.exit_with_line(
            (
                f"{names} is lost ({type(error).__name__}: {first_line(error)}); the run ends "
                f"with status {exit_status.PROCESS_LOST}: start it again, and it resumes from its "
                "last checkpoint"
            ),
            exit_status.PROCESS_LOST,
        )
