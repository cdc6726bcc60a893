"""The record of each saved checkpoint, and the checks of a checkpoint before the first compilation.

A record is the file rosetta.json of a checkpoint (see run.checkpoint_record). The gin files set the
functions and classes of this module as T5X's extension points:
`SaveCheckpointConfig.state_transformation_fns` (on_save), `train_state_initializer_cls`
(Initializer) and `RestoreCheckpointConfig.state_transformation_fns` (transformations).
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
from rosetta.health import phases, shared_run_lock, stop_signals
from rosetta.nn import lora
from rosetta.t5x import (
    adapters,
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
    """Return the versions of the recorded packages that are installed."""
    versions = {}
    for name in _RECORDED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _compute_fingerprint(vocabulary: Any) -> str:
    """Return the fingerprint of a SeqIO vocabulary; "" if its kind is not supported."""
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
    """Write the record of the checkpoint that T5X is about to save.

    Args:
      state: the train state as a nested dict.
      infos: T5X's description of the train state.
      model_dir: the folder of the checkpoints.
      config: the network's T5Config.
      batch_size: the sequences of a batch.
      lengths: the tokens of a sequence, {'inputs': n, 'targets': n}.
      vocabulary: the model's vocabulary.
      start: the checkpoint_N that this run finetunes. What its record says about pretraining is
        copied into the new record.
      warmup_steps: the steps over which the learning rate rises, which a resumed run needs.

    Returns:
      `state` and `infos`, unchanged.
    """
    if jax.process_index() == 0:
        from rosetta.t5x import dataset

        step = int(jax.device_get(state["state"]["step"]))
        targets_length = lengths.get("targets")
        pretraining_batch: int | None = batch_size
        start_record = None
        if start:
            start_record = checkpoint_record.read_record(start)
            pretraining_batch = start_record.batch_size if start_record else None
            targets_length = start_record.targets_length if start_record else None
        checkpoint_record.write_record(
            model_dir,
            checkpoint_record.Record(
                step=step,
                scale_attn_logits=bool(config.scale_attn_logits),
                batch_size=pretraining_batch,
                targets_length=targets_length,
                vocabulary=_compute_fingerprint(vocabulary),
                data=dataset.get_data_state(step),
                run=checkpoint_record.ensure_run_name(model_dir),
                start=start or "",
                warmup_steps=warmup_steps,
                unpadded_vocab_size=start_record.unpadded_vocab_size if start_record else None,
                lora=adapters.describe_lora(config),
                config={
                    field.name: str(getattr(config, field.name))
                    for field in dataclasses.fields(config)
                    if field.name != "lora"
                },
                versions=_find_versions(),
            ),
        )
        checkpoint_record.distribute_records(
            model_dir
        )  # the checkpoints before this one are whole by now
    return state, infos


def transformations(*, optimizer: bool) -> list[Callable[..., Any]]:
    """Return what T5X applies to the checkpoint that a run starts from.

    Args:
      optimizer: whether to keep the optimizer's state. Otherwise it is removed, and
        checkpoint_manager.Manager makes a new one.
    """

    def keep_weights_only(restored: Any, state: Any, *, is_resuming: bool = False) -> Any:
        del state
        if is_resuming:
            return restored
        return {**restored, "state": {"step": restored["state"]["step"]}}

    return [] if optimizer else [keep_weights_only]


def check_array_shapes(
    checkpoint: str, model: Mapping[str, tuple[int, ...]], *, optimizer: bool
) -> None:
    """Check that a checkpoint has the arrays of the model, in their shapes.

    Without the optimizer's state, the head of an encoder may be missing: it is new in finetuning.

    Args:
      checkpoint: a checkpoint_N.
      model: the shapes of the train state's arrays, by names 'target/...' or 'state/...'.
      optimizer: whether the optimizer's state is restored too.

    Raises:
      UserError: the checkpoint lacks an array, or has it in another shape. The error names the
        first such array.
    """
    saved_shapes = checkpoint_arrays.read_shapes(checkpoint)
    has_adapters = any(map(lora.is_adapter, saved_shapes))
    if not optimizer:
        new_heads = [
            name
            for name in model
            if name.startswith(checkpoint_manager.HEADS) and name not in saved_shapes
        ]
        model = {name: shape for name, shape in model.items() if name not in new_heads}
    for name in sorted(model, key=lambda name: (not name.startswith("target/"), name)):
        needed = name.startswith("target/") or (optimizer and name.startswith(_OPTIMIZER_PREFIX))
        saved = saved_shapes.get(name)
        if lora.is_adapter(name) and not has_adapters:
            continue  # The manager makes new adapters.
        if not needed or saved == model[name]:
            continue
        if name.startswith(_OPTIMIZER_PREFIX):
            array = name.removeprefix(_OPTIMIZER_PREFIX)
            raise UserError(
                (
                    f"the checkpoint's optimizer state has {_describe_shape(array, saved)}, the "
                    f"run needs {model[name]}"
                ),
                checkpoint,
                (
                    "restore only the weights (RESTORE_OPTIMIZER = False), or use the optimizer "
                    "that the checkpoint was trained with"
                ),
                kind=DIFFERS,
            )
        array = name.removeprefix("target/")
        remedy = "use the size and the vocabulary that the checkpoint was trained with"
        if array.startswith("row_head/"):
            remedy = (
                "name all classes of the finetuning in LABELS, in their order, with its FT_TASK"
            )
        raise UserError(
            (f"the checkpoint has {_describe_shape(array, saved)}, the model needs {model[name]}"),
            checkpoint,
            remedy,
            kind=DIFFERS,
        )


def _describe_shape(array: str, shape: tuple[int, ...] | None) -> str:
    """Return "NAME in the shape SHAPE", or "no NAME" if there is no such array."""
    return f"no {array}" if shape is None else f"{array} in the shape {shape}"


class Initializer(utils.TrainStateInitializer):
    """T5X's initializer of the train state, which also checks the checkpoint that is restored.

    The initializer knows the model's shapes, and runs before anything is compiled.

    Args:
      *args: as of T5X's class.
      config: the network's T5Config.
      vocabulary: the model's vocabulary.
      checkpoint: the checkpoint_N that the run starts from, or that evaluation and inference read;
        None for random weights.
      model_dir: the folder where the run saves and from which it resumes; None for none.
      optimizer: whether a start from `checkpoint` restores its optimizer state.
      checkpoint_cfg: T5X's CheckpointConfig, which says whether the run saves.
      trainer_cls: makes the run's trainer, whose training step is compiled while the train state is
        made or restored. None leaves the compilation to T5X.
      seed: the run's seed.
      **kwargs: as of T5X's class.

    Raises:
      UserError: the checkpoint cannot be restored into this model, or the run cannot save.
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
            shared_run_lock.acquire_shared_lock(
                model_dir, "MODEL_DIR", os.environ, jax.process_index(), jax.process_count()
            )
        own_steps = run_folders.list_checkpoint_steps(model_dir) if model_dir else []
        state = self.global_train_state_shape.state_dict()
        shapes = {
            name: tuple(leaf.shape)
            for name, leaf in flatten_dict(state, sep="/").items()
            if hasattr(leaf, "shape")
        }
        if own_steps:
            newest = f"{model_dir}/checkpoint_{own_steps[-1]}"
            checkpoint_manager.check_checkpoint_files(newest, resumes=True)
            self._prepare_resume(newest, own_steps[-1], shapes, config, vocabulary)
            if jax.process_index() == 0 and trainer_cls:
                log.info(f"goes on from {newest}: {own_steps[-1]:,} steps are done")
            phases.begin_phase(f"restoring from step {own_steps[-1]:,}")
        elif checkpoint:
            checkpoint_manager.check_checkpoint_files(checkpoint, resumes=False)
            self._check_start(
                checkpoint,
                shapes,
                config,
                vocabulary,
                optimizer=optimizer,
                trains=model_dir is not None,
            )
            checkpoint_manager.adapter_seed = seed or 0
            phases.begin_phase(f"restoring from step {pretrained.step(checkpoint):,}")
            if not trainer_cls:
                checkpoint_manager.phase_after_restore = "compiling, then computing answers"
        elif trainer_cls and getattr(config, "lora", None):
            raise UserError(
                "LoRA adapts trained weights, and the run starts from random ones",
                "LORA_RANK",
                "name the weights: INITIAL_CHECKPOINT_PATH",
                kind=MISSING,
            )
        if model_dir and checkpoint_cfg and checkpoint_cfg.save and jax.process_index() == 0:
            self._prepare_saving(model_dir, state, checkpoint_cfg.save.dtype)
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
        """Return a new train state, as T5X's method does, but compiled faster."""
        phases.begin_phase("initialising random weights")
        shardings = initial_state.make_shardings(
            self._partitioner.mesh, self.train_state_axes, self.global_train_state_shape
        )
        return initial_state.make_arrays(self._initialize_train_state, init_rng, shardings)

    def _prepare_resume(
        self,
        checkpoint: str,
        step: int,
        shapes: Mapping[str, tuple[int, ...]],
        config: Any,
        vocabulary: Any,
    ) -> None:
        from rosetta.t5x import dataset

        """Check the run's own newest checkpoint, and set the position in the data to resume at."""
        record = checkpoint_record.read_record(checkpoint)
        if record is None and checkpoint_record.has_run_name(
            run_folders.split_checkpoint_path(checkpoint)[0]
        ):
            checkpoint_record.require_record(checkpoint, "the run's position in its data")
        if record:
            _check_attention_scale(checkpoint, record, config)
            _check_vocabulary(checkpoint, record, vocabulary)
            dataset.set_resume_position(record.data, step)
        saved = checkpoint_arrays.read_shapes(checkpoint)
        adapters.check_checkpoint(checkpoint, saved, record, config, starts=False)
        check_array_shapes(checkpoint, shapes, optimizer=True)

    def _check_start(
        self,
        checkpoint: str,
        shapes: Mapping[str, tuple[int, ...]],
        config: Any,
        vocabulary: Any,
        *,
        optimizer: bool,
        trains: bool,
    ) -> None:
        """Check the checkpoint that the run starts from, or that evaluation or inference reads."""
        if not run_folders.folder_exists(checkpoint):
            raise UserError(
                "the folder does not exist",
                checkpoint,
                "name a checkpoint_N, or a folder of them",
                kind=MISSING,
            )
        record = checkpoint_record.read_record(checkpoint)
        _check_attention_scale(checkpoint, record, config)
        if record:
            _check_vocabulary(checkpoint, record, vocabulary)
        saved = checkpoint_arrays.read_shapes(checkpoint)
        adapters.check_checkpoint(checkpoint, saved, record, config, starts=trains)
        check_array_shapes(checkpoint, shapes, optimizer=optimizer and trains)
        if trains and jax.process_index() == 0:
            if optimizer:
                log.info(f"{checkpoint}: the weights and the state of the optimizer are taken over")
            else:
                log.info(f"{checkpoint}: the weights are taken over, the optimizer starts anew")

    def _prepare_saving(self, model_dir: str, state: Any, dtype: Any) -> None:
        """Check that the run can save in its folder, and complete the records that are there."""
        checkpoint_record.check_folder(model_dir)
        checkpoint_record.distribute_records(model_dir, idle=True)
        atexit.register(checkpoint_record.distribute_records, model_dir)
        checkpoint_record.check_free_space(
            model_dir, checkpoint_manager.compute_checkpoint_size(state, dtype)
        )


