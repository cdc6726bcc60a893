"""Check Paxml's checkpoints before they are written, and write some by time.

A state with values that are not finite is not written. rosetta.pax.train sets the executor, whose
checkpointer asks the supervisor of the run (rosetta.health.supervision) first.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import jax
from paxml import executors

from rosetta.health import checkpoint_saves, supervision, supervision_settings
from rosetta.health.finite_check import all_finite

if TYPE_CHECKING:
    from collections.abc import Callable

_checkpointers: list[CheckedCheckpointer] = []  # those of this process
# The arguments of Paxml's save_if_needed after the state, by the names that save_final has.
_SAVE_ARGUMENTS = (
    "train_state_unpadded_shape_dtype_struct",
    "train_state_pspecs",
    "train_input_pipeline",
)


def finish_saves() -> str | None:
    """Wait for the save that is in progress.

    Returns:
      The folder of the checkpoints, or None if the run saves none.

    Raises:
      UserError: The disk was full.
    """
    for checkpointer in _checkpointers:
        checkpointer.finish()
    return _checkpointers[-1].folder if _checkpointers else None


class Executor(executors.DefaultExecutor):
    """Paxml's executor with a CheckedCheckpointer."""

    def setup(
        self, jax_task: Any, job_log_dir: Any, checkpointer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Set up the run. The arguments are those of Paxml's method."""
        checked = CheckedCheckpointer(checkpointer, f"{job_log_dir}/checkpoints")
        super().setup(jax_task, job_log_dir, checked, *args, **kwargs)


class CheckedCheckpointer:
    """A checkpointer that writes no bad state.

    Everything that it does not define itself is that of the inner checkpointer.

    Attributes:
      folder: The folder of the checkpoints.
    """

    def __init__(self, inner: Any, folder: str) -> None:
        self._inner, self.folder = inner, folder
        self._saves = checkpoint_saves.SaveTracker(
            folder,
            supervision_settings.read_settings(os.environ).on_full_disk,
            speaks=jax.process_index() == 0,
        )
        _checkpointers.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def save_if_needed(
        self, step_i: int, partitioned_train_state: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Save the state if Paxml would, or if the supervisor asks for a checkpoint.

        Args:
          step_i: The number of steps that are done.
          partitioned_train_state: The state.
          *args: The other arguments of Paxml's method.
          **kwargs: The same by name.
        """
        supervisor = supervision.get_supervisor()
        if supervisor is not None and supervisor.is_checkpoint_due(step_i):
            named_args = dict(zip(_SAVE_ARGUMENTS, args, strict=False))
            self.save_final(
                step_i, partitioned_train_state=partitioned_train_state, **{**named_args, **kwargs}
            )
        elif self._inner.checkpoint_manager.should_save(step_i):
            self._save(
                step_i,
                partitioned_train_state,
                lambda: self._inner.save_if_needed(
                    step_i, partitioned_train_state, *args, **kwargs
                ),
            )

    def save_final(self, step_i: int, *, partitioned_train_state: Any, **kwargs: Any) -> None:
        """Save the state, unless there is a checkpoint of this step.

        Args:
          step_i: The number of steps that are done.
          partitioned_train_state: The state.
          **kwargs: The other arguments of Paxml's method.
        """
        latest = self._inner.checkpoint_manager.latest_step()
        if latest is None or latest < step_i:
            self._save(
                step_i,
                partitioned_train_state,
                lambda: self._inner.save_final(
                    step_i, partitioned_train_state=partitioned_train_state, **kwargs
                ),
            )

    def close(self) -> None:
        """Wait for the last save, and close; UserError if the disk was full."""
        self._wait_for_save(self._inner.close)

    def finish(self) -> None:
        """Wait for the last save; UserError if the disk was full."""
        self._wait_for_save(self._inner.wait_until_finished)

    def _wait_for_save(self, wait: Callable[[], None]) -> None:
        """Call a function that waits for the last save, and report the save."""
        try:
            wait()
        except Exception as error:
            if not checkpoint_saves.is_disk_full(error):
                raise
            self._saves.handle_full_disk(self._inner.checkpoint_manager.latest_step() or 0, error)
        self._saves.finish()

    def _save(self, step: int, state: Any, save: Callable[[], None]) -> None:
        """Call a function that saves a state, after the supervisor has checked the state."""
        if supervisor := supervision.get_supervisor():
            supervisor.before_checkpoint(step, lambda: bool(jax.jit(all_finite)(state.mdl_vars)))
            supervisor.saves = self._saves
        with supervision.pause_watchdog():
            self._saves.save(step, save)
