"""The gin bindings for OPTIMIZER, WEIGHT_DECAY, and the learning rate that suits the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from rosetta.t5x.run.settings import Settings

ADAFACTOR = "adafactor"
# The binding of WEIGHT_DECAY, for the optimizers that multiply it by the learning rate.
_DECAY_BINDINGS = {
    "adamw": "optimizer.adamw.weight_decay",
    "adamw_rms": "optimizer.adamw_rms.weight_decay",
    "muon": "muon.muon.weight_decay",
}
# These optimizers multiply the learning rate by the scale of each parameter. The rates are those of
# the T5 paper, for Adafactor.
_SCALING = (ADAFACTOR, "adamw_rms")
_PRETRAINING_RATE = 0.01
_FINETUNING_RATE = 0.001


def make_optimizer_bindings(run: Settings) -> dict[str, object]:
    """Return the bindings of a run's optimizer; what no variable sets stays as in the gin files.

    Args:
      run: the settings of the run.

    Raises:
      UserError: WEIGHT_DECAY is set for Adafactor, whose decay does not follow the learning rate.
    """
    decay, optimizer = run.values["WEIGHT_DECAY"], run.values["OPTIMIZER"] or "adamw"
    if decay is not None and optimizer not in _DECAY_BINDINGS:
        raise UserError(
            "Adafactor does not multiply the weight decay by the learning rate",
            f"WEIGHT_DECAY={decay}",
            "leave it out, or set Adafactor's own decay of each step in ROSETTA_GIN: "
            "adafactor.Adafactor.weight_decay_rate",
            kind=CONFLICT,
            value=decay,
        )
    bindings: dict[str, object] = {}
    if decay is not None:
        bindings[_DECAY_BINDINGS[optimizer]] = decay
    if optimizer in _SCALING and run.values["LEARNING_RATE"] is None:
        bindings["LEARNING_RATE"] = _FINETUNING_RATE if run.finetune else _PRETRAINING_RATE
    return bindings
