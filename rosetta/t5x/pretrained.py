"""What a run takes from the checkpoint that it starts from: step, loss scale, attention scale.

The gin files call these functions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from rosetta.core import log, run_folders
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Mapping


@functools.cache  # checkpoints that the run itself saves must not change the answer
def start(checkpoint: str | None, model_dir: str | None = None) -> str | None:
    """Return the checkpoint_N that a run starts from; None for random weights.

    A run that is started again gets the same checkpoint.

    Args:
      checkpoint: a checkpoint_N, or a folder of checkpoints, of which the newest is used if
        `model_dir` does not say which. None for random weights.
      model_dir: the folder where the run saves. The record of its newest checkpoint says what the
        finetuning there started from.

    Raises:
      UserError: there is no checkpoint, or the finetuning in `model_dir` started from another step.
    """
    if not checkpoint:
        return None
    steps = run_folders.list_checkpoint_steps(model_dir) if model_dir else []
    own_record = (
        checkpoint_record.read_record(f"{model_dir}/checkpoint_{steps[-1]}") if steps else None
    )
    recorded_step = (
        run_folders.parse_checkpoint_step(own_record.start)
        if own_record and own_record.start
        else None
    )
    if own_record is None or recorded_step is None:
        return find_checkpoint(checkpoint)
    requested_step = run_folders.parse_checkpoint_step(checkpoint)
    if requested_step not in (None, recorded_step):
        raise UserError(
            f"the finetuning in {model_dir} started from {own_record.start}",
            f"INITIAL_CHECKPOINT_PATH={checkpoint}",
            "name that checkpoint to resume, or another MODEL_DIR",
            kind=CONFLICT,
        )
    folder = checkpoint.rstrip("/")
    first = folder if requested_step is not None else f"{folder}/checkpoint_{recorded_step}"
    if not run_folders.folder_exists(first):
        raise UserError(
            f"the finetuning in {model_dir} started from this checkpoint, which no longer exists",
            first,
            "restore the folder, or start a new run with another MODEL_DIR",
            kind=MISSING,
        )
    return first


def find_checkpoint(checkpoint: str | None) -> str:
    """Return the checkpoint that a path names.

    Args:
      checkpoint: a checkpoint_N, which is returned, or a folder, whose newest checkpoint is.

    Raises:
      UserError: the path is not set, or has no checkpoint.
    """
    if not checkpoint:
        raise UserError(
            "the weights to start from are not set",
            "INITIAL_CHECKPOINT_PATH",
            "name a checkpoint_N, or a folder of them",
            kind=MISSING,
        )
    folder = checkpoint.rstrip("/")
    if run_folders.parse_checkpoint_step(folder) is not None:
        return folder
    steps = run_folders.list_checkpoint_steps(folder)
    if not steps:
        raise UserError(
            run_folders.describe_missing_checkpoint(folder),
            checkpoint,
            "name the folder of the pretrained model, or a checkpoint_N in it",
            kind=MISSING,
        )
    return f"{folder}/checkpoint_{steps[-1]}"


def step(checkpoint: str | None) -> int:
    """Return the step of a checkpoint; see find_checkpoint for the argument and errors."""
    return int(find_checkpoint(checkpoint).rpartition("_")[2])


def total_steps(checkpoint: str | None, more: int) -> int:
    """Return the step at which finetuning ends; T5X continues the count of the checkpoint.

    Args:
      checkpoint: the checkpoint that finetuning starts from; see find_checkpoint.
      more: the number of steps of finetuning.

    Raises:
      UserError: `more` is below 1, or there is no checkpoint.
    """
    if more < 1:
        raise UserError(
            f"FT_STEPS is {more}", "finetuning", "give at least 1", kind=INVALID, value=more
        )
    first_step = step(checkpoint)
    last_step = first_step + more
    line = f"{find_checkpoint(checkpoint)} is at step {first_step}: {more} more end at {last_step}"
    log.info(line, once=True)
    return last_step


def loss_normalizing_factor(checkpoint: str | None, batch: int, lengths: Mapping[str, int]) -> int:
    """Return the target tokens of a pretraining batch, by which T5 also divides finetuning's loss.

    With another divisor, the scale of the loss would not match Adam's moments and the z-loss, which
    come from pretraining.

    Args:
      checkpoint: the pretrained checkpoint; its record comes first.
      batch: the sequences of a pretraining batch, if the record does not have them.
      lengths: pretraining's {'inputs': tokens, 'targets': tokens}, if the record lacks them.

    Raises:
      UserError: there is no checkpoint, or it is not from public weights and has no record.
    """
    record = checkpoint_record.require_record(
        find_checkpoint(checkpoint), "the divisor of its loss"
    )
    targets = lengths["targets"]
    source = "as published for these weights"
    if record and record.batch_size and record.targets_length:
        batch, targets = record.batch_size, record.targets_length
        source = "as the checkpoint says"
    log.info(
        f"the loss is divided by {batch * targets}: pretraining's {batch} sequences x "
        f"{targets} target tokens, {source}",
        once=True,
    )
    return batch * targets


def scale_attn_logits(checkpoint: str | None, *, otherwise: bool) -> bool:
    """Return whether attention logits are divided by the root of the head size.

    The answer is the checkpoint's. Public T5, mT5 and byT5 weights have no record and need False:
    T5's initial weights contain the division.

    Args:
      checkpoint: the checkpoint of the weights; None for random weights.
      otherwise: the answer for random weights.

    Raises:
      UserError: there is no checkpoint, or it is not from public weights and has no record.
    """
    if not checkpoint:
        return otherwise
    record = checkpoint_record.require_record(
        find_checkpoint(checkpoint), "the scale of its attention logits"
    )
    scaled = bool(record and record.scale_attn_logits)
    scale = "divided by the root of the head size" if scaled else "not divided"
    reason = "says so" if record else "has no record, so it is taken for public weights"
    log.info(f"attention's logits are {scale}: {find_checkpoint(checkpoint)} {reason}", once=True)
    return scaled


@functools.cache  # gin calls it wherever the vocabulary is used
def read_vocabulary_fingerprint(checkpoint: str | None, model_dir: str | None) -> str:
    """Return the fingerprint of the vocabulary that a run started with; "" if it is not recorded.

    Args:
      checkpoint: the checkpoint_N that the run starts from or reads; None for none.
      model_dir: the folder where the run saves; its newest checkpoint comes first.
    """
    steps = run_folders.list_checkpoint_steps(model_dir) if model_dir else []
    newest = f"{model_dir}/checkpoint_{steps[-1]}" if steps else checkpoint
    record = checkpoint_record.read_record(find_checkpoint(newest)) if newest else None
    return record.vocabulary if record else ""
