from __future__ import annotations

import pytest

from rosetta.bench import modes
from tests.support import errors


def test_words_are_joined_and_bfloat16_is_the_default() -> None:
    assert modes.parse_mode("fp8+fused").fields == {
        "dtype": "bfloat16",
        "fp8": "xla",
        "fuse_qkv": True,
    }
    assert modes.parse_mode("f32+transposed").fields == {
        "dtype": "float32",
        "transpose_batch_sequence": True,
    }


@pytest.mark.parametrize("name", ["", "fp9", "fp8+", "fp8 fused"])
def test_unknown_words_are_refused_with_the_known_ones(name: str) -> None:
    with errors.expect_user_error(errors.UNKNOWN, where="--modes", remedy="transposed"):
        modes.parse_mode(name)


def test_mfu_is_of_the_peak_of_what_multiplies() -> None:
    assert [modes.parse_mode(name).arithmetic for name in ("bf16", "f32", "fp8+fused")] == [
        "bfloat16",
        "float32",
        "fp8",
    ]


@pytest.mark.parametrize(
    ("name", "platform", "capability", "reason"),
    [
        ("fp8", "gpu", (8, 0), "FP8 needs compute capability 8.9, this GPU has 8.0"),
        ("fp8", "gpu", (8, 9), ""),
        ("fp8", "gpu", (10, 0), ""),
        ("fp8", "cpu", (0, 0), ""),
        ("cudnn", "cpu", (0, 0), "cuDNN needs a GPU"),
        (
            "cudnn",
            "gpu",
            (7, 5),
            "cuDNN's attention needs compute capability 8.0, this GPU has 7.5",
        ),
        ("fused+cudnn", "gpu", (8, 0), ""),
        ("bf16", "cpu", (0, 0), ""),
    ],
)
def test_what_a_device_cannot_do_has_a_reason(
    name: str, platform: str, capability: tuple[int, int], reason: str
) -> None:
    assert modes.explain_unsupported_mode(modes.parse_mode(name), platform, capability) == reason


def test_sizes_are_those_of_the_gin_files() -> None:
    assert modes.list_sizes() == ("tiny", "small", "base", "large", "xl", "xxl")
    assert modes.read_size_fields("large") == {
        "vocab_size": 32128,
        "mlp_activations": ("gelu", "linear"),
        "logits_via_embedding": False,
        "emb_dim": 1024,
        "num_heads": 16,
        "num_encoder_layers": 24,
        "num_decoder_layers": 24,
        "head_dim": 64,
        "mlp_dim": 2816,
    }


def test_unknown_size_is_refused_with_the_known_ones() -> None:
    with errors.expect_user_error(
        errors.UNKNOWN, where="--size", value="../small", remedy=("tiny", "xxl")
    ):
        modes.read_size_fields("../small")


def test_every_size_has_the_vocabulary_of_t5() -> None:
    sizes = {name: modes.read_size_fields(name)["vocab_size"] for name in modes.list_sizes()}
    assert sizes == dict.fromkeys(modes.list_sizes(), 32128)
