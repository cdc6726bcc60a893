"""What finetuning takes over from the checkpoint it starts from: its step, its batch, its
attention's scale.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from rosetta.core import log, run_folders
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Mapping


@functools.cache  # what a run begins with it ends with, whatever is saved there meanwhile
def start(checkpoint: str | None, model_dir: str | None = None) -> str | None:
    """Return the checkpoint_N that a run starts from, the same one whenever it is started again.

    Args:
      checkpoint: a checkpoint_N, or a folder of them: the newest, unless `model_dir` says which.
        None: from nothing.
      model_dir: where the run saves. Its newest checkpoint's record says what finetuning there
        started from.

    Raises:
      UserError: there is none, or the finetuning in `model_dir` started from another step.
    """
    if not checkpoint:
        return None
    steps = run_folders.list_checkpoint_steps(model_dir) if model_dir else []
    own = checkpoint_record.read_record(f"{model_dir}/checkpoint_{steps[-1]}") if steps else None
    began = run_folders.parse_checkpoint_step(own.start) if own and own.start else None
    if own is None or began is None:
        return find_checkpoint(checkpoint)
    given = run_folders.parse_checkpoint_step(checkpoint)
    if given not in (None, began):
        raise UserError(
            f"the finetuning in {model_dir} started from {own.start}",
            f"INITIAL_CHECKPOINT_PATH={checkpoint}",
            "name that one to go on, or another MODEL_DIR",
            kind=CONFLICT,
        )
    folder = checkpoint.rstrip("/")
    found = folder if given is not None else f"{folder}/checkpoint_{began}"
    if not run_folders.folder_exists(found):
        raise UserError(
            f"the finetuning in {model_dir} started from it, and it is gone",
            found,
            "put it back, or start anew with another MODEL_DIR",
            kind=MISSING,
        )
    return found


def find_checkpoint(checkpoint: str | None) -> str:
    """Return the checkpoint a path names: itself where it ends in checkpoint_N, else the newest one
    in the folder.

    Raises:
      UserError: there is none.
    """
    if not checkpoint:
        raise UserError(
            "there are no weights to start from",
            "INITIAL_CHECKPOINT_PATH",
            "name a folder with checkpoint_N in it, or one checkpoint_N",
            kind=MISSING,
        )
    folder = checkpoint.rstrip("/")
    if run_folders.parse_checkpoint_step(folder) is not None:
        return folder
    steps = run_folders.list_checkpoint_steps(folder)
    if not steps:
        what = (
            "there is no checkpoint_N in it"
            if run_folders.folder_exists(folder)
            else "there is no such folder"
        )
        raise UserError(
            what,
            checkpoint,
            "name the folder of the pretrained model, or one checkpoint_N of it",
            kind=MISSING,
        )
    return f"{folder}/checkpoint_{steps[-1]}"


def step(checkpoint: str | None) -> int:
    """Return the step a checkpoint was saved at."""
    return int(find_checkpoint(checkpoint).rpartition("_")[2])


def total_steps(checkpoint: str | None, more: int) -> int:
    """Return the step at which `more` steps from the checkpoint are done: T5X counts on from its
    step.
    """
    if more < 1:
        raise UserError(
            f"FT_STEPS is {more}", "finetuning", "give at least 1", kind=INVALID, value=more
        )
    begun = step(checkpoint)
    log.info(
        f"{find_checkpoint(checkpoint)} is at step {begun}: {more} more end at {begun + more}",
        once=True,
    )
    return begun + more


def loss_normalizing_factor(checkpoint: str | None, batch: int, lengths: Mapping[str, int]) -> int:
    """Return the target tokens of one pretraining batch, by which T5 divides the loss in finetuning
    too.

    A loss on another scale would meet Adam's moments and the z-loss as they were in pretraining.

    Args:
      checkpoint: the pretrained checkpoint; what it says of its own run comes first.
      batch: sequences of a pretraining batch, where the checkpoint says nothing.
      lengths: pretraining's {'inputs': tokens, 'targets': tokens}, likewise.
    """
    found = checkpoint_record.require_record(
        find_checkpoint(checkpoint), "what its loss was divided by"
    )
    targets = lengths["targets"]
    says = "as published for these weights"
    if found and found.batch_size and found.targets_length:
        batch, targets, says = found.batch_size, found.targets_length, "as the checkpoint says"
    log.info(
        f"the loss is divided by {batch * targets}: pretraining's {batch} sequences x "
        f"{targets} target tokens, {says}",
        once=True,
    )
    return batch * targets


def scale_attn_logits(checkpoint: str | None, *, otherwise: bool) -> bool:
    """Return whether attention's logits are divided by the root of the head's size, as the
    checkpoint's were.

    Args:
      checkpoint: where the weights come from; None: from nothing.
      otherwise: the answer for weights from nothing.

    Public T5, mT5 and byT5 weights say nothing of themselves and need False: T5 folds the division
    into the weights.
    """
    if not checkpoint:
        return otherwise
    found = checkpoint_record.require_record(
        find_checkpoint(checkpoint), "whether its attention's logits are divided"
    )
    scaled = bool(found and found.scale_attn_logits)
    what = "divided by the root of the head size" if scaled else "not divided"
    reason = "says so" if found else "has no record, so it is taken for public weights"
    log.info(f"attention's logits are {what}: {find_checkpoint(checkpoint)} {reason}", once=True)
    return scaled


@functools.cache  # gin asks for it wherever the vocabulary is used
def read_vocabulary_fingerprint(checkpoint: str | None, model_dir: str | None) -> str:
    """Return the fingerprint of the vocabulary that a run was begun with, "" where nothing says so.

    Args:
      checkpoint: the checkpoint_N that the run starts from or reads; None for none.
      model_dir: where the run saves; the newest checkpoint there comes first.
    """
    steps = run_folders.list_checkpoint_steps(model_dir) if model_dir else []
    newest = f"{model_dir}/checkpoint_{steps[-1]}" if steps else checkpoint
    found = checkpoint_record.read_record(find_checkpoint(newest)) if newest else None
    return found.vocabulary if found else ""
