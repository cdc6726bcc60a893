"""Train a tiny model, stop, restore it in another process and train on, for the self-test.

The results are checked: losses, checkpoints, and the mesh of the checkpoint.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rosetta.selftest import checkpoint_record, child_process, tensorboard_events

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.selftest.child_process import Context
    from rosetta.selftest.workload import TrainingCommand, Workload

PROCESS_TIMEOUT = 1800.0  # seconds for one process
STEPS_AFTER_RESTORE = 10


@dataclass
class TrainingRun:
    """The results of the two training processes on one number of devices.

    Attributes:
        devices: The number of devices.
        mesh: The size of each mesh axis, as the checkpoint records it; empty if unknown.
        losses: The losses of the first process by step.
        resumed_from: The step from which the second process resumed; None if it did not.
        resumed_losses: The losses of the second process by step.
        steps_per_second: The speed of the first process; zero if unknown.
        wall_s: The seconds that both processes took.
        checkpoint: The folder with the checkpoints; None if there is none.
        problems: A line for each problem.
    """

    devices: int
    mesh: dict[str, int] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    resumed_from: int | None = None
    resumed_losses: dict[int, float] = field(default_factory=dict)
    steps_per_second: float = 0.0
    wall_s: float = 0.0
    checkpoint: str | None = None
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the run as it stands in the JSON document of the self-test."""
        mesh = " ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        return {
            "devices": self.devices,
            "platform": child_process.read_platform(),
            "mesh": mesh or "unknown",
            "losses": {str(step): loss for step, loss in self.losses.items()},
            "resumed_from": self.resumed_from,
            "resumed_losses": {str(step): loss for step, loss in self.resumed_losses.items()},
            "steps_per_second": self.steps_per_second,
            "wall_s": round(self.wall_s, 1),
            "checkpoint": self.checkpoint,
        }