def _check_vocabulary(checkpoint: str, record: checkpoint_record.Record, vocabulary: Any) -> None:
    """Raise UserError if the checkpoint was trained with another vocabulary."""
    fingerprint = _compute_fingerprint(vocabulary)
    if record.vocabulary and fingerprint and record.vocabulary != fingerprint:
        raise UserError(
            "the checkpoint was trained with another vocabulary",
            checkpoint,
            "set VOCAB to the vocabulary of the checkpoint, and leave EXTRA_IDS out",
            kind=DIFFERS,
        )


def _check_attention_scale(
    checkpoint: str, record: checkpoint_record.Record | None, config: Any
) -> None:
    """Raise UserError if the checkpoint was trained with another scale of the attention logits."""
    recorded = record.scale_attn_logits if record else False
    configured = bool(config.scale_attn_logits)
    if recorded == configured:
        return
    if record:
        raise UserError(
            f"scale_attn_logits is {configured}, but the checkpoint's record says {recorded}",
            checkpoint,
            f"set network.T5Config.scale_attn_logits = {recorded}",
            kind=DIFFERS,
            value=configured,
        )
    example = json.dumps(
        {
            "schema": checkpoint_record.SCHEMA,
            "step": pretrained.step(checkpoint),
            "scale_attn_logits": True,
        }
    )
    raise UserError(
        (
            "scale_attn_logits is True, but the checkpoint has no record; public weights, which "
            "have no record, need False"
        ),
        checkpoint,
        (
            "set network.T5Config.scale_attn_logits = False, or, if the checkpoint was trained "
            f"with True, put {example} into {checkpoint_record.RECORD_FILE} in it"
        ),
        kind=MISSING,
    )
