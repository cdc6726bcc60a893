"""The work of one training step of a T5, and its loss per token, which the trainer reports."""

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
    """Return the work of one training step: its FLOPs, its tokens, and the devices' peak.

    Args:
      config: the network's T5Config.
      shapes: the shapes of the arrays of a global batch, by feature.
      devices: the run's devices, all of one kind.
    """
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
    """Return the loss per target token that is not padding; None if T5X's metrics lack it.

    Args:
      values: T5X's metrics over a period, by their names.
      factor: the model's loss_normalizing_factor, by which T5X divides its own numbers. It is a
        number, None for 1, or the name of a mean, for which the loss is per token already.
    """
    if factor is None or isinstance(factor, (int, float)):
        divided = values.get("loss_per_nonpadding_target_token")
        return None if divided is None else divided * (factor or 1)
    return values.get("loss")
