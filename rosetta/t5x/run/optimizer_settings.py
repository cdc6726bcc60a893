"""The gin bindings for OPTIMIZER, WEIGHT_DECAY, and the learning rate that suits the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from rosetta.t5x.run.settings import Settings

ADAFACTOR = "adafactor"
# The rates of the T5 paper. Adafactor multiplies them by the scale of each parameter.
_PRETRAINING_RATE = 0.01
_FINETUNING_RATE = 0.001


def make_optimizer_bindings(run: Settings) -> dict[str, object]:
    """Return the bindings of a run's optimizer; what no variable sets stays as in the gin files.

    Args:
      run: the settings of the run.

    Raises:
      UserError: WEIGHT_DECAY is set for Adafactor, whose decay does not follow the learning rate.
    """
    decay = run.values["WEIGHT_DECAY"]
    if run.values["OPTIMIZER"] != ADAFACTOR:
        return {} if decay is None else {"optimizer.adamw.weight_decay": decay}
    if decay is not None:
        raise UserError(
            "only AdamW multiplies the weight decay by the learning rate",
            f"WEIGHT_DECAY={decay}",
            "leave it out, or set Adafactor's own decay of each step in ROSETTA_GIN: "
            "adafactor.Adafactor.weight_decay_rate",
            kind=CONFLICT,
            value=decay,
        )
    if run.values["LEARNING_RATE"] is not None:
        return {}
    return {"LEARNING_RATE": _FINETUNING_RATE if run.finetune else _PRETRAINING_RATE}
