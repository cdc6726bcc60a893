"""Start from a checkpoint of another run: its weights, not its step or its optimizer's state.

And whether what a run reads is its model's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fiddle as fdl
from flax.traverse_util import flatten_dict
from paxml import tasks_lib, trainer_lib
from praxis import layers, pax_fiddle

from rosetta.core import run_folders
from rosetta.core.errors import MISSING, UserError
from rosetta.core.value_parsing import is_address
from rosetta.pax import einsum, lora
from rosetta.pax.run import stored_checkpoint

_SWITCH_PATTERNS = (
    lora.KERNEL_PATTERN,
    einsum.STATE_PATTERN,
)  # of what switches add to a plain model's variables
_READ_ALL = [(r"(.*)", "{}")]  # each variable is read under its own name
_POSITION_TABLE = "params.lm.position_emb.emb_var"  # [length, features]
_FIRST_LAYER = ".x_layers_0."  # in the names of the variables of a stack's first layer


def locate_checkpoint(path: str) -> tuple[str, int | None]:
    """Return the folder of checkpoints that a path names, and the step where it names one.

    Args:
      path: a run's folder, the folder `checkpoints` in it, or one `checkpoint_N`.

    Raises:
      UserError: a path of this machine with no checkpoint.
    """
    step = run_folders.parse_checkpoint_step(path)
    folder = (
        (path.rstrip("/") or "/") if step is None else run_folders.split_checkpoint_path(path)[0]
    )
    if is_address(path):
        return folder, step
    if step is None and Path(folder, "checkpoints").is_dir():
        folder = f"{folder}/checkpoints"
    kept = run_folders.list_checkpoint_steps(folder)
    if not kept or (step is not None and not run_folders.folder_exists(path)):
        raise UserError(
            "there is no checkpoint_N",
            f"CHECKPOINT_RESTORE_PATH={path}",
            "name a run's folder, its folder `checkpoints`, or one checkpoint_N",
            kind=MISSING,
        )
    return folder, step


def set_initial_weights(
    task: Any, path: str, plain: Any, inputs: Any, ignored: list[str] | None
) -> None:
    """Make a task begin with a checkpoint's weights, in place.

    Args:
      task: its configuration, with all switches.
      path: see found.
      plain: the same without any switch, as what wrote the checkpoint is read.
      inputs: the configuration of what provides the inputs' shapes.
      ignored: patterns of variables that keep their initial values, beside those that switches add.

    Raises:
      UserError: there is no checkpoint.
    """
    folder, step = locate_checkpoint(path)
    task.train.init_from_checkpoint_rules = {
        folder: tasks_lib.CheckpointLoadingRules(
            task_p=plain,
            load_rules=_READ_ALL,
            ignore_rules=[*_SWITCH_PATTERNS, *(ignored or ())],
            step=step,
            input_specs_provider_p=inputs,
        )
    }


def check_first_checkpoint(experiment: Any, folder: str, *, trains: bool) -> None:
    """Check that the checkpoint that a run reads first is its model's: Paxml cuts and fills up
    another's until the shapes fit, or ends in a traceback.

    Nothing is computed or written, and of the checkpoint only its metadata is read. Where no
    checkpoint is, nothing is done.

    Args:
      experiment: a valid one.
      folder: of checkpoints, from which training goes on, or which is evaluated.
      trains: whether it trains; where the folder has no checkpoint, it begins with what
        CHECKPOINT_RESTORE_PATH names.

    Raises:
      UserError: it is not.
    """
    wanted = (
        "take the hyper-parameters it was trained with: sizes, VOCAB_SIZE, MAX_SEQ_LEN, "
        "USE_REPEATED_LAYER"
    )
    if own := stored_checkpoint.find_newest(folder):
        there = stored_checkpoint.read_shapes(own)
        if there is not None:
            model = trace_variable_shapes(
                experiment.task(), experiment.get_input_specs_provider_params()
            )
            if trains:
                stored_checkpoint.check_shapes(
                    there,
                    model,
                    own,
                    f"{wanted}; or begin in another folder (LOG_DIR, --job_log_dir)",
                )
            else:
                stored_checkpoint.check_shapes(
                    _cut_positions(there, model), model, own, wanted, _SWITCH_PATTERNS
                )
        return
    if not trains or not experiment.CHECKPOINT_RESTORE_PATH:
        return
    for path, rules in experiment.task().train.init_from_checkpoint_rules.items():
        checkpoint = (
            stored_checkpoint.find_newest(path)
            if rules.step is None
            else stored_checkpoint.make_path(path, rules.step)
        )
        there = (
            stored_checkpoint.read_shapes(checkpoint)
            if checkpoint and rules.load_rules == _READ_ALL
            else None
        )
        if there is not None:
            model = trace_variable_shapes(rules.task_p, rules.input_specs_provider_p)
            do = (
                f"{wanted}; or name another, or leave what differs as it is initialised by "
                "patterns in --fdl.CHECKPOINT_IGNORE_RULES"
            )
            stored_checkpoint.check_shapes(
                _cut_positions(there, model),
                model,
                f"CHECKPOINT_RESTORE_PATH={checkpoint}",
                do,
                [*_SWITCH_PATTERNS, *rules.ignore_rules],
            )


def _cut_positions(
    there: stored_checkpoint.Shapes, model: stored_checkpoint.Shapes
) -> stored_checkpoint.Shapes:
    """Return the stored shapes without positions beyond the model's rows, as Paxml does."""
    kept, needed = there.get(_POSITION_TABLE, ()), model.get(_POSITION_TABLE, ())
    return (
        {**there, _POSITION_TABLE: needed}
        if kept[1:] == needed[1:] and kept[:1] > needed[:1] > ()
        else there
    )


def trace_variable_shapes(task: Any, inputs: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a language model's variables, by names as stored.shapes gives; layers
    that repeat have one more dimension in front.

    Tracing a model takes Praxis up to 0.2 s a layer, so of a stack of layers that are all alike
    only the first is traced.

    Args:
      task: its configuration.
      inputs: the configuration of what provides the inputs' shapes.
    """
    task = task.clone()
    stack = task.model.lm_tpl.stacked_transformer_tpl
    count = stack.num_layers if _has_equal_layers(stack) else 1
    if count > 1:
        stack.num_layers = 1
    made = pax_fiddle.instantiate(task)
    batch = trainer_lib.get_train_input_specs_for_model_init(made, pax_fiddle.instantiate(inputs))
    state = made.create_train_state_unpadded_shapes(
        made.model.abstract_init_with_metadata(batch), discard_opt_states=True
    )
    found = {
        name: tuple(leaf.shape) for name, leaf in flatten_dict(state.mdl_vars, sep=".").items()
    }
    return {
        name.replace(_FIRST_LAYER, f".x_layers_{index}."): shape
        for name, shape in found.items()
        for index in range(count if _FIRST_LAYER in name else 1)
    }


def _has_equal_layers(stack: Any) -> bool:
    """Whether a stack's layers all have the same variables."""
    return (
        fdl.get_callable(stack) is layers.StackedTransformer
        and not stack.moe_layers
        and not isinstance(stack.transformer_layer_params_tpl, (list, tuple))
    )
