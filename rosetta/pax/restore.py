"""Start a run from the weights of another run, and check the checkpoint that a run reads first.

A run that starts from a checkpoint (CHECKPOINT_RESTORE_PATH) takes its weights, but neither its
step nor the state of its optimizer.
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

# The variables that switches add to those of a plain model.
_SWITCH_PATTERNS = (lora.KERNEL_PATTERN, einsum.STATE_PATTERN)
_READ_ALL = [(r"(.*)", "{}")]  # reads each variable under its own name
_POSITION_TABLE = "params.lm.position_emb.emb_var"  # [length, features]
_FIRST_LAYER = ".x_layers_0."  # in the names of the variables of a stack's first layer
_HYPER_PARAMETER_REMEDY = (
    "use the hyper-parameters that the checkpoint was trained with: sizes, VOCAB_SIZE, "
    "MAX_SEQ_LEN, USE_REPEATED_LAYER"
)


def locate_checkpoint(path: str) -> tuple[str, int | None]:
    """Return the folder of the checkpoints that a path names, and the step.

    Args:
      path: The folder of a run, its folder `checkpoints`, or one `checkpoint_N`.

    Returns:
      The folder, and the step. The step is None if the path does not name one.

    Raises:
      UserError: A path of this machine has no checkpoint. Addresses are not checked.
    """
    step = run_folders.parse_checkpoint_step(path)
    if step is None:
        folder = path.rstrip("/") or "/"
    else:
        folder, _ = run_folders.split_checkpoint_path(path)
    if is_address(path):
        return folder, step
    if step is None and Path(folder, "checkpoints").is_dir():
        folder = f"{folder}/checkpoints"
    steps = run_folders.list_checkpoint_steps(folder)
    if not steps or (step is not None and not run_folders.folder_exists(path)):
        raise UserError(
            run_folders.describe_missing_checkpoint(path),
            f"CHECKPOINT_RESTORE_PATH={path}",
            "name a run's folder, its folder `checkpoints`, or one checkpoint_N",
            kind=MISSING,
        )
    return folder, step


def set_initial_weights(
    task: Any, path: str, plain: Any, inputs: Any, ignored: list[str] | None
) -> None:
    """Let a task start from the weights of a checkpoint.

    Args:
      task: The configuration of the task with all switches, which is changed in place.
      path: The checkpoint, see `locate_checkpoint`.
      plain: The same configuration without any switch, with which the checkpoint is read.
      inputs: The configuration of the provider of the shapes of the inputs.
      ignored: Patterns of variables that keep their initial values, besides the variables that
        switches add.

    Raises:
      UserError: There is no checkpoint.
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
    """Check that the checkpoint that a run reads first is one of its model.

    Paxml cuts and pads the arrays of another model until the shapes fit, or ends with a traceback.
    Nothing is computed or written here, and only the metadata of the checkpoint is read. The check
    passes if there is no checkpoint.

    Args:
      experiment: A valid experiment.
      folder: The folder of checkpoints that training resumes from, or that is evaluated.
      trains: Whether the run trains. If the folder has no checkpoint, training starts from
        CHECKPOINT_RESTORE_PATH.

    Raises:
      UserError: The checkpoint is one of another model.
    """
    own = stored_checkpoint.find_newest(folder)
    if own:
        _check_own_checkpoint(experiment, own, trains=trains)
    elif trains and experiment.CHECKPOINT_RESTORE_PATH:
        rules_by_folder = experiment.task().train.init_from_checkpoint_rules
        for other_folder, rules in rules_by_folder.items():
            _check_other_checkpoint(other_folder, rules)


def _check_own_checkpoint(experiment: Any, checkpoint: str, *, trains: bool) -> None:
    """Check a checkpoint that training resumes from, or that is evaluated."""
    stored = stored_checkpoint.read_shapes(checkpoint)
    if stored is None:
        return
    model = trace_variable_shapes(experiment.task(), experiment.get_input_specs_provider_params())
    if trains:
        remedy = f"{_HYPER_PARAMETER_REMEDY}; or start in another folder (LOG_DIR, --job_log_dir)"
        stored_checkpoint.check_shapes(stored, model, checkpoint, remedy)
    else:
        stored_checkpoint.check_shapes(
            _cut_positions(stored, model),
            model,
            checkpoint,
            _HYPER_PARAMETER_REMEDY,
            _SWITCH_PATTERNS,
        )


def _check_other_checkpoint(folder: str, rules: Any) -> None:
    """Check a checkpoint whose weights training starts from, by Paxml's rules for loading it."""
    if rules.step is None:
        checkpoint = stored_checkpoint.find_newest(folder)
    else:
        checkpoint = stored_checkpoint.make_path(folder, rules.step)
    if not checkpoint or rules.load_rules != _READ_ALL:
        return
    stored = stored_checkpoint.read_shapes(checkpoint)
    if stored is None:
        return
    model = trace_variable_shapes(rules.task_p, rules.input_specs_provider_p)
    stored_checkpoint.check_shapes(
        _cut_positions(stored, model),
        model,
        f"CHECKPOINT_RESTORE_PATH={checkpoint}",
        f"{_HYPER_PARAMETER_REMEDY}; or name another checkpoint, or name the variables that keep "
        "their initial values by patterns in --fdl.CHECKPOINT_IGNORE_RULES",
        [*_SWITCH_PATTERNS, *rules.ignore_rules],
    )


def _cut_positions(
    stored: stored_checkpoint.Shapes, model: stored_checkpoint.Shapes
) -> stored_checkpoint.Shapes:
    """Return the stored shapes without learned positions beyond the model's, as Paxml cuts them."""
    stored_shape, model_shape = stored.get(_POSITION_TABLE, ()), model.get(_POSITION_TABLE, ())
    same_width = stored_shape[1:] == model_shape[1:]
    if same_width and stored_shape[:1] > model_shape[:1] > ():
        return {**stored, _POSITION_TABLE: model_shape}
    return stored


def trace_variable_shapes(task: Any, inputs: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the variables of a language model.

    Praxis takes up to 0.2 s to trace a layer, so only the first layer is traced if all layers of a
    stack are alike.

    Args:
      task: The configuration of the task.
      inputs: The configuration of the provider of the shapes of the inputs.

    Returns:
      Shapes by name, as `stored_checkpoint.read_shapes` returns them. The variables of repeated
      layers have one more dimension in front.
    """
    task = task.clone()
    stack = task.model.lm_tpl.stacked_transformer_tpl
    layer_count = stack.num_layers if _has_equal_layers(stack) else 1
    if layer_count > 1:
        stack.num_layers = 1
    instance = pax_fiddle.instantiate(task)
    batch = trainer_lib.get_train_input_specs_for_model_init(
        instance, pax_fiddle.instantiate(inputs)
    )
    state = instance.create_train_state_unpadded_shapes(
        instance.model.abstract_init_with_metadata(batch), discard_opt_states=True
    )
    shapes: dict[str, tuple[int, ...]] = {}
    for name, leaf in flatten_dict(state.mdl_vars, sep=".").items():
        for index in range(layer_count if _FIRST_LAYER in name else 1):
            shapes[name.replace(_FIRST_LAYER, f".x_layers_{index}.")] = tuple(leaf.shape)
    return shapes


def _has_equal_layers(stack: Any) -> bool:
    """Return whether all layers of a stack have the same variables."""
    return (
        fdl.get_callable(stack) is layers.StackedTransformer
        and not stack.moe_layers
        and not isinstance(stack.transformer_layer_params_tpl, (list, tuple))
    )
