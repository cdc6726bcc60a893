"""T5X's manager of Orbax checkpoints, which saves beside the training, deletes this run's own
checkpoints only, and overwrites none.

T5X builds the manager of a resumed run from its own default, which gin cannot reach: `install` puts
this one in its place.
"""

from __future__ import annotations

import copy
import functools
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath  # type: ignore[import-not-found]
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from orbax.checkpoint._src.path import atomicity_defaults
from t5x import checkpoints, state_utils, utils

from rosetta.core import log, run_folders
from rosetta.health import checkpoint_files, checkpoint_saves, supervision, supervision_settings
from rosetta.health.finite_check import all_finite
from rosetta.nn import fp8
from rosetta.t5x import checkpoint_arrays
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Sequence

_saving_managers: list[Manager] = []  # those that save, until they are closed
_Upstream: Any = checkpoints.OrbaxCheckpointManagerInterface


def _make_path_class(folder: str) -> type:
    """Return Orbax's class of a checkpoint that is being written, which puts the record inside
    before it counts as whole.
    """
    usual: Any = atomicity_defaults.get_default_temporary_path_class(epath.Path(folder))

    class WithRecord(usual):
        """See above."""

        async def finalize(self) -> None:
            """See Orbax."""
            step = run_folders.parse_checkpoint_step(self.get_final().name)
            if step is not None:
                checkpoint_record.copy_into_checkpoint(folder, step, str(self.get()))
            await super().finalize()

    return WithRecord


class _OrbaxManager(_Upstream._CheckpointManagerImpl):  # noqa: SLF001
    """Orbax's manager, which removes what this run made and nothing else."""

    def __init__(self, *args: Any, saves: bool, options: Any, **kwargs: Any) -> None:
        # Evaluation of a folder in which a run is training would clear the save in progress away.
        options.cleanup_tmp_directories = saves
        if saves:
            options.temporary_path_class = _make_path_class(str(kwargs["directory"]))
        super().__init__(*args, options=options, **kwargs)

    def _get_old_steps_to_remove(self) -> list[int]:
        old = super()._get_old_steps_to_remove()
        folder = str(self.directory)
        return [step for step in old if checkpoint_record.was_saved_by_run(folder, step)]


