"""What one training step of a T5 is: its arithmetic, and the loss that is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core import gpus
from rosetta.health.progress import StepWork
from rosetta.t5x.run import flops

if TYPE_CHECKING:
    from collections.abc import Mapping


def describe_work(
    config: Any, shapes: Mapping[str, tuple[int, ...]], devices: list[Any]
) -> StepWork:
    """Return what one step over a global batch of these array shapes is, for a T5Config."""
    batch, targets = shapes["decoder_target_tokens"]
    inputs = shapes["encoder_input_tokens"][1] if "encoder_input_tokens" in shapes else 0
    kind = "fp8" if config.fp8 != "off" else str(config.dtype)
    return StepWork(
        flops.count_train_flops(config, inputs, targets, batch),
        batch * (inputs + targets),
        len(devices),
        gpus.find_peak_flops(devices[0].device_kind, kind),
    )


def compute_token_loss(values: Mapping[str, float], factor: Any) -> float | None:
    """Return the loss per target token that is not padding, of T5X's metrics.

    Args:
      values: metric -> its value over the period.
      factor: the model's loss_normalizing_factor, by which T5X's own numbers are divided: a number,
        None for 1, or the name of a mean, whose loss is already one.
    """
    if factor is None or isinstance(factor, (int, float)):
        found = values.get("loss_per_nonpadding_target_token")
        return None if found is None else found * (factor or 1)
    return values.get("loss")
