from __future__ import annotations

from types import SimpleNamespace

import pytest

from rosetta.core import gpus
from rosetta.t5x import step_metrics
from rosetta.t5x.run import flops
from rosetta.t5x.run.model_config import T5Config

CONFIG = T5Config(
    vocab_size=100,
    emb_dim=8,
    num_heads=2,
    head_dim=3,
    mlp_dim=16,
    num_encoder_layers=1,
    num_decoder_layers=2,
    dtype="bfloat16",
)


def test_the_work_of_a_step() -> None:
    shapes = {"encoder_input_tokens": (16, 5), "decoder_target_tokens": (16, 4)}
    card = SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")
    found = step_metrics.compute_step_work(CONFIG, shapes, [card, card])
    assert (found.flops, found.tokens, found.devices) == (
        flops.count_train_flops(CONFIG, 5, 4, 16),
        16 * 9,
        2,
    )
    assert found.peak == gpus.find_peak_flops(card.device_kind, "bfloat16")
    with_fp8 = step_metrics.compute_step_work(
        T5Config(**{**vars(CONFIG), "fp8": "xla"}), shapes, [card]
    )
    assert with_fp8.peak == gpus.find_peak_flops(card.device_kind, "fp8") != found.peak
    alone = step_metrics.compute_step_work(
        CONFIG, {"decoder_target_tokens": (16, 4)}, [SimpleNamespace(device_kind="cpu")]
    )
    assert (alone.tokens, alone.peak) == (64, None)


@pytest.mark.parametrize(
    ("factor", "expected"), [(None, 0.5), (1, 0.5), (8.0, 4.0), ("NUM_REAL_TARGET_TOKENS", 3.0)]
)
def test_the_loss_is_per_token_whatever_the_divisor(factor: object, expected: float) -> None:
    assert (
        step_metrics.compute_token_loss(
            {"loss_per_nonpadding_target_token": 0.5, "loss": 3.0}, factor
        )
        == expected
    )
    assert step_metrics.compute_token_loss({}, factor) is None


def test_the_loss_of_several_microbatches_is_their_mean() -> None:
    """T5X adds up the losses of the microbatches, each of which is a mean over its tokens."""
    values = {"loss": 20.0, "loss_per_nonpadding_target_token": 3.0}
    named = step_metrics.compute_token_loss(values, "NUM_REAL_TARGET_TOKENS", microbatches=2)
    assert named == 10.0
    assert step_metrics.compute_token_loss(values, 4.0, microbatches=2) == 12.0
