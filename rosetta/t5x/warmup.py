"""The default length of the learning rate's warm-up (a gin file calls it).

In pretraining, it is T5X's 10,000 steps, or a share of a shorter run. Finetuning has other numbers.
"""

from __future__ import annotations

import functools

from rosetta.core import run_folders
from rosetta.t5x.run import checkpoint_record

LONGEST_WARMUP = 10_000  # steps, in pretraining
RUN_FRACTION = 20  # in pretraining, the warm-up takes one step in 20
DEFAULT_LIMITS = {"longest": LONGEST_WARMUP, "fraction": RUN_FRACTION}


@functools.cache  # checkpoints that the run itself saves must not change the answer
def default_steps(
    total: int,
    model_dir: str | None = None,
    *,
    start: str | None = None,
    longest: int = LONGEST_WARMUP,
    fraction: int = RUN_FRACTION,
) -> int:
    """Return the steps over which the learning rate rises if WARMUP_STEPS is not set.

    A resumed run keeps the warm-up that it started with, even if its number of steps grows.
    Checkpoints without a recorded warm-up, of older releases and other programs, had the longest.

    Args:
      total: the steps of the run.
      model_dir: the folder where the run saves and from which it resumes; None or "" for none.
      start: the checkpoint_N that the run finetunes, or a folder of them; None in pretraining.
        A checkpoint of another start in the folder is not one of this run.
      longest: the steps of the warm-up in a long run.
      fraction: the warm-up of a shorter run takes one step in so many.

    Raises:
      UserError: the record of the newest checkpoint cannot be read.
    """
    shortened = min(longest, max(1, total // fraction))
    steps = run_folders.list_checkpoint_steps(model_dir) if model_dir else []
    if not steps:
        return shortened
    record = checkpoint_record.read_record(f"{model_dir}/checkpoint_{steps[-1]}")
    recorded_start = record.start if record else ""
    if start and start not in (recorded_start, recorded_start.rpartition("/")[0]):
        return shortened
    return record.warmup_steps if record and record.warmup_steps else longest
