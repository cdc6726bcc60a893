"""T5X's checkpoint manager for Orbax, with safer saving and deleting.

`Manager` saves while the training continues. It deletes only checkpoints that this run has saved,
and never overwrites a checkpoint. For a resumed run, T5X makes a manager of its default class,
which gin cannot change. `install` makes T5X use `Manager` instead.
"""

from __future__ import annotations

import copy
import functools
import math
import os
import sys
import zlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath  # type: ignore[import-not-found]
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental import multihost_utils
from orbax.checkpoint._src.path import atomicity_defaults
from t5x import checkpoints, state_utils, utils

from rosetta.core import log, run_folders
from rosetta.core.errors import FAILED, UNSUPPORTED, UserError
from rosetta.health import (
    checkpoint_files,
    checkpoint_saves,
    phases,
    supervision,
    supervision_settings,
)
from rosetta.health.finite_check import all_finite
from rosetta.nn import fp8, lora
from rosetta.t5x import best_checkpoint, checkpoint_arrays, loss_scale
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Sequence

_MUTABLES = "flax_mutables/"
# What the processes tell one another before they save; the highest number decides.
_READY, _DISK_FULL, _FAILED = range(3)
_saving_managers: list[Manager] = []  # managers that save and are not closed yet
# What the program does after it has restored a checkpoint, if it is not training, for people.
phase_after_restore: str | None = None
# The seed of the adapters that a checkpoint lacks (see rosetta.nn.lora).
adapter_seed = 0
# The parameters of an encoder's heads, which finetuning may begin with new values.
HEADS = ("target/row_head/", "target/masked_head/")
_T5xManager: Any = checkpoints.OrbaxCheckpointManagerInterface


def _make_temporary_path_class(folder: str) -> type:
    """Return a subclass of Orbax's temporary path, which adds the record to each checkpoint.

    A temporary path is the folder that Orbax writes a checkpoint to and then renames.

    Args:
      folder: the folder of the checkpoints.
    """
    default_class: Any = atomicity_defaults.get_default_temporary_path_class(epath.Path(folder))

    class PathWithRecord(default_class):
        """The temporary path of a checkpoint with a record."""

        async def finalize(self) -> None:
            """Copy the record into the folder, before Orbax completes the checkpoint."""
            step = run_folders.parse_checkpoint_step(self.get_final().name)
            if step is not None:
                checkpoint_record.copy_into_checkpoint(folder, step, str(self.get()))
            await super().finalize()

    return PathWithRecord


class _OrbaxManager(_T5xManager._CheckpointManagerImpl):  # noqa: SLF001
    """The Orbax manager in T5X's manager, which deletes only checkpoints that this run has saved.

    Args:
      *args: as of T5X's class.
      saves: whether the manager saves, or only restores.
      options: Orbax's options.
      **kwargs: as of T5X's class.
    """

    def __init__(self, *args: Any, saves: bool, options: Any, **kwargs: Any) -> None:
        # Evaluation may read the folder of a run that is training. It must not delete the
        # checkpoint that the run is writing.
        options.cleanup_tmp_directories = saves
        if saves:
            options.temporary_path_class = _make_temporary_path_class(str(kwargs["directory"]))
        super().__init__(*args, options=options, **kwargs)

    def _get_old_steps_to_remove(self) -> list[int]:
        """Return the steps that Orbax would delete, without those that stay.

        These are the best one, those from before KEEP_BEST, and those of other runs.
        All processes call it while they save.
        """
        old_steps = super()._get_old_steps_to_remove()
        folder, best_step = str(self.directory), best_checkpoint.broadcast_best_step()
        return [
            step
            for step in old_steps
            if step != best_step
            and not best_checkpoint.is_older(step)
            and checkpoint_record.was_saved_by_run(folder, step)
        ]


