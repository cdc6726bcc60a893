"""Records on save, and every check of a checkpoint before the first compilation.

T5X's own extension points carry it: `SaveCheckpointConfig.state_transformation_fns` (on_save),
`train_state_initializer_cls` (Initializer) and `RestoreCheckpointConfig.state_transformation_fns`
(transformations).
"""

from __future__ import annotations

import atexit
import dataclasses
import importlib.metadata
import json
import os
from typing import TYPE_CHECKING, Any

import jax
from flax.traverse_util import flatten_dict
from t5x import utils

from rosetta.core import log, run_folders
from rosetta.core.errors import DIFFERS, MISSING, UserError
from rosetta.health import shared_run_lock, stop_signals
from rosetta.t5x import (
    checkpoint_arrays,
    checkpoint_manager,
    compile_ahead,
    initial_state,
    pretrained,
)
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OPTIMIZER_PREFIX = "state/param_states/"
_RECORDED_PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "t5x")


def _find_versions() -> dict[str, str]:
    found = {}
    for name in _RECORDED_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _compute_fingerprint(vocabulary: Any) -> str:
    from rosetta.t5x import dataset

    try:
        return dataset.convert_vocabulary(vocabulary).fingerprint()
    except UserError:
        return ""


def on_save(
    state: Any,
    infos: Any,
    *,
    model_dir: str,
    config: Any,
    batch_size: int,
    lengths: Mapping[str, int],
    vocabulary: Any,
    start: str | None = None,
    warmup_steps: int | None = None,
) -> tuple[Any, Any]:
    """Write the record of the checkpoint that T5X is about to save; return what T5X passed in,
    unchanged.

    Args:
      state: the train state as a nested dict.
      infos: T5X's description of it.
      model_dir: the folder of the checkpoints.
      config: the network's T5Config.
      batch_size: sequences of a batch.
      lengths: tokens, {'inputs': n, 'targets': n}.
      vocabulary: the model's.
      start: the checkpoint_N this run finetunes; what its record says of pretraining is handed on.
      warmup_steps: over which the learning rate rises, for the run to go on by.
    """
    if jax.process_index() == 0:
        from rosetta.t5x import dataset

        step = int(jax.device_get(state["state"]["step"]))
        before = checkpoint_record.read_record(start) if start else None
        known = before.batch_size if before else None, before.targets_length if before else None
        batch, targets = known if start else (batch_size, lengths.get("targets"))
        checkpoint_record.write_record(
            model_dir,
            checkpoint_record.Record(
                step=step,
                scale_attn_logits=bool(config.scale_attn_logits),
                batch_size=batch,
                targets_length=targets,
                vocabulary=_compute_fingerprint(vocabulary),
                data=dataset.get_data_state(step),
                run=checkpoint_record.ensure_run_name(model_dir),
                start=start or "",
                warmup_steps=warmup_steps,
                config={
                    field.name: str(getattr(config, field.name))
                    for field in dataclasses.fields(config)
                },
                versions=_find_versions(),
            ),
        )
        checkpoint_record.distribute_records(
            model_dir
        )  # the checkpoints before this one are whole by now
    return state, infos


def transformations(*, optimizer: bool) -> list[Callable[..., Any]]:
    """Return what T5X applies to a checkpoint of another run: nothing, or the loss of its optimizer
    state (checkpoint_manager.Manager makes it anew).
    """

    def weights_only(kept: Any, state: Any, *, is_resuming: bool = False) -> Any:
        del state
        if is_resuming:
            return kept
        return {**kept, "state": {"step": kept["state"]["step"]}}

    return [] if optimizer else [weights_only]


