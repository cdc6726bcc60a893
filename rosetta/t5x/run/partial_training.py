"""The gin bindings for FREEZE and the variables of LoRA: which parameters a run trains."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError

if TYPE_CHECKING:
    from rosetta.t5x.run.settings import Settings

_LORA_DETAILS = ("LORA_ALPHA", "LORA_TARGETS")


def make_partial_training_bindings(run: Settings) -> dict[str, object]:
    """Return the bindings; what no variable sets stays as in the gin files.

    Args:
      run: the settings of the run.

    Raises:
      UserError: a pattern of FREEZE is not a regular expression, LORA_RANK is missing, or the run
        has no trained weights to adapt.
    """
    bindings: dict[str, object] = {}
    if freeze := run.values["FREEZE"]:
        check_patterns(freeze)
        bindings["FREEZE"] = freeze
    rank = run.values["LORA_RANK"]
    if rank is None:
        for name in _LORA_DETAILS:
            if run.variables.get(name):
                raise UserError(
                    "only a run with LoRA adapters reads it",
                    f"{name}={run.variables[name]}",
                    f"set LORA_RANK too, or leave {name} out",
                    kind=CONFLICT,
                    value=run.variables[name],
                )
        return bindings
    if not run.finetune and not run.variables.get("INITIAL_CHECKPOINT_PATH"):
        raise UserError(
            "LoRA adapts trained weights, and pretraining starts from random ones",
            f"LORA_RANK={rank}",
            "name the weights: INITIAL_CHECKPOINT_PATH",
            kind=MISSING,
            value=rank,
        )
    bindings["LORA_RANK"] = rank
    if run.values["LORA_ALPHA"] is not None:
        bindings["LORA_ALPHA"] = run.values["LORA_ALPHA"]
    if run.values["LORA_TARGETS"]:
        bindings["LORA_TARGETS"] = ",".join(run.values["LORA_TARGETS"])
    if not run.finetune:
        # The checkpoint's optimizer state belongs to parameters that are frozen now.
        bindings["RESTORE_OPTIMIZER"] = False
    return bindings


def check_patterns(patterns: str) -> list[str]:
    """Return the regular expressions of a text that separates them by commas.

    Raises:
      UserError: one of them is not a regular expression.
    """
    expressions = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in expressions:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(
                f"not a valid regular expression: {error}",
                f"FREEZE={pattern}",
                "name parts of the model, as in FREEZE=encoder,token_embedder",
                kind=INVALID,
                value=pattern,
            ) from None
    return expressions
