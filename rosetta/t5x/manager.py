"""T5X's manager of Orbax checkpoints, which saves beside the training, deletes this run's own checkpoints only, and overwrites none.

T5X builds the manager of a resumed run from its own default, which gin cannot reach: `install` puts this one in its place.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
from typing import TYPE_CHECKING, Any

import jax
from t5x import checkpoints, utils

from rosetta.t5x import record

if TYPE_CHECKING:
    from collections.abc import Sequence

_Upstream = checkpoints.OrbaxCheckpointManagerInterface


class _Keeper(_Upstream._CheckpointManagerImpl):  # type: ignore[misc]  # noqa: SLF001
    """Orbax's manager, which removes what this run made and nothing else."""

    def __init__(self, *args: Any, saves: bool, options: Any, **kwargs: Any) -> None:
        # Evaluation of a folder in which a run is training would clear the save in progress away.
        options.cleanup_tmp_directories = saves
        super().__init__(*args, options=options, **kwargs)

    def _get_old_steps_to_remove(self) -> list[int]:
        old = super()._get_old_steps_to_remove()
        folder = str(self.directory)
        return [step for step in old if record.made_here(folder, step)]


class Manager(_Upstream):  # type: ignore[misc]
    """Upstream's class with its arguments.

    A save returns once the arrays are copied to the host; writing goes on while the next steps run. The next save and `close`
    wait for it, and raise what went wrong in it. `keep` counts all checkpoints of the folder, and removes the run's own.
    """

    def __init__(self, directory: str, train_state: Any, partitioner: Any, *args: Any, period: int | None = 1, save_dtype: Any = None, **kwargs: Any) -> None:
        self._saves = save_dtype is not None or bool(period)
        self._CheckpointManagerImpl = functools.partial(_Keeper, saves=self._saves)
        super().__init__(directory, train_state, partitioner, *args, period=period, save_dtype=save_dtype, **kwargs)

    def save(self, train_state: Any, state_transformation_fns: Sequence[Any] = (), force: bool = True) -> bool:
        """Begin to save a train state; False where its step is already there, which is left as it is.

        Raises:
          UserError: there is no room for it.
        """
        if checkpoints._step_from_train_state(train_state) in self.all_steps():  # noqa: SLF001
            return False
        record.require_room(str(self.directory), size(self._train_state.state_dict(), self._save_dtype))
        return bool(super().save(train_state, state_transformation_fns, force))

    def wait_until_finished(self) -> None:
        """Wait where something went wrong and the process is about to end, not where T5X waits after every save."""
        if sys.exception() is not None:
            super().wait_until_finished()

    def close(self) -> None:
        """Wait for the last save, and put the records into their checkpoints."""
        super().wait_until_finished()
        super().close()
        if self._saves and jax.process_index() == 0:
            record.stamp(str(self.directory))


def size(state: Any, dtype: Any = None) -> int:
    """Return the bytes of a train state's checkpoint, uncompressed; `dtype` is the parameters', None as they are."""
    width = None if dtype is None else jax.numpy.dtype(dtype).itemsize
    total = 0
    for part, tree in state.items():
        for leaf in jax.tree.leaves(tree):
            total += math.prod(leaf.shape) * (width if width and part == "target" else leaf.dtype.itemsize)
    return total


def _ours(config: Any) -> Any:
    if config is None or config.checkpoint_manager_cls is not _Upstream:
        return config
    config = copy.copy(config)
    config.checkpoint_manager_cls = Manager
    return config


def install() -> None:
    """Have T5X build this manager wherever it would build its default one; one of the user's stays."""
    upstream = utils.create_orbax_checkpoint_manager
    if getattr(upstream, "of_rosetta", False):
        return

    @functools.wraps(upstream)
    def create(*, save_cfg: Any = None, restore_cfg: Any = None, **others: Any) -> Any:
        return upstream(save_cfg=_ours(save_cfg), restore_cfg=_ours(restore_cfg), **others)

    create.of_rosetta = True  # type: ignore[attr-defined]
    utils.create_orbax_checkpoint_manager = create