def check_array_shapes(
    checkpoint: str, model: Mapping[str, tuple[int, ...]], *, optimizer: bool
) -> None:
    """UserError naming the first array of the model that the checkpoint lacks or has in another
    shape.

    Args:
      checkpoint: a checkpoint_N.
      model: the shapes of the train state's arrays: 'target/...' or 'state/...' -> shape.
      optimizer: whether the optimizer's state is restored too.
    """
    there = checkpoint_arrays.read_shapes(checkpoint)
    for name in sorted(model, key=lambda name: (not name.startswith("target/"), name)):
        needed = name.startswith("target/") or (optimizer and name.startswith(_OPTIMIZER_PREFIX))
        if not needed or there.get(name) == model[name]:
            continue
        has = f"in the shape {there[name]}" if name in there else "not at all"
        if name.startswith(_OPTIMIZER_PREFIX):
            raise UserError(
                (
                    f"its optimizer's state has {name.removeprefix(_OPTIMIZER_PREFIX)} {has}, "
                    f"the run needs {model[name]}"
                ),
                checkpoint,
                (
                    "restore the weights alone: RESTORE_OPTIMIZER = False, or take the optimizer "
                    "it was trained with"
                ),
                kind=DIFFERS,
            )
        raise UserError(
            f"it has {name.removeprefix('target/')} {has}, the model needs {model[name]}",
            checkpoint,
            "take the size and the vocabulary it was trained with",
            kind=DIFFERS,
        )


