"""Compute what the trainer reports about a training step of a T5: its work and its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core import gpus
from rosetta.health.progress import StepWork
from rosetta.t5x.run import flops
from rosetta.t5x.run.model_config import T5Config

if TYPE_CHECKING:
    from collections.abc import Mapping


def compute_step_work(
    config: Any, shapes: Mapping[str, tuple[int, ...]], devices: list[Any]
) -> StepWork:
    """Return the FLOPs and tokens of one training step, and the devices that share this work.

    Args:
      config: the network's T5Config, or the settings of a user's own module.
      shapes: the shapes of the arrays of a global batch, by feature.
      devices: the run's devices, all of one kind.
    """
    batch_size, target_length = shapes["decoder_target_tokens"]
    input_length = 0
    if "encoder_input_tokens" in shapes:
        _, input_length = shapes["encoder_input_tokens"]
    tokens = batch_size * (input_length + target_length)
    if not isinstance(config, T5Config):
        # The FLOPs of a user's own module are not known, so no share of the peak is reported.
        return StepWork(flops=0.0, tokens=tokens, devices=len(devices), peak=None)
    dtype = "fp8" if config.fp8 != "off" else str(config.dtype)
    return StepWork(
        flops=flops.count_train_flops(config, input_length, target_length, batch_size),
        tokens=tokens,
        devices=len(devices),
        peak=gpus.find_peak_flops(devices[0].device_kind, dtype),
    )


def compute_token_loss(
    values: Mapping[str, float], factor: Any, microbatches: int = 1
) -> float | None:
    """Return the loss per target token that is not padding, or None if T5X's metrics lack it.

    Args:
      values: T5X's metrics, by their names.
      factor: the model's loss_normalizing_factor: a number, None for 1, or the name of one of
        T5X's ways to take the mean, such as "NUM_REAL_TARGET_TOKENS". T5X divides its metrics by
        a number. With a name, T5X's "loss" is taken as the sum of the losses per token of the
        microbatches.
      microbatches: the number of microbatches of a step.
    """
    if factor is None or isinstance(factor, (int, float)):
        loss_over_factor = values.get("loss_per_nonpadding_target_token")
        return None if loss_over_factor is None else loss_over_factor * (factor or 1)
    return values["loss"] / microbatches if "loss" in values else None