class Manager(_T5xManager):
    """T5X's checkpoint manager, which saves while the training continues.

    A save returns as soon as the arrays are copied to the host. The files are written while the
    next steps run. The next save and `close` wait for the writing, and raise its error. T5X's
    argument `keep` counts all checkpoints of the folder, but only the run's own are deleted. The
    best one of the evaluations stays, see rosetta.t5x.best_checkpoint.

    The manager only restores if it has neither a `period` nor a `save_dtype`.

    Args:
      directory: the folder of the checkpoints.
      train_state: the train state, or its shapes.
      partitioner: the run's partitioner.
      *args: as of T5X's class.
      period: the steps between two checkpoints.
      save_dtype: the type in which parameters are saved; None for their own.
      **kwargs: as of T5X's class.
    """

    def __init__(
        self,
        directory: str,
        train_state: Any,
        partitioner: Any,
        *args: Any,
        period: int | None = 1,
        save_dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        self._saves = save_dtype is not None or bool(period)
        if self._saves:
            # If the folder is missing, T5X would save in the parent folder.
            checkpoint_record.make_folder(directory)
        # T5X's constructor calls this attribute to make the Orbax manager.
        self._CheckpointManagerImpl = functools.partial(_OrbaxManager, saves=self._saves)
        super().__init__(
            directory,
            train_state,
            partitioner,
            *args,
            period=period,
            save_dtype=save_dtype,
            **kwargs,
        )
        # The functions that T5X applies to the states it saves; set where T5X makes the manager.
        # save_extra_checkpoint applies them as well.
        self.transformations: Sequence[Any] = ()
        self._save_tracker = checkpoint_saves.SaveTracker(
            str(directory),
            supervision_settings.read_settings(os.environ).on_full_disk,
            speaks=jax.process_index() == 0,
        )
        if self._saves:
            _saving_managers.append(self)

    def restore(
        self,
        step: int | None = None,
        path: str | None = None,
        fallback_state: Any = None,
        state_transformation_fns: Sequence[Any] = (),
        lazy_parameters: bool | None = False,
    ) -> Any:
        """Restore a checkpoint.

        The FP8 state, the loss scale, the adapters and the optimizer state are initialized if the
        checkpoint lacks them, or if a transformation has removed them.

        Args:
          step: the step of a checkpoint in the manager's folder.
          path: the path of a checkpoint in any folder, instead of `step`.
          fallback_state: the values of arrays that the checkpoint lacks.
          state_transformation_fns: the functions to apply to the restored state.
          lazy_parameters: as of T5X's method.

        Returns:
          The train state.

        Raises:
          UserError: a file of the checkpoint is damaged or missing.
        """
        state = self._train_state.state_dict()
        checkpoint = path or f"{self.directory}/checkpoint_{step}"
        resumes = run_folders.split_checkpoint_path(checkpoint)[0] == str(self.directory)
        check_checkpoint_files(checkpoint, resumes=resumes)
        new_state = self._make_missing_state(checkpoint, state, state_transformation_fns)
        if new_state:
            fallback_state = state_utils.merge_state(fallback_state or {}, new_state)
        try:
            restored = super().restore(
                step, path, fallback_state, state_transformation_fns, lazy_parameters
            )
        except Exception:
            # Reading every array finds damage that the first check does not see.
            check_checkpoint_files(checkpoint, resumes=resumes, read_values=True)
            raise
        if phase_after_restore:
            phases.begin_phase(phase_after_restore)
        return jax.tree.map(_cast_counter, self._train_state, restored)

    def _make_missing_state(
        self, checkpoint: str, state: Any, transformations: Sequence[Any]
    ) -> dict[str, Any]:
        """Return initial values for what the checkpoint lacks, but for trained weights.

        Args:
          checkpoint: the checkpoint to restore.
          state: the train state of the run, as a nested dict.
          transformations: the functions to apply to the restored state, which may remove arrays.

        Returns:
          A part of a train state as a nested dict; empty if nothing is missing.
        """
        saved = checkpoint_arrays.read_abstract_tree(checkpoint)
        for transformation in transformations:
            saved = transformation(saved, state)
        saved_names = set(flatten_dict(saved, sep="/"))
        missing = [name for name in flatten_dict(state, sep="/") if name not in saved_names]
        new_state: dict[str, Any] = {}
        if mutables := _make_missing_mutables(state, saved, missing):
            new_state["flax_mutables"] = mutables
        if any(name.startswith("target/") and lora.is_adapter(name) for name in missing):
            new_state["target"] = self._make_adapters(state["target"])
        if new_heads := [name for name in missing if name.startswith(HEADS)]:
            _warn_on_first_process("the checkpoint lacks the model's head: it starts anew")
            flat = {
                name.removeprefix("target/"): self._make_head_array(name, state)
                for name in new_heads
                if not lora.is_adapter(name)
            }
            made = state_utils.merge_state(
                new_state.get("target", {}), unflatten_dict(flat, sep="/")
            )
            new_state["target"] = made
        if any(name.startswith("state/param_states/") for name in missing):
            new_state["state"] = {"param_states": self._make_param_states()}
        return new_state

    def _make_adapters(self, target: Any) -> Any:
        """Return the initial values of the adapters, in the layout of the run.

        Args:
          target: the parameters of the run, or their shapes, as a nested dict.
        """

        def select(tree: Any) -> Any:
            flat = flatten_dict(tree, sep="/")
            return {name: leaf for name, leaf in flat.items() if lora.is_adapter(name)}

        def make_values() -> Any:
            key = jax.random.PRNGKey(adapter_seed)
            return {
                name: lora.make_initial_value(name, leaf.shape, lora.derive_key(key, name))
                for name, leaf in select(target).items()
            }

        axes = self._partitioner.get_mesh_axes(self._train_state).state_dict()["target"]
        make_partitioned = self._partitioner.partition(
            make_values, in_axis_resources=None, out_axis_resources=select(axes)
        )
        return unflatten_dict(make_partitioned(), sep="/")

    def _make_head_array(self, name: str, state: Any) -> Any:
        """Return initial values of an array of a head: normal with deviation 0.02, as in BERT.

        Biases are 0, and the scales of norms are 1.

        Args:
          name: the name of the array in the train state.
          state: the train state of the run, as a nested dict.
        """
        shape = flatten_dict(state, sep="/")[name].shape
        if name.endswith("/scale"):
            return jnp.ones(shape, jnp.float32)
        if not name.endswith("/kernel"):
            return jnp.zeros(shape, jnp.float32)
        key = jax.random.key(zlib.crc32(name.encode()))
        return 0.02 * jax.random.normal(key, shape, jnp.float32)

    def _make_param_states(self) -> Any:
        """Return the optimizer state before the first step, in the layout of the run.

        The state depends only on the shapes of the parameters, so zeros stand in for their values.
        """
        train_state = self._train_state
        optimizer_def = train_state._optimizer.optimizer_def  # noqa: SLF001

        def make_param_states() -> Any:
            params = jax.tree.map(
                lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), train_state.params
            )
            return optimizer_def.create(params).state_dict()["state"]["param_states"]

        axes = self._partitioner.get_mesh_axes(train_state).state_dict()["state"]["param_states"]
        make_partitioned = self._partitioner.partition(
            make_param_states, in_axis_resources=None, out_axis_resources=axes
        )
        return make_partitioned()

    def save(
        self, train_state: Any, state_transformation_fns: Sequence[Any] = (), force: bool = True
    ) -> bool:
        """Start to save a train state.

        Args:
          train_state: the train state.
          state_transformation_fns: the functions to apply to the state that is saved.
          force: as of T5X's method.

        Returns:
          Whether a save has started. It has not if there is a checkpoint of this step already, or
          if the disk is full and the checkpoint is left out.

        Raises:
          UserError: the disk is full, and the checkpoint cannot be left out; see
            SaveTracker.handle_full_disk.
          supervision.RunStopped: a loss is bad, or a parameter is not finite.
        """
        step = checkpoints._step_from_train_state(train_state)  # noqa: SLF001
        if step in self.all_steps():
            return False
        if supervisor := supervision.get_supervisor():
            supervisor.before_checkpoint(
                step, lambda: bool(jax.jit(all_finite)(train_state.params))
            )
            supervisor.saves = self._save_tracker
        return bool(
            self._save_tracker.save(
                step, lambda: self._start_save(train_state, state_transformation_fns, force)
            )
        )

    def _start_save(self, train_state: Any, transformations: Sequence[Any], force: bool) -> bool:
        """Check the free space on all processes, and start to save; see `save`."""
        error: Exception | None = None
        outcome = _READY
        try:
            # Wait for the save before this one, whose thread deletes old checkpoints: one of the
            # transformations copies records into them. Orbax itself waits only after that.
            super().wait_until_finished()
            checkpoint_record.check_free_space(
                str(self.directory),
                compute_checkpoint_size(self._train_state.state_dict(), self._save_dtype),
            )
        except Exception as raised:  # noqa: BLE001 (raised below, after all processes know of it)
            error = raised
            outcome = _DISK_FULL if checkpoint_saves.is_disk_full(raised) else _FAILED
        worst_outcome = outcome
        if jax.process_count() > 1:
            worst_outcome = int(multihost_utils.process_allgather(np.array([outcome])).max())
        # A full disk may be survived, so a process with one ends too if another process failed.
        if error is not None and outcome == worst_outcome:
            raise error
        if worst_outcome != _READY:
            error_class: type[UserError] = checkpoint_saves.DiskFullError
            if worst_outcome == _FAILED:
                error_class = UserError
            raise error_class(
                "another process cannot save",
                str(self.directory),
                "see the message of that process",
                kind=FAILED,
            )
        return bool(super().save(train_state, transformations, force))

    def wait_until_finished(self) -> None:
        """Return at once, or wait for the save if an exception is being handled.

        T5X calls this after every save, and the training would stand still. After an exception, the
        process is about to end, so the save has to end first.
        """
        if sys.exception() is not None:
            super().wait_until_finished()

    def close(self) -> None:
        """Wait for the last save, and copy the records into their checkpoints.

        Raises:
          UserError: the last checkpoint was left out, because the disk is full.
        """
        if self in _saving_managers:
            _saving_managers.remove(self)
        try:
            super().wait_until_finished()
        except Exception as error:
            if not checkpoint_saves.is_disk_full(error):
                raise
            self._save_tracker.handle_full_disk(max(self.all_steps(), default=0), error)
        super().close()
        if self._saves and jax.process_index() == 0:
            checkpoint_record.distribute_records(str(self.directory))
        self._save_tracker.finish()
        best_checkpoint.update_result()


