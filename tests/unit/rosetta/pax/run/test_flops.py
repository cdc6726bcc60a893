from __future__ import annotations

import dataclasses

import pytest

from rosetta.pax.run import flops
from tests.support import required_modules

SMALL = flops.ModelSizes(
    layers=2,
    model_dims=8,
    hidden_dims=32,
    heads=2,
    kv_heads=2,
    head_dim=4,
    kernels=2,
    vocabulary=10,
)


def test_a_token_by_hand() -> None:
    # Of a layer, each product m n k with its 2: q, k, v and out 8x8; MLP 8x32 and 32x8. Then logits 8x10.
    weights = 2 * (4 * 2 * 8 * 8 + 2 * 2 * 8 * 32) + 2 * 8 * 10
    # Scores and what is made of them: each of 2 heads, 4 wide, with each of 5 tokens.
    attention = 2 * (2 * 2 * 2 * 4 * 5)
    assert flops.count_forward_flops(SMALL, 5, 3) == (15 * weights, 15 * attention)
    assert flops.count_training_flops(SMALL, 5, 3) == 3 * 15 * (weights + attention)


def test_fewer_heads_of_keys_and_values() -> None:
    shared = dataclasses.replace(SMALL, kv_heads=1)
    assert flops.count_forward_flops(SMALL, 1, 1)[0] - flops.count_forward_flops(shared, 1, 1)[
        0
    ] == 2 * 2 * (2 * 8 * 4)  # two layers, k and v, half as wide


def test_experts_by_hand() -> None:
    sparse = dataclasses.replace(SMALL, kernels=3, moe_layers=1, experts=4, moe_hidden_dims=16)
    dense = 2 * 3 * 8 * 32
    routed = 2 * 8 * 4 + 2 * (2 * 3 * 8 * 16)  # the router, then two experts
    assert (
        flops.count_forward_flops(sparse, 1, 1)[0]
        == 2 * (4 * 2 * 8 * 8) + dense + routed + 2 * 8 * 10
    )


def test_weights_that_are_frozen_get_no_gradient() -> None:
    weights, attention = flops.count_forward_flops(SMALL, 5, 3)
    assert (
        flops.count_training_flops(dataclasses.replace(SMALL, frozen=True), 5, 3)
        == 2 * weights + 3 * attention
    )


def test_six_times_the_parameters_in_the_large() -> None:
    big = flops.ModelSizes(
        layers=96,
        model_dims=12288,
        hidden_dims=4 * 12288,
        heads=96,
        kv_heads=96,
        head_dim=128,
        kernels=2,
        vocabulary=50257,
    )
    assert flops.count_training_flops(big, 2048, 1) / 2048 == pytest.approx(6 * 174.6e9, rel=0.05)


class TestExperiments:
    @pytest.fixture(autouse=True)
    def paxml(self) -> None:
        required_modules.need_modules("paxml")

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            (
                "Synthetic126M",
                {
                    "layers": 12,
                    "model_dims": 768,
                    "hidden_dims": 3072,
                    "heads": 12,
                    "kv_heads": 12,
                    "head_dim": 64,
                    "kernels": 2,
                    "vocabulary": 50304,
                    "moe_layers": 0,
                },
            ),
            ("Synthetic5B", {"layers": 24, "model_dims": 4096, "heads": 32, "head_dim": 128}),
            ("Synthetic175B", {"layers": 96, "vocabulary": 50257}),
            (
                "SyntheticLLaMA70B",
                {
                    "layers": 80,
                    "kv_heads": 8,
                    "heads": 64,
                    "kernels": 3,
                    "hidden_dims": 28672,
                    "frozen": False,
                },
            ),
            (
                "SyntheticGLaM126M64E",
                {
                    "layers": 12,
                    "moe_layers": 6,
                    "experts": 64,
                    "moe_hidden_dims": 3072,
                    "kernels": 3,
                    "head_dim": 64,
                },
            ),
            (
                "SyntheticGLaM64B64E",
                {
                    "layers": 64,
                    "moe_layers": 32,
                    "experts": 64,
                    "moe_hidden_dims": 32768,
                    "head_dim": 128,
                },
            ),
        ],
    )
    def test_sizes_are_read_off_the_task(self, name: str, shape: dict[str, int]) -> None:
        from rosetta.pax import configs

        found = dataclasses.asdict(flops.read_model_sizes(getattr(configs, name)().task()))
        assert {field: found[field] for field in shape} == shape

    def test_lora_freezes_the_weights(self) -> None:
        from rosetta.pax import configs

        experiment = configs.SyntheticLLaMA7B()
        experiment.USE_LORA = True
        assert flops.read_model_sizes(experiment.task()).frozen
