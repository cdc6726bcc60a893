"""What finetuning takes over from the checkpoint it starts from: its step, its batch, its attention's scale."""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import TYPE_CHECKING

from rosetta.errors import UserError
from rosetta.t5x import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBERED = re.compile(r"checkpoint_(\d+)")


@functools.cache
def _say(line: str) -> None:
    # Gin evaluates a function wherever its value is used: one line a run is enough.
    print(f"rosetta: {line}", file=sys.stderr, flush=True)


def _listed(folder: str) -> Sequence[str]:
    if "://" not in folder:
        return os.listdir(folder) if os.path.isdir(folder) else []
    from tensorflow.io import gfile  # noqa: PLC0415 (only object stores need it)

    return [name.rstrip("/") for name in gfile.listdir(folder)] if gfile.isdir(folder) else []


def path(checkpoint: str | None) -> str | None:
    """Return the checkpoint a path names: itself where it ends in checkpoint_N, else the newest one in the folder.

    None stays None: nothing to start from.

    Raises:
      UserError: the folder holds none.
    """
    return named(checkpoint) if checkpoint else None


def named(checkpoint: str | None) -> str:
    """Return what `path` does; UserError where there is no checkpoint to start from."""
    if not checkpoint:
        raise UserError("there are no weights to start from", "INITIAL_CHECKPOINT_PATH", "name a folder with checkpoint_N in it, or one checkpoint_N")
    folder = checkpoint.rstrip("/")
    if _NUMBERED.fullmatch(os.path.basename(folder)):
        return folder
    steps = [int(found[1]) for found in map(_NUMBERED.fullmatch, _listed(folder)) if found]
    if not steps:
        raise UserError("there is no checkpoint_N in it", checkpoint, "name the folder of the pretrained model, or one checkpoint_N of it")
    return f"{folder}/checkpoint_{max(steps)}"


def step(checkpoint: str | None) -> int:
    """Return the step a checkpoint was saved at."""
    return int(named(checkpoint).rpartition("_")[2])


def total_steps(checkpoint: str | None, more: int) -> int:
    """Return the step at which `more` steps from the checkpoint are done: T5X counts on from its step."""
    if more < 1:
        raise UserError(f"FT_STEPS is {more}", "finetuning", "give at least 1")
    start = step(checkpoint)
    _say(f"{named(checkpoint)} is at step {start}: {more} more end at {start + more}")
    return start + more


def _record(checkpoint: str | None) -> record.Record | None:
    return record.read(named(checkpoint))


def loss_normalizing_factor(checkpoint: str | None, batch: int, lengths: Mapping[str, int]) -> int:
    """Return the target tokens of one pretraining batch, by which T5 divides the loss in finetuning too.

    A loss on another scale would meet Adam's moments and the z-loss as they were in pretraining.

    Args:
      checkpoint: the pretrained checkpoint; what it says of its own run comes first.
      batch: sequences of a pretraining batch, where the checkpoint says nothing.
      lengths: pretraining's {'inputs': tokens, 'targets': tokens}, likewise.
    """
    found = _record(checkpoint)
    targets = lengths["targets"]
    recorded = bool(found and found.batch_size and found.targets_length)
    if found and found.batch_size and found.targets_length:
        batch, targets = found.batch_size, found.targets_length
    _say(f"the loss is divided by {batch * targets}: pretraining's {batch} sequences x {targets} target tokens, {'as the checkpoint says' if recorded else 'as published for these weights'}")
    return batch * targets


def scale_attn_logits(checkpoint: str | None, *, otherwise: bool) -> bool:
    """Return whether attention's logits are divided by the root of the head's size, as the checkpoint's were.

    Args:
      checkpoint: where the weights come from; None: from nothing.
      otherwise: the answer for weights from nothing.

    Public T5, mT5 and byT5 weights say nothing of themselves and need False: T5 folds the division into the weights.
    """
    if not checkpoint:
        return otherwise
    found = _record(checkpoint)
    scaled = bool(found and found.scale_attn_logits)
    _say(f"attention's logits are {'divided by the root of the head size' if scaled else 'not divided'}: {named(checkpoint)} {'says so' if found else 'has no record, so it is taken for public weights'}")
    return scaled