def _make_missing_mutables(state: Any, saved: Any, missing: Sequence[str]) -> dict[str, Any]:
    """Return initial values for the FP8 state and the loss scale that a checkpoint lacks.

    Args:
      state: the train state of the run, as a nested dict.
      saved: that of the checkpoint.
      missing: the names of the arrays that only the run has.
    """
    mutables = state.get("flax_mutables", {})
    missing_collections = {name.split("/")[1] for name in missing if name.startswith(_MUTABLES)}
    new_mutables: dict[str, Any] = {}
    if fp8.COLLECTION in missing_collections:
        _warn_on_first_process("the checkpoint has no FP8 state: FP8 starts with its initial state")
        new_mutables[fp8.COLLECTION] = fp8.make_initial_states(mutables[fp8.COLLECTION])
    elif fp8.COLLECTION in saved.get("flax_mutables", {}) and fp8.COLLECTION not in mutables:
        _warn_on_first_process("the checkpoint's FP8 state is not used: the model has no FP8")
    if loss_scale.COLLECTION in missing_collections:
        new_mutables[loss_scale.COLLECTION] = loss_scale.make_initial_state()
    return new_mutables


def check_checkpoint_files(checkpoint: str, *, resumes: bool, read_values: bool = False) -> None:
    """Check that the files of a checkpoint are not damaged. A missing folder is not an error here.

    Args:
      checkpoint: a checkpoint_N. A checkpoint in T5X's older format is only checked with
        `read_values`.
      resumes: whether a run resumes from the checkpoint, which changes the advice in the error.
      read_values: whether to decode the arrays too, which takes as long as restoring them.

    Raises:
      UserError: a file is damaged.
    """
    if not run_folders.folder_exists(checkpoint) or not (
        read_values or checkpoint_record.is_orbax_checkpoint(checkpoint)
    ):
        return
    damage = checkpoint_files.find_damage(checkpoint, read_values=read_values)
    if damage:
        raise checkpoint_files.explain_damage(checkpoint, damage, resumes=resumes)


