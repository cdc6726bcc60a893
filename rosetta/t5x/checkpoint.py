"""Records on save, and every check of a checkpoint before the first compilation.

T5X's own extension points carry it: `SaveCheckpointConfig.state_transformation_fns` (on_save), `train_state_initializer_cls`
(Initializer) and `RestoreCheckpointConfig.state_transformation_fns` (transformations).
"""

from __future__ import annotations

import atexit
import dataclasses
import importlib
import importlib.metadata
import json
import sys
from typing import TYPE_CHECKING, Any

import jax
from flax.traverse_util import flatten_dict
from t5x import utils

from rosetta.errors import UserError
from rosetta.t5x import manager, pretrained, record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OPTIMIZER = "state/param_states/"
_VERSIONS = ("jax", "flax", "optax", "orbax-checkpoint", "t5x")


def _installed() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _fingerprint(vocabulary: Any) -> str:
    from rosetta.t5x import dataset  # noqa: PLC0415 (SeqIO)

    try:
        return dataset.ours(vocabulary).fingerprint()
    except UserError:
        return ""


def on_save(state: Any, infos: Any, *, model_dir: str, config: Any, batch_size: int, lengths: Mapping[str, int], vocabulary: Any, start: str | None = None) -> tuple[Any, Any]:
    """Write the record of the checkpoint that T5X is about to save; return what T5X passed in, unchanged.

    Args:
      state: the train state as a nested dict.
      infos: T5X's description of it.
      model_dir: the folder of the checkpoints.
      config: the network's T5Config.
      batch_size: sequences of a batch.
      lengths: tokens, {'inputs': n, 'targets': n}.
      vocabulary: the model's.
      start: the checkpoint this run finetunes; what its record says of pretraining is handed on.
    """
    if jax.process_index() == 0:
        from rosetta.t5x import dataset  # noqa: PLC0415 (SeqIO)

        step = int(jax.device_get(state["state"]["step"]))
        before = record.read(pretrained.named(start)) if start else None
        record.write(
            model_dir,
            record.Record(
                step=step,
                scale_attn_logits=bool(config.scale_attn_logits),
                batch_size=before.batch_size if before else None if start else batch_size,
                targets_length=before.targets_length if before else None if start else lengths.get("targets"),
                vocabulary=_fingerprint(vocabulary),
                data=dataset.state(step),
                run=record.run(model_dir),
                config={field.name: str(getattr(config, field.name)) for field in dataclasses.fields(config)},
                versions=_installed(),
            ),
        )
        record.stamp(model_dir)  # the checkpoints before this one are whole by now
    return state, infos


def transformations(*, optimizer: bool) -> list[Callable[..., Any]]:
    """Return what T5X applies to a checkpoint of another run: nothing, or the loss of its optimizer state (manager.Manager makes it anew)."""

    def weights_only(kept: Any, state: Any, *, is_resuming: bool = False) -> Any:
        del state
        if is_resuming:
            return kept
        return {**kept, "state": {"step": kept["state"]["step"]}}

    return [] if optimizer else [weights_only]


def shapes(checkpoint: str) -> dict[str, tuple[int, ...]]:
    """Return the arrays of a checkpoint_N of T5X, Orbax's format or the older one: 'target/...' or 'state/...' -> shape.

    Raises:
      UserError: it is no such checkpoint.
    """
    import orbax.checkpoint as ocp  # noqa: PLC0415
    from flax.serialization import msgpack_restore  # noqa: PLC0415

    folder = importlib.import_module("etils.epath").Path(checkpoint)
    if (folder / "checkpoint").exists():
        tree = msgpack_restore((folder / "checkpoint").read_bytes())
        tree = tree.get("optimizer", tree)
        return dict(_legacy(tree, ""))
    where = folder / "state" if (folder / "state").is_dir() else folder
    try:
        found = ocp.PyTreeCheckpointHandler().metadata(where)
        leaves = jax.tree_util.tree_flatten_with_path(getattr(found, "tree", found))[0]
    except (OSError, ValueError, KeyError):
        raise UserError("it is no checkpoint of T5X, or not a whole one", checkpoint, "name a folder checkpoint_N that a run has finished writing") from None
    return {"/".join(str(part.key) for part in path): tuple(leaf.shape) for path, leaf in leaves}


def _legacy(node: Any, name: str) -> Any:
    if isinstance(node, dict) and {"driver", "metadata"} <= set(node):
        yield name, tuple(node["metadata"]["shape"])
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _legacy(value, f"{name}/{key}" if name else key)
    elif hasattr(node, "shape"):
        yield name, tuple(node.shape)