class Initializer(utils.TrainStateInitializer):
    """T5X's initializer, which knows the model's shapes and comes before everything that compiles:
    here checkpoints are refused.

    Args beyond T5X's own:
      config: the network's T5Config.
      vocabulary: the model's.
      checkpoint: the checkpoint_N that the run starts from; None: from nothing. Evaluation and
        inference: what they read.
      model_dir: where the run saves, and goes on from; None: nowhere.
      optimizer: whether a start from `checkpoint` takes its optimizer's state over.
      checkpoint_cfg: T5X's CheckpointConfig: whether the run saves.
      trainer_cls: the run's; its training step is compiled while the state is made or read. None:
        not before T5X does it.
      seed: the run's.
    """

    def __init__(
        self,
        *args: Any,
        config: Any,
        vocabulary: Any,
        checkpoint: str | None,
        model_dir: str | None = None,
        optimizer: bool = False,
        checkpoint_cfg: Any = None,
        trainer_cls: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        checkpoint_manager.install()
        if trainer_cls:
            stop_signals.install_handlers()
        if trainer_cls and model_dir:
            shared_run_lock.acquire_for_run(
                model_dir, "MODEL_DIR", os.environ, jax.process_index(), jax.process_count()
            )
        own = run_folders.list_checkpoint_steps(model_dir) if model_dir else []
        state = self.global_train_state_shape.state_dict()
        shapes = {
            name: tuple(leaf.shape)
            for name, leaf in flatten_dict(state, sep="/").items()
            if hasattr(leaf, "shape")
        }
        if own:
            newest = f"{model_dir}/checkpoint_{own[-1]}"
            checkpoint_manager.check_damage(newest, resumes=True)
            self._go_on(newest, own[-1], shapes, config, vocabulary)
            if jax.process_index() == 0 and trainer_cls:
                line = f"goes on from {newest}: {own[-1]:,} steps are done"
                log.info(line, terminal=True)
        elif checkpoint:
            checkpoint_manager.check_damage(checkpoint, resumes=False)
            self._start(
                checkpoint,
                shapes,
                config,
                vocabulary,
                optimizer=optimizer,
                trains=model_dir is not None,
            )
        if model_dir and checkpoint_cfg and checkpoint_cfg.save and jax.process_index() == 0:
            self._before_saving(model_dir, state, checkpoint_cfg.save.dtype)
        if trainer_cls:
            compile_ahead.start_compilation(
                trainer_cls,
                model=kwargs["init_fn"].__self__,
                state=self.global_train_state_shape,
                axes=self.train_state_axes,
                partitioner=self._partitioner,
                shapes=kwargs["input_shapes"],
                types=kwargs["input_types"],
                seed=seed,
            )

    def from_scratch(self, init_rng: Any) -> Any:
        """Return the train state that T5X's would, which compiles for longer."""
        where = initial_state.make_shardings(
            self._partitioner.mesh, self.train_state_axes, self.global_train_state_shape
        )
        return initial_state.make_arrays(self._initialize_train_state, init_rng, where)

    def _go_on(
        self,
        checkpoint: str,
        step: int,
        shapes: Mapping[str, tuple[int, ...]],
        config: Any,
        vocabulary: Any,
    ) -> None:
        from rosetta.t5x import dataset

        found = checkpoint_record.read_record(checkpoint)
        if found is None and checkpoint_record.has_run_name(
            run_folders.split_checkpoint_path(checkpoint)[0]
        ):
            checkpoint_record.require_record(checkpoint, "where in its data the run stands")
        if found:
            _check_attention_scale(checkpoint, found, config)
            _check_vocabulary(checkpoint, found, vocabulary)
            dataset.set_resume_position(found.data, step)
        check_array_shapes(checkpoint, shapes, optimizer=True)

    def _start(
        self,
        checkpoint: str,
        shapes: Mapping[str, tuple[int, ...]],
        config: Any,
        vocabulary: Any,
        *,
        optimizer: bool,
        trains: bool,
    ) -> None:
        if not run_folders.folder_exists(checkpoint):
            raise UserError(
                "there is no such folder",
                checkpoint,
                "name a checkpoint_N, or a folder of them",
                kind=MISSING,
            )
        found = checkpoint_record.read_record(checkpoint)
        _check_attention_scale(checkpoint, found, config)
        if found:
            _check_vocabulary(checkpoint, found, vocabulary)
        check_array_shapes(checkpoint, shapes, optimizer=optimizer and trains)
        if trains and jax.process_index() == 0:
            state = "the state of the optimizer" if optimizer else "nothing of the optimizer"
            log.info(f"{checkpoint}: the weights and {state} are taken over")

    def _before_saving(self, model_dir: str, state: Any, dtype: Any) -> None:
        checkpoint_record.check_folder(model_dir)
        checkpoint_record.distribute_records(model_dir, idle=True)
        atexit.register(checkpoint_record.distribute_records, model_dir)
        checkpoint_record.check_free_space(
            model_dir, checkpoint_manager.compute_checkpoint_size(state, dtype)
        )


def _check_vocabulary(checkpoint: str, found: checkpoint_record.Record, vocabulary: Any) -> None:
    mine = _compute_fingerprint(vocabulary)
    if found.vocabulary and mine and found.vocabulary != mine:
        raise UserError(
            "it was trained with another vocabulary",
            checkpoint,
            "set VOCAB to the one it was trained with, and leave EXTRA_IDS out",
            kind=DIFFERS,
        )


def _check_attention_scale(
    checkpoint: str, found: checkpoint_record.Record | None, config: Any
) -> None:
    scaled = found.scale_attn_logits if found else False
    if scaled != bool(config.scale_attn_logits):
        if found:
            raise UserError(
                f"scale_attn_logits is {bool(config.scale_attn_logits)}, its record says {scaled}",
                checkpoint,
                f"set network.T5Config.scale_attn_logits = {scaled}",
                kind=DIFFERS,
                value=bool(config.scale_attn_logits),
            )
        known = json.dumps(
            {
                "schema": checkpoint_record.SCHEMA,
                "step": pretrained.step(checkpoint),
                "scale_attn_logits": True,
            }
        )
        raise UserError(
            (
                "scale_attn_logits is True, and it has no record, as public weights, for which it "
                "is False"
            ),
            checkpoint,
            (
                "set network.T5Config.scale_attn_logits = False, or, if it was trained so, put "
                f"{known} into {checkpoint_record.RECORD_FILE} in it"
            ),
            kind=MISSING,
        )