def save_extra_checkpoint(train_state: Any) -> None:
    """Start to save a train state at a step at which T5X does not save."""
    for manager in _saving_managers:
        manager.save(train_state, manager.transformations)


def finish_saves() -> str | None:
    """Wait for the started saves, and close their managers.

    Returns:
      The folder of the checkpoints; None if no manager that saves was open.
    """
    managers = list(_saving_managers)
    for manager in managers:
        manager.close()
    return str(managers[-1].directory) if managers else None


def _cast_counter(expected: Any, restored: Any) -> Any:
    """Return a restored array, converted to the expected type if that is an integer.

    T5X saves the counters of a resumed run, such as the step, as float32.
    """
    if jnp.issubdtype(expected.dtype, jnp.integer):
        return restored.astype(expected.dtype)
    return restored


def _warn_on_first_process(line: str) -> None:
    """Log a warning, on the first process only."""
    if jax.process_index() == 0:
        log.warn(line)


def compute_checkpoint_size(state: Any, dtype: Any = None) -> int:
    """Return the size of a checkpoint in bytes, without compression.

    Args:
      state: the train state as a nested dict.
      dtype: the type in which parameters are saved; None for their own.
    """
    total = 0
    for part, tree in state.items():
        # T5X calls the parameters "target", and converts no other part when it saves.
        saved_dtype = dtype if part == "target" else None
        for leaf in jax.tree.leaves(tree):
            leaf_dtype = leaf.dtype if saved_dtype is None else jnp.dtype(saved_dtype)
            total += math.prod(leaf.shape) * leaf_dtype.itemsize
    return total


