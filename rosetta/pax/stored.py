"""What a run's own checkpoints hold beside a plain model's variables, against what the run it goes on as will want of them."""

from __future__ import annotations

from pathlib import Path

from rosetta.errors import UserError
from rosetta.launch import folders

_PARTS = (("FP8 state", "mdl_vars.*_amax_history"), ("LoRA's kernels", "mdl_vars.*lora_a"))


def agree(folder: str, *, fp8: bool, lora: bool) -> None:
    """Check that a run can go on from its folder's newest checkpoint; one that is not on this machine, or has none, is taken to be fine.

    Args:
      folder: of the run (job_log_dir).
      fp8: whether it computes in FP8, and so has state.
      lora: whether it trains low-rank adaptations.

    Raises:
      UserError: the checkpoint lacks what the run wants, or has more.
    """
    steps = [(step, each) for each in Path(folder, "checkpoints").glob("checkpoint_*") if (step := folders.step_of(each.name)) is not None]
    if "://" in folder or not steps:
        return
    newest = max(steps)[1]
    for (what, pattern), wanted in zip(_PARTS, (fp8, lora), strict=True):
        if any((newest / "state").glob(pattern)) != wanted:
            has = "has no" if wanted else "has"
            do = f'go on with the switches it was begun with, or begin another folder with --fdl.CHECKPOINT_RESTORE_PATH="{folder}"'
            raise UserError(f"{newest.name} {has} {what}, and the run would {'have some' if wanted else 'have none'}", folder, do)