def find_training_problems(
    losses: dict[int, float], checkpoints: list[int], steps: int
) -> list[str]:
    """Return a line for each problem in the results of the first process.

    Args:
        losses: The losses by step, ascending.
        checkpoints: The steps of the checkpoints.
        steps: The step at which the process had to end.
    """
    problems = []
    if len(losses) < 3 or max(losses, default=0) != steps:
        problems.append(
            f"loss reported at steps {list(losses)}, which is not at least three times up to "
            f"step {steps}"
        )
    if not all(math.isfinite(loss) for loss in losses.values()):
        problems.append(f"a loss is not finite: {losses}")
    elif len(losses) >= 3:
        values = list(losses.values())
        first = values[0]
        last = fmean(values[-max(1, len(values) // 3) :])
        if last >= first:
            problems.append(f"the loss did not fall: {first:.4f} at first, {last:.4f} at last")
    if steps not in checkpoints:
        problems.append(f"no checkpoint of step {steps}; there are {checkpoints}")
    return problems


def find_resume_problems(
    first: dict[int, float], resumed: dict[int, float], checkpoints: list[int], steps: int
) -> list[str]:
    """Return a line for each problem in the results of the second process.

    Args:
        first: The losses of the first process by step, ascending.
        resumed: The losses of the second process by step, ascending.
        checkpoints: The steps of the checkpoints.
        steps: The step at which the first process ended.
    """
    problems = []
    last_step = steps + STEPS_AFTER_RESTORE
    if not resumed or max(resumed) != last_step:
        problems.append(
            f"after the restore, loss reported at steps {list(resumed)}, not up to {last_step}"
        )
    if resumed and min(resumed) <= steps:
        problems.append(
            f"the second process reported step {min(resumed)}: it did not start from the "
            f"checkpoint of step {steps}"
        )
    if not all(math.isfinite(loss) for loss in resumed.values()):
        problems.append(f"a loss after the restore is not finite: {resumed}")
    elif resumed and first:
        start, *_, before = first.values()
        after = next(iter(resumed.values()))
        # A model that was not restored has a loss like that of the start, whatever its step is.
        if after > (start + before) / 2:
            problems.append(
                f"the loss jumped at the restore: {before:.4f} before, {after:.4f} after, "
                f"{start:.4f} at the very start"
            )
    if last_step not in checkpoints:
        problems.append(f"no checkpoint of step {last_step}; there are {checkpoints}")
    return problems


def _hide_event_files(folder: Path) -> list[tuple[Path, Path]]:
    """Rename the event files in a folder and below, so that no reader finds them.

    Returns:
        For each file its path before and its path now.
    """
    renamed = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        hidden = path.with_name(f"first-process.{path.name}")
        os.rename(path, hidden)
        renamed.append((path, hidden))
    return renamed


def run_process(
    context: Context, workload: Workload, command: TrainingCommand, log: Path, label: str
) -> tuple[dict[int, float], str]:
    """Run one training process, and report each loss as soon as it is written.

    Args:
        context: What the child processes of the self-test share.
        workload: The tiny model.
        command: The command of the process.
        log: The log of the process, in the folder of the run.
        label: The beginning of the lines about the losses.

    Returns:
        The losses in the folder's event files, and how the process failed; "" if it succeeded.
    """
    folder = log.parent
    reported: set[int] = set()

    def report_losses() -> None:
        for step, loss in workload.read_losses(folder).items():
            if step not in reported:
                reported.add(step)
                context.report(f"{label}: step {step}  loss {loss:.4f}")

    status = child_process.run_process(
        context, command.argv, log, env=command.env, timeout=PROCESS_TIMEOUT, tick=report_losses
    )
    problem = ""
    if status != 0:
        problem = (
            f"{child_process.describe_exit(status)}; the end of {log}:\n"
            f"{child_process.read_log_end(log)}"
        )
    return workload.read_losses(folder), problem


def _run_phase(
    context: Context, workload: Workload, run: TrainingRun, log: Path, *, steps: int
) -> tuple[dict[int, float], bool]:
    """Train up to a step in one process. If it fails, add the problem to the run.

    Args:
        context: What the child processes of the self-test share.
        workload: The tiny model.
        run: The run that the process belongs to.
        log: The log of the process, in the folder of the run.
        steps: The step at which the process ends.

    Returns:
        The losses in the folder's event files, and whether the process succeeded.
    """
    command = workload.make_command(log.parent, steps=steps, devices=run.devices)
    label = f"{workload.framework}, {run.devices} device(s)"
    losses, problem = run_process(context, workload, command, log, label)
    if problem:
        run.problems.append(f"training to step {steps} {problem}")
    return losses, not problem


def train_and_resume(
    context: Context, workload: Workload, folder: Path, *, steps: int, devices: int
) -> TrainingRun:
    """Train up to a step, then restore in another process and train on for STEPS_AFTER_RESTORE.

    Args:
        context: What the child processes of the self-test share.
        workload: The tiny model.
        folder: The folder of the run, which this creates.
        steps: The step at which the first process ends.
        devices: The number of devices.
    """
    run = TrainingRun(devices)
    start = time.monotonic()
    folder.mkdir(parents=True)
    workload.write_data(folder)
    run.losses, succeeded = _run_phase(context, workload, run, folder / "train.log", steps=steps)
    if succeeded:
        checkpoints = workload.list_checkpoint_steps(folder)
        run.problems += find_training_problems(run.losses, checkpoints, steps)
        run.steps_per_second = tensorboard_events.measure_speed(folder, list(run.losses)) or 0.0
        # The losses of the second process must be its own.
        renamed = _hide_event_files(folder)
        run.resumed_losses, succeeded = _run_phase(
            context, workload, run, folder / "resume.log", steps=steps + STEPS_AFTER_RESTORE
        )
        for path, hidden in renamed:
            os.rename(hidden, path)
    if succeeded:
        checkpoints = workload.list_checkpoint_steps(folder)
        problems = find_resume_problems(run.losses, run.resumed_losses, checkpoints, steps)
        run.resumed_from = None if problems else steps
        run.problems += problems
        run.mesh = checkpoint_record.read_mesh(folder)
        if run.mesh and math.prod(run.mesh.values()) != devices:
            run.problems.append(
                f"the checkpoint was written from mesh {run.mesh}, not from {devices} devices"
            )
        run.checkpoint = str(folder)
    run.wall_s = time.monotonic() - start
    return run