def _replace_default_manager(config: Any) -> Any:
    """Return T5X's configuration of checkpoints with `Manager` instead of T5X's default class."""
    if config is None or config.checkpoint_manager_cls is not _T5xManager:
        return config
    config = copy.copy(config)
    config.checkpoint_manager_cls = Manager
    return config


def _refuse_best_checkpointer(config: Any) -> None:
    """Raise UserError if T5X's configuration names its SaveBestCheckpointer.

    With Orbax, T5X takes no notice of it if gin names the class.
    """
    cls = getattr(config, "checkpointer_cls", None)
    cls = getattr(cls, "func", cls)
    if isinstance(cls, type) and issubclass(cls, checkpoints.SaveBestCheckpointer):
        raise UserError(
            "T5X's SaveBestCheckpointer does not work with the checkpoints of Orbax",
            "SaveCheckpointConfig.checkpointer_cls",
            "leave it out, and set KEEP_BEST=METRIC",
            kind=UNSUPPORTED,
        )


def install() -> None:
    """Make T5X use `Manager` instead of its default class, unless gin sets another class."""
    upstream = utils.create_orbax_checkpoint_manager
    if getattr(upstream, "is_replaced", False):
        return

    @functools.wraps(upstream)
    def create_manager(*, save_cfg: Any = None, restore_cfg: Any = None, **others: Any) -> Any:
        for config in (save_cfg, restore_cfg):
            _refuse_best_checkpointer(config)
        manager = upstream(
            save_cfg=_replace_default_manager(save_cfg),
            restore_cfg=_replace_default_manager(restore_cfg),
            **others,
        )
        if isinstance(manager, Manager) and save_cfg:
            manager.transformations = save_cfg.state_transformation_fns
        return manager

    create_manager.is_replaced = True  # type: ignore[attr-defined]
    utils.create_orbax_checkpoint_manager = create_manager
