"""The gin files of a run: rosetta's own, those of NVIDIA's scripts, and a user's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, MISSING, UNKNOWN, UserError
from rosetta.core.variables import choices

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[3]  # the names of rosetta's gin files are relative to this folder
GIN_FOLDER = "rosetta/t5x/gin"
DEFAULT_FAMILY = "t5_1_1"  # of NVIDIA's scripts
MASKED_TASK = "masked"  # the evaluation of an encoder's pretraining: task_masked.gin
EXAMPLE_FOLDER = "t5x/contrib/gpu/t5/t5_1_1/examples"


def find_model_file(family: str, size: str, where: str = "T5_FAMILY, T5_SIZE") -> str:
    """Return the gin file of a model, relative to ROOT.

    Args:
      family: the model's family, for example t5_1_1 or mt5.
      size: the model's size, for example small.
      where: the variables that name them, for the error.

    Raises:
      UserError: there is no such model; the error lists the models.
    """
    # The folder of each family has a tiny model. So has the folder of sizes, which is not a family.
    known = sorted(
        f"{path.parent.name}/{path.stem}"
        for path in (ROOT / GIN_FOLDER).glob("*/*.gin")
        if path.parent.name != "sizes" and (path.parent / "tiny.gin").is_file()
    )
    if f"{family}/{size}" not in known:
        raise UserError(
            f"there is no {family}/{size}",
            where,
            f"choose one of: {', '.join(known)}",
            kind=UNKNOWN,
            value=size,
        )
    return f"{GIN_FOLDER}/{family}/{size}.gin"


def find_example_file(root: Path, size: str, suffix: str) -> str:
    """Return a gin file of NVIDIA's scripts, relative to the tree of T5X.

    Args:
      root: the tree of T5X.
      size: the model's size, for example small.
      suffix: the end of the file's name, for example pile_pretrain.

    Raises:
      UserError: there is no such size; the error lists the sizes.
    """
    name = f"{EXAMPLE_FOLDER}/{size}_{suffix}.gin"
    if not re.fullmatch(r"[A-Za-z0-9_]+", size) or not (root / name).is_file():
        files = (root / EXAMPLE_FOLDER).glob(f"*_{suffix}.gin")
        sizes = {path.name.removesuffix(f"_{suffix}.gin") for path in files}
        shipped = [known_size for known_size in choices.T5_SIZES if known_size in sizes]
        known = [*shipped, *sorted(sizes.difference(shipped))]
        raise UserError(
            f"there is no model size {size!r} for {suffix}",
            "T5_SIZE",
            f"choose one of: {', '.join(known)}",
            kind=UNKNOWN,
            value=size,
        )
    return name


def select_script_files(
    root: Path, size: str, task: str, family: str = DEFAULT_FAMILY
) -> list[Path]:
    """Return the gin files of a run of the scripts.

    Args:
      root: the tree of T5X, which has the gin files of NVIDIA's scripts.
      size: the model's size, for example small.
      task: the task of finetuning (FT_TASK); empty in pretraining.
      family: the model's family.

    Raises:
      UserError: there is no such size or family, or the family does not fit the task.
    """
    check_task_of_family(task, family)
    is_own_task = task in (choices.PAIRS, *choices.LABEL_TASKS)
    if is_own_task or task.startswith(choices.SEQIO_PREFIX) or family != DEFAULT_FAMILY:
        # NVIDIA's scripts had no such tasks and families, so the tree has no files for them.
        run = f"finetune_{get_task_file_name(task)}" if task else "pretrain_pile"
        if not task and family in choices.ENCODER_FAMILIES:
            run = "pretrain_encoder"
        where = "T5_SIZE" if family == DEFAULT_FAMILY else "T5_FAMILY, T5_SIZE"
        names = (find_model_file(family, size, where), f"{GIN_FOLDER}/runs/{run}.gin")
        return [ROOT / name for name in names]
    return [
        root / find_example_file(root, size, f"{task}_finetune_adam" if task else "pile_pretrain")
    ]


def check_task_of_family(task: str, family: str) -> None:
    """Check that a model has the outputs that a task of finetuning asks for.

    Raises:
      UserError: an encoder would have to write an answer, or another model to give a label.
    """
    is_encoder = family in choices.ENCODER_FAMILIES
    if not task or is_encoder == (task in choices.LABEL_TASKS):
        return
    fitting = [name for name in choices.FINETUNING_TASKS if name not in choices.LABEL_TASKS]
    remedy = f"choose one of: {', '.join(choices.LABEL_TASKS if is_encoder else fitting)}"
    if not is_encoder:
        remedy += f"; or an encoder: T5_FAMILY={' or '.join(choices.ENCODER_FAMILIES)}"
    raise UserError(
        f"a model of the family {family} does not do this task",
        f"FT_TASK={task}",
        remedy,
        kind=CONFLICT,
        value=task,
    )


def check_family_has_masks(family: str, objective: str) -> None:
    """Check that a model is an encoder, which predicts hidden tokens.

    Raises:
      UserError: the model writes texts.
    """
    if family not in choices.ENCODER_FAMILIES:
        raise UserError(
            f"a model of the family {family} does not have this objective",
            f"OBJECTIVE={objective}",
            f"name an encoder: T5_FAMILY={' or '.join(choices.ENCODER_FAMILIES)}",
            kind=CONFLICT,
            value=objective,
        )


def get_task_file_name(task: str) -> str:
    """Return the word for a task in the names of gin files: task_WORD.gin, finetune_WORD.gin.

    Args:
      task: as rosetta.t5x.run.settings.require_task returns it, or MASKED_TASK.
    """
    return "seqio" if task.startswith(choices.SEQIO_PREFIX) else task


def find_optimizer_files(variables: Mapping[str, str]) -> list[Path]:
    """Return the gin files of OPTIMIZER and LR_SCHEDULE; none if neither is set.

    The files of all runs have the linear schedule already.
    """
    optimizer, schedule = variables.get("OPTIMIZER"), variables.get("LR_SCHEDULE")
    names = [f"optimizers/{optimizer}.gin"] if optimizer else []
    if schedule and schedule != choices.LINEAR:
        names.append(f"runs/{schedule}_decay.gin")
    return [ROOT / GIN_FOLDER / name for name in names]


def find_own_model_files(variables: Mapping[str, str]) -> list[Path]:
    """Return the gin file for a module of the user's own; none if MODEL is not set."""
    return [ROOT / f"{GIN_FOLDER}/models/own.gin"] if variables.get("MODEL") else []


def find_user_files(variables: Mapping[str, str]) -> list[Path]:
    """Return the gin file that ROSETTA_GIN names as an absolute path; none if it is not set.

    Raises:
      UserError: the file does not exist.
    """
    path = variables.get("ROSETTA_GIN")
    if path and not Path(path).is_file():
        raise UserError(
            "the file does not exist",
            f"ROSETTA_GIN={path}",
            "name a gin file, or unset it",
            kind=MISSING,
        )
    return [Path(path).absolute()] if path else []
