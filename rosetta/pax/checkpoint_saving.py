"""Paxml's checkpoints, looked at before they are written: no bad one is, and they may come by
time.
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

_checkpointers: list[CheckedCheckpointer] = []


def finish_saves() -> str | None:
    """Wait for the save that is begun; return the folder of checkpoints, None where the run saves
    none. UserError where its last one found no room.
    """
    for each in _checkpointers:
        each.finish()
    return _checkpointers[-1].folder if _checkpointers else None


class Executor(executors.DefaultExecutor):
    """Upstream's, whose checkpointer asks the run's health first."""

    def setup(
        self, jax_task: Any, job_log_dir: Any, checkpointer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """See upstream's."""
        super().setup(
            jax_task,
            job_log_dir,
            CheckedCheckpointer(checkpointer, f"{job_log_dir}/checkpoints"),
            *args,
            **kwargs,
        )


class CheckedCheckpointer:
    """A checkpointer that writes no bad state. What it does not say itself is the inner one's."""

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
        """Save where upstream would, or where the time has come."""
        health = supervision.get_supervisor()
        wanted = health is not None and health.is_checkpoint_due(step_i)
        if not wanted and not self._inner.checkpoint_manager.should_save(step_i):
            return
        if wanted:
            self.save_final(
                step_i,
                partitioned_train_state=partitioned_train_state,
                **_name_arguments(args, kwargs),
            )
        else:
            self._save(
                step_i,
                partitioned_train_state,
                lambda: self._inner.save_if_needed(
                    step_i, partitioned_train_state, *args, **kwargs
                ),
            )

    def save_final(self, step_i: int, *, partitioned_train_state: Any, **kwargs: Any) -> None:
        """Save a state, where there is no checkpoint of it."""
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
        """Wait for the last save, and close; UserError where it found no room."""
        self._wait_for_save(self._inner.close)

    def finish(self) -> None:
        """Wait for the last save; UserError where it found no room."""
        self._wait_for_save(self._inner.wait_until_finished)

    def _wait_for_save(self, wait: Callable[[], None]) -> None:
        try:
            wait()
        except Exception as error:
            if not checkpoint_saves.is_disk_full(error):
                raise
            self._saves.handle_full_disk(self._inner.checkpoint_manager.latest_step() or 0, error)
        self._saves.finish()

    def _save(self, step: int, state: Any, save: Callable[[], None]) -> None:
        if health := supervision.get_supervisor():
            health.before_checkpoint(step, lambda: bool(jax.jit(all_finite)(state.mdl_vars)))
            health.saves = self._saves
        with supervision.pause_watchdog():
            self._saves.save(step, save)


def _name_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """save_if_needed's arguments by the names that save_final has for them."""
    return {
        **dict(
            zip(
                (
                    "train_state_unpadded_shape_dtype_struct",
                    "train_state_pspecs",
                    "train_input_pipeline",
                ),
                args,
                strict=False,
            )
        ),
        **kwargs,
    }
