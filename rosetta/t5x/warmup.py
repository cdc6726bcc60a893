"""The default length of the learning rate's warm-up in pretraining (a gin file calls it).

It is T5X's 10,000 steps, or a share of a shorter run.
"""

from __future__ import annotations

import functools

from rosetta.core import run_folders
from rosetta.t5x.run import checkpoint_record

LONGEST_WARMUP = 10_000  # steps
RUN_FRACTION = 20  # the warm-up takes one step in 20


@functools.cache  # checkpoints that the run itself saves must not change the answer
def default_steps(total: int, model_dir: str | None = None) -> int:
    """Return the steps over which the learning rate rises if WARMUP_STEPS is not set.

    A resumed run keeps the warm-up that it started with, even if its number of steps grows.
    Checkpoints without a recorded warm-up, of older releases and other programs, had 10,000 steps.

    Args:
      total: the steps of the run.
      model_dir: the folder where the run saves and from which it resumes; None or "" for none.

    Raises:
      UserError: the record of the newest checkpoint cannot be read.
    """
    steps = run_folders.list_checkpoint_steps(model_dir) if model_dir else []
    if not steps:
        return min(LONGEST_WARMUP, max(1, total // RUN_FRACTION))
    record = checkpoint_record.read_record(f"{model_dir}/checkpoint_{steps[-1]}")
    return record.warmup_steps if record and record.warmup_steps else LONGEST_WARMUP