def refuse_other_shapes(checkpoint: str, model: Mapping[str, tuple[int, ...]], *, optimizer: bool) -> None:
    """UserError naming the first array of the model that the checkpoint lacks or has in another shape.

    Args:
      checkpoint: a checkpoint_N.
      model: the train state's arrays, as in `shapes`.
      optimizer: whether the optimizer's state is restored too.
    """
    there = shapes(checkpoint)
    for name in sorted(model, key=lambda name: (not name.startswith("target/"), name)):
        needed = name.startswith("target/") or (optimizer and name.startswith(_OPTIMIZER))
        if not needed or there.get(name) == model[name]:
            continue
        has = f"in the shape {there[name]}" if name in there else "not at all"
        if name.startswith(_OPTIMIZER):
            raise UserError(f"its optimizer's state has {name.removeprefix(_OPTIMIZER)} {has}, the run needs {model[name]}", checkpoint, "restore the weights alone: RESTORE_OPTIMIZER = False, or take the optimizer it was trained with")
        raise UserError(f"it has {name.removeprefix('target/')} {has}, the model needs {model[name]}", checkpoint, "take the size and the vocabulary it was trained with")


class Initializer(utils.TrainStateInitializer):
    """T5X's initializer, which knows the model's shapes and comes before everything that compiles: here checkpoints are refused.

    Args beyond T5X's own:
      config: the network's T5Config.
      vocabulary: the model's.
      checkpoint: what the run starts from; None: from nothing. Evaluation and inference: what they read.
      model_dir: where the run saves, and goes on from; None: nowhere.
      optimizer: whether a start from `checkpoint` takes its optimizer's state over.
      checkpoint_cfg: T5X's CheckpointConfig: whether the run saves.
    """

    def __init__(
        self, *args: Any, config: Any, vocabulary: Any, checkpoint: str | None, model_dir: str | None = None, optimizer: bool = False, checkpoint_cfg: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        manager.install()
        own = record.steps(model_dir) if model_dir else []
        state = self.global_train_state_shape.state_dict()
        arrays = {name: tuple(leaf.shape) for name, leaf in flatten_dict(state, sep="/").items() if hasattr(leaf, "shape")}
        if own:
            self._go_on(f"{model_dir}/checkpoint_{own[-1]}", own[-1], arrays, config)
        elif checkpoint:
            self._start(pretrained.named(checkpoint), arrays, config, vocabulary, optimizer=optimizer, trains=model_dir is not None)
        if model_dir and checkpoint_cfg and checkpoint_cfg.save and jax.process_index() == 0:
            self._before_saving(model_dir, state, checkpoint_cfg.save.dtype)

    def _go_on(self, checkpoint: str, step: int, arrays: Mapping[str, tuple[int, ...]], config: Any) -> None:
        from rosetta.t5x import dataset  # noqa: PLC0415 (SeqIO)

        found = record.read(checkpoint)
        if found:
            _same_scale(checkpoint, found, config)
            dataset.resume(found.data, step)
        refuse_other_shapes(checkpoint, arrays, optimizer=True)

    def _start(self, checkpoint: str, arrays: Mapping[str, tuple[int, ...]], config: Any, vocabulary: Any, *, optimizer: bool, trains: bool) -> None:
        found = record.read(checkpoint)
        _same_scale(checkpoint, found, config)
        mine = _fingerprint(vocabulary)
        if found and found.vocabulary and mine and found.vocabulary != mine:
            raise UserError("it was trained with another vocabulary", checkpoint, "set VOCAB to the one it was trained with")
        refuse_other_shapes(checkpoint, arrays, optimizer=optimizer and trains)
        if trains and jax.process_index() == 0:
            print(f"rosetta: {checkpoint}: the weights and {'the state of the optimizer' if optimizer else 'nothing of the optimizer'} are taken over", file=sys.stderr, flush=True)

    def _before_saving(self, model_dir: str, state: Any, dtype: Any) -> None:
        record.require_folder(model_dir)
        record.stamp(model_dir)
        atexit.register(record.stamp, model_dir)
        record.require_room(model_dir, manager.size(state, dtype))


def _same_scale(checkpoint: str, found: record.Record | None, config: Any) -> None:
    scaled = found.scale_attn_logits if found else False
    if scaled != bool(config.scale_attn_logits):
        if found:
            raise UserError(f"scale_attn_logits is {bool(config.scale_attn_logits)}, its record says {scaled}", checkpoint, f"set network.T5Config.scale_attn_logits = {scaled}")
        known = json.dumps({"schema": record.SCHEMA, "step": pretrained.step(checkpoint), "scale_attn_logits": True})
        raise UserError("scale_attn_logits is True, and it has no record, as public weights, for which it is False", checkpoint, f"set network.T5Config.scale_attn_logits = False, or, if it was trained so, put {known} into {record.FILE} in it")
