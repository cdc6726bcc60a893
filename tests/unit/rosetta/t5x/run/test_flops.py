"""Counted by hand, and against what XLA counts for the network itself."""

from __future__ import annotations

import pytest

from rosetta.t5x.run.flops import Flops, count_forward_flops, count_train_flops
from rosetta.t5x.run.model_config import T5Config

# d 8, 2 heads of 3 (w 6), f 16, 1 encoder and 2 decoder layers, 100 tokens
TINY = T5Config(
    vocab_size=100,
    emb_dim=8,
    num_heads=2,
    head_dim=3,
    mlp_dim=16,
    num_encoder_layers=1,
    num_decoder_layers=2,
)


def test_one_sequence_by_hand() -> None:
    # 5 input tokens, 4 target tokens
    encoder = 5 * 4 * (2 * 8 * 6)  # q, k, v, out
    decoder = 2 * 4 * 4 * (2 * 8 * 6)
    across = 2 * (
        4 * 2 * (2 * 8 * 6) + 5 * 2 * (2 * 8 * 6)
    )  # q and out of the targets, k and v of the inputs
    mlp = (5 + 2 * 4) * 2 * (2 * 8 * 16)  # in and out
    # scores and weighted values: for each pair of positions 2 x 6 twice
    attention = 24 * (5 * 5 + 2 * 4 * 4 + 2 * 4 * 5)
    assert count_forward_flops(TINY, 5, 4, 1) == Flops(
        encoder + decoder + across, mlp, attention, 4 * 2 * 8 * 100
    )
    assert count_train_flops(TINY, 5, 4, 1) == 3 * (
        encoder + decoder + across + mlp + attention + 6400
    )


def test_a_gated_mlp_has_a_kernel_more() -> None:
    gated = T5Config(**{**vars(TINY), "mlp_activations": ("gelu", "linear")})
    assert count_forward_flops(gated, 5, 4, 1).mlp * 2 == count_forward_flops(TINY, 5, 4, 1).mlp * 3


def test_a_decoder_alone_reads_no_input() -> None:
    assert count_forward_flops(TINY, 0, 4, 1) == Flops(
        2 * 4 * 4 * 96, 2 * 4 * 512, 24 * 2 * 16, 6400
    )


def test_all_scales_with_the_batch() -> None:
    assert count_train_flops(TINY, 5, 4, 7) == 7 * count_train_flops(TINY, 5, 4, 1)


def test_published_size_of_t5_large() -> None:
    # 6 FLOPs a parameter and token, of what is not an embedding: encoder 302.0 M + decoder's 402.7 M and 32.9 M of logits.
    large = T5Config(
        vocab_size=32128,
        emb_dim=1024,
        num_heads=16,
        head_dim=64,
        mlp_dim=2816,
        num_encoder_layers=24,
        num_decoder_layers=24,
        mlp_activations=("gelu", "linear"),
    )
    found = count_forward_flops(large, 512, 128, 1)
    encoder, decoder, across = (
        24 * (4 * 1024**2 + 3 * 1024 * 2816),
        24 * (6 * 1024**2 + 3 * 1024 * 2816),
        24 * 2 * 1024**2,
    )
    expected = 2 * (512 * encoder + 128 * decoder + 512 * across + 128 * 1024 * 32128)
    assert found.forward - found.attention == expected


def test_xla_counts_the_same_for_the_network() -> None:
    jax = pytest.importorskip(
        "jax", reason="NOT CHECKED: needs the packages of a baked environment"
    )
    pytest.importorskip("flax", reason="NOT CHECKED: needs the packages of a baked environment")
    from rosetta.t5x.network import Transformer

    # Wide enough that what is not counted (softmax, norms, activations) is small beside the matrix products.
    config = T5Config(
        vocab_size=1024,
        emb_dim=256,
        num_heads=4,
        head_dim=64,
        mlp_dim=1024,
        num_encoder_layers=1,
        num_decoder_layers=1,
        mlp_activations=("gelu", "linear"),
        dropout_rate=0.0,
    )
    network = Transformer(config)
    tokens = [jax.ShapeDtypeStruct((2, length), "int32") for length in (48, 32, 32)]

    def forward(variables: object, *batch: object) -> object:
        return network.apply(variables, *batch, enable_dropout=False)

    variables = jax.eval_shape(
        lambda *batch: network.init(jax.random.key(0), *batch, enable_dropout=False), *tokens
    )
    counted = jax.jit(forward).lower(variables, *tokens).compile().cost_analysis()["flops"]
    assert count_forward_flops(config, 48, 32, 2).forward == pytest.approx(counted, rel=0.03)
