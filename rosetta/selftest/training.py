"""Train a tiny model, stop, restore it in another process, go on; and look hard at what came of
it.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rosetta.selftest import checkpoint_mesh, child_process, tensorboard_events

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.selftest.child_process import Context
    from rosetta.selftest.workload import Workload

PROCESS_TIMEOUT = 1800.0  # seconds for one process
STEPS_AFTER_RESTORE = 10  # steps after the restore


@dataclass
class TrainingRun:
    """One model on one number of devices: what it reported, and what is wrong with that."""

    devices: int
    mesh: dict[str, int] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    resumed_from: int | None = None
    resumed_losses: dict[int, float] = field(default_factory=dict)
    steps_per_second: float = 0.0  # zero: unknown
    wall_s: float = 0.0
    checkpoint: str | None = None
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "devices": self.devices,
            "platform": child_process.read_platform(),
            "mesh": " ".join(f"{axis}={size}" for axis, size in self.mesh.items()) or "unknown",
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
    """Return what is wrong with the first process's results."""
    problems = []
    if len(losses) < 3 or max(losses, default=0) != steps:
        problems.append(
            f"loss reported at steps {list(losses)}, which is not at least three times up to "
            f"step {steps}"
        )
    if not all(math.isfinite(loss) for loss in losses.values()):
        problems.append(f"a loss is not finite: {losses}")
    elif len(losses) >= 3:
        first, *_ = values = list(losses.values())
        last = fmean(values[-max(1, len(values) // 3) :])
        if last >= first:
            problems.append(f"the loss did not fall: {first:.4f} at first, {last:.4f} at last")
    if steps not in checkpoints:
        problems.append(f"no checkpoint of step {steps}; there are {checkpoints}")
    return problems


def find_resume_problems(
    first: dict[int, float], resumed: dict[int, float], checkpoints: list[int], steps: int
) -> list[str]:
    """Return what is wrong with the second process's results; `first` are the first's losses, up to
    step `steps`.
    """
    problems = []
    if not resumed or max(resumed) != steps + STEPS_AFTER_RESTORE:
        problems.append(
            f"after the restore, loss reported at steps {list(resumed)}, not up to "
            f"{steps + STEPS_AFTER_RESTORE}"
        )
    if resumed and min(resumed) <= steps:
        problems.append(
            f"the second process reported step {min(resumed)}: it did not start from the "
            f"checkpoint of step {steps}"
        )
    if not all(math.isfinite(loss) for loss in resumed.values()):
        problems.append(f"a loss after the restore is not finite: {resumed}")
    elif resumed and first:
        begin, *_, end = first.values()
        back = next(iter(resumed.values()))
        # A model that starts anew has the loss of the beginning, whatever its step counter says.
        if back > (begin + end) / 2:
            problems.append(
                f"the loss jumped at the restore: {end:.4f} before, {back:.4f} after, "
                f"{begin:.4f} at the very start"
            )
    if steps + STEPS_AFTER_RESTORE not in checkpoints:
        problems.append(
            f"no checkpoint of step {steps + STEPS_AFTER_RESTORE}; there are {checkpoints}"
        )
    return problems


def _hide_event_files(folder: Path) -> list[tuple[Path, Path]]:
    """Move the event files below `folder` out of every reader's way; return what went where."""
    moved = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        aside = path.with_name(f"first-process.{path.name}")
        os.rename(path, aside)
        moved.append((path, aside))
    return moved


def _run_phase(
    context: Context, workload: Workload, run: TrainingRun, log: Path, *, steps: int
) -> tuple[dict[int, float], bool]:
    """Run one process up to step `steps` in `log`'s folder; return the losses in its event files
    and whether it ended well.
    """
    folder = log.parent
    told: set[int] = set()

    def tick() -> None:
        for step, loss in workload.read_losses(folder).items():
            if step not in told:
                told.add(step)
                context.report(
                    f"{workload.framework}, {run.devices} device(s): step {step}  loss {loss:.4f}"
                )

    phase = workload.make_command(folder, steps=steps, devices=run.devices)
    status = child_process.run_process(
        context, phase.argv, log, env=phase.env, timeout=PROCESS_TIMEOUT, tick=tick
    )
    if status != 0:
        run.problems.append(
            f"training to step {steps} {child_process.describe_exit(status)}; the end of "
            f"{log}:\n{child_process.read_log_end(log)}"
        )
    return workload.read_losses(folder), status == 0


def train_and_resume(
    context: Context, workload: Workload, folder: Path, *, steps: int, devices: int
) -> TrainingRun:
    """Train in `folder` (made here) to step `steps`, then restore and go on for MORE steps."""
    run = TrainingRun(devices)
    began = time.monotonic()
    folder.mkdir(parents=True)
    workload.write_data(folder)
    run.losses, fine = _run_phase(context, workload, run, folder / "train.log", steps=steps)
    if fine:
        run.problems += find_training_problems(
            run.losses, workload.list_checkpoint_steps(folder), steps
        )
        run.steps_per_second = tensorboard_events.measure_speed(folder, list(run.losses)) or 0.0
        moved = _hide_event_files(folder)
        run.resumed_losses, fine = _run_phase(
            context, workload, run, folder / "resume.log", steps=steps + STEPS_AFTER_RESTORE
        )
        for path, aside in moved:
            os.rename(aside, path)
    if fine:
        checkpoints = workload.list_checkpoint_steps(folder)
        wrong = find_resume_problems(run.losses, run.resumed_losses, checkpoints, steps)
        run.resumed_from = None if wrong else steps
        run.problems += wrong
        run.mesh = checkpoint_mesh.read_mesh(folder)
        if run.mesh and math.prod(run.mesh.values()) != devices:
            run.problems.append(
                f"the checkpoint was written from mesh {run.mesh}, not from {devices} devices"
            )
        run.checkpoint = str(folder)
    run.wall_s = time.monotonic() - began
    return run
