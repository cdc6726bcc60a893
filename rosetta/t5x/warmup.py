"""How long pretraining's learning rate rises where nothing says it: T5X's 10,000 steps, or a share
of a shorter run.
"""

from __future__ import annotations

import functools

from rosetta.core import run_folders
from rosetta.t5x.run import checkpoint_record

LONGEST_WARMUP = 10_000  # steps
RUN_FRACTION = 20  # of a run, one step in so many


@functools.cache  # what a run begins with it ends with, whatever is saved there meanwhile
def default_steps(total: int, model_dir: str | None = None) -> int:
    """Return the steps over which the learning rate rises, for a run that does not set
    WARMUP_STEPS.

    A run that goes on keeps the warm-up it began with, also where it is to go on for longer.
    Checkpoints of releases that did not record it, and of other programs, had 10,000 steps.

    Args:
      total: steps of the run.
      model_dir: where the run saves, and goes on from; None or "": nowhere.
    """
    steps = run_folders.list_checkpoint_steps(model_dir) if model_dir else []
    if not steps:
        return min(LONGEST_WARMUP, max(1, total // RUN_FRACTION))
    own = checkpoint_record.read_record(f"{model_dir}/checkpoint_{steps[-1]}")
    return own.warmup_steps if own and own.warmup_steps else LONGEST_WARMUP