class Manager(_Upstream):
    """Upstream's class with its arguments.

    A save returns once the arrays are copied to the host; writing goes on while the next steps run.
    The next save and `close` wait for it, and raise what went wrong in it. `keep` counts all
    checkpoints of the folder, and removes the run's own.
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
            checkpoint_record.make_folder(
                directory
            )  # upstream takes the folder above one that is missing
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
        self.transformations: Sequence[Any] = ()  # of every save
        self._told = checkpoint_saves.SaveTracker(
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
        """Restore as upstream does.

        FP8 state, or an optimizer's that a transformation took away, is made anew where the
        checkpoint has none.
        """
        state = self._train_state.state_dict()
        checkpoint = path or f"{self.directory}/checkpoint_{step}"
        resumes = run_folders.split_checkpoint_path(checkpoint)[0] == str(self.directory)
        check_damage(checkpoint, resumes=resumes)
        kept = checkpoint_arrays.read_abstract_tree(checkpoint)
        for transformation in state_transformation_fns:
            kept = transformation(kept, state)
        there = set(flatten_dict(kept, sep="/"))
        missing = {name for name in flatten_dict(state, sep="/") if name not in there}
        fresh: dict[str, Any] = {}
        if any(name.startswith("flax_mutables/") for name in missing):
            _warn_on_first_process("the checkpoint has no FP8 state: it begins anew")
            fresh["flax_mutables"] = fp8.make_initial_states(state["flax_mutables"])
        elif "flax_mutables" in kept and "flax_mutables" not in state:
            _warn_on_first_process("the checkpoint's FP8 state is not used")
        if any(name.startswith("state/param_states/") for name in missing):
            fresh["state"] = {"param_states": self._first_param_states()}
        if fresh:
            fallback_state = state_utils.merge_state(fallback_state or {}, fresh)
        try:
            found = super().restore(
                step, path, fallback_state, state_transformation_fns, lazy_parameters
            )
        except Exception:
            check_damage(checkpoint, resumes=resumes, read_values=True)
            raise
        return jax.tree.map(_restore_counter_type, self._train_state, found)

    def _first_param_states(self) -> Any:
        """Return the state of the optimizer before its first step, laid out as it is to be, which
        depends on the parameters' shapes alone.
        """
        abstract = self._train_state

        def make() -> Any:
            params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), abstract.params)
            return abstract._optimizer.optimizer_def.create(params).state_dict()["state"][  # noqa: SLF001
                "param_states"
            ]

        axes = self._partitioner.get_mesh_axes(abstract).state_dict()["state"]["param_states"]
        return self._partitioner.partition(make, in_axis_resources=None, out_axis_resources=axes)()

    def save(
        self, train_state: Any, state_transformation_fns: Sequence[Any] = (), force: bool = True
    ) -> bool:
        """Begin to save a train state; False where its step is already there, which is left as it
        is.

        Raises:
          UserError: there is no room for it.
          run.Stopped: it is not worth keeping.
        """
        step = checkpoints._step_from_train_state(train_state)  # noqa: SLF001
        if step in self.all_steps():
            return False
        if health := supervision.get_supervisor():
            health.before_checkpoint(step, lambda: bool(jax.jit(all_finite)(train_state.params)))
            health.saves = self._told
        return bool(
            self._told.save(step, lambda: self._begin(train_state, state_transformation_fns, force))
        )

    def _begin(self, train_state: Any, transformations: Sequence[Any], force: bool) -> bool:
        error: Exception | None = None
        try:
            # As Orbax would below: until then its thread may delete what the transformations stamp.
            super().wait_until_finished()
            checkpoint_record.check_free_space(
                str(self.directory),
                compute_checkpoint_size(self._train_state.state_dict(), self._save_dtype),
            )
        except Exception as found:  # noqa: BLE001 (it is raised once all processes know)
            error = found
        failed = (
            multihost_utils.process_allgather(np.array([error is not None])).any()
            if jax.process_count() > 1
            else error is not None
        )
        if failed:
            raise error or checkpoint_saves.DiskFullError(
                "another process cannot save", str(self.directory), "see what it says"
            )
        return bool(super().save(train_state, transformations, force))

    def wait_until_finished(self) -> None:
        """Wait where something went wrong and the process is about to end, not where T5X waits
        after every save.
        """
        if sys.exception() is not None:
            super().wait_until_finished()

    def close(self) -> None:
        """Wait for the last save, and put the records into their checkpoints."""
        if self in _saving_managers:
            _saving_managers.remove(self)
        try:
            super().wait_until_finished()
        except Exception as error:
            if not checkpoint_saves.is_disk_full(error):
                raise
            self._told.handle_full_disk(max(self.all_steps(), default=0), error)
        super().close()
        if self._saves and jax.process_index() == 0:
            checkpoint_record.distribute_records(str(self.directory))
        self._told.finish()


def check_damage(checkpoint: str, *, resumes: bool, read_values: bool = False) -> None:
    """Raise UserError where one of a checkpoint's files is damaged.

    Args:
      checkpoint: a checkpoint_N; of those in the format before Orbax only what TensorStore says is
        known, once reading fails.
      resumes: whether a run was to go on from it.
      read_values: decode its arrays as well, which takes as long as restoring it.
    """
    if not run_folders.folder_exists(checkpoint) or not (
        read_values or checkpoint_record.is_orbax_checkpoint(checkpoint)
    ):
        return
    damage = checkpoint_files.find_damage(checkpoint, read_values=read_values)
    if damage:
        raise checkpoint_files.explain_damage(checkpoint, damage, resumes=resumes)


def save_extra_checkpoint(train_state: Any) -> None:
    """Begin to save a train state beside those that T5X saves, as it does those."""
    for each in _saving_managers:
        each.save(train_state, each.transformations)


def finish_saves() -> str | None:
    """Wait for the saves that are begun and close their managers; return their folder, None where
    there were none.
    """
    saving = list(_saving_managers)
    for each in saving:
        each.close()
    return str(saving[-1].directory) if saving else None


def _restore_counter_type(shape: Any, leaf: Any) -> Any:
    """Return an array as restored, and a counter as a whole number again: upstream saves those of a
    resumed run as float32.
    """
    return leaf.astype(shape.dtype) if jnp.issubdtype(shape.dtype, jnp.integer) else leaf


def _warn_on_first_process(line: str) -> None:
    if jax.process_index() == 0:
        log.warn(line)


def compute_checkpoint_size(state: Any, dtype: Any = None) -> int:
    """Return the bytes of a train state's checkpoint, uncompressed; `dtype` is the parameters',
    None as they are.
    """
    width = None if dtype is None else jnp.dtype(dtype).itemsize
    total = 0
    for part, tree in state.items():
        for leaf in jax.tree.leaves(tree):
            total += math.prod(leaf.shape) * (
                width if width and part == "target" else leaf.dtype.itemsize
            )
    return total


def _replace_default_manager(config: Any) -> Any:
    if config is None or config.checkpoint_manager_cls is not _Upstream:
        return config
    config = copy.copy(config)
    config.checkpoint_manager_cls = Manager
    return config


def install() -> None:
    """Have T5X build this manager wherever it would build its default one; one of the user's
    stays.
    """
    upstream = utils.create_orbax_checkpoint_manager
    if getattr(upstream, "of_rosetta", False):
        return

    @functools.wraps(upstream)
    def create(*, save_cfg: Any = None, restore_cfg: Any = None, **others: Any) -> Any:
        made = upstream(
            save_cfg=_replace_default_manager(save_cfg),
            restore_cfg=_replace_default_manager(restore_cfg),
            **others,
        )
        if isinstance(made, Manager) and save_cfg:
            made.transformations = save_cfg.state_transformation_fns
        return made

    create.of_rosetta = True  # type: ignore[attr-defined]
    utils.create_orbax_checkpoint_manager = create
