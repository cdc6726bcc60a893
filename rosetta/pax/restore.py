"""Start from a checkpoint of another run: its weights, not its step or its optimizer's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paxml import tasks_lib

from rosetta.errors import UserError
from rosetta.launch import folders


def found(path: str) -> tuple[str, int | None]:
    """Return the folder of checkpoints that a path names, and the step where it names one.

    Args:
      path: a run's folder, the folder `checkpoints` in it, or one `checkpoint_N`.

    Raises:
      UserError: a path of this machine with no checkpoint.
    """
    step = folders.step_of(path)
    folder = (path.rstrip("/") or "/") if step is None else folders.split(path)[0]
    if "://" in path:
        return folder, step
    if step is None and Path(folder, "checkpoints").is_dir():
        folder = f"{folder}/checkpoints"
    kept = folders.steps(folder)
    if not kept or (step is not None and not folders.exists(path)):
        raise UserError("there is no checkpoint_N", f"CHECKPOINT_RESTORE_PATH={path}", "name a run's folder, its folder `checkpoints`, or one checkpoint_N")
    return folder, step


def restored(task: Any, path: str, stored: Any, inputs: Any, ignored: list[str] | None) -> None:
    """Make a task begin with a checkpoint's weights, in place.

    Args:
      task: its configuration, with all switches.
      path: see found.
      stored: the same without any switch, as what wrote the checkpoint is read.
      inputs: the configuration of what provides the inputs' shapes.
      ignored: patterns of variables that keep their initial values, beside those that a switch adds.

    Raises:
      UserError: there is no checkpoint.
    """
    folder, step = found(path)
    fresh = [] if task == stored else _added()
    task.train.init_from_checkpoint_rules = {
        folder: tasks_lib.CheckpointLoadingRules(
            task_p=stored,
            load_rules=[(r"(.*)", "{}")],
            ignore_rules=[*fresh, *(ignored or ())],
            step=step,
            input_specs_provider_p=inputs,
        )
    }


def _added() -> list[str]:
    from rosetta.pax import einsum, lora  # noqa: PLC0415 (Praxis 1.4.0, where no switch adds anything, cannot import them)

    return [lora.PATTERN, einsum.PATTERN]
