"""What a T5Config refuses, in one line that names the field, and what it makes of types."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rosetta.core.variables import choices
from rosetta.t5x.run.model_config import T5Config
from tests.support import errors, required_modules


@pytest.mark.parametrize(
    ("wrong", "kind", "facts"),
    [
        ({"fp8": "e4m3"}, errors.INVALID, {"where": "T5Config.fp8", "value": "e4m3"}),
        ({"attention": "flash"}, errors.INVALID, {"where": "T5Config.attention", "value": "flash"}),
        ({"remat": "some"}, errors.INVALID, {"where": "T5Config.remat", "value": "some"}),
        (
            {"logits_dtype": "float16"},
            errors.INVALID,
            {"where": "T5Config.logits_dtype", "value": "float16"},
        ),
        ({"dtype": "float64"}, errors.INVALID, {"where": "T5Config.dtype", "value": "float64"}),
        (
            {"mlp_activations": ("gleu",)},
            errors.INVALID,
            {"where": "T5Config.mlp_activations", "names": "gleu"},
        ),
        ({"mlp_activations": ()}, errors.INVALID, {"where": "T5Config.mlp_activations"}),
        (
            {"mlp_activations": "gelu"},
            errors.INVALID,
            {"where": "T5Config.mlp_activations", "value": "gelu"},
        ),
        ({"mlp_activations": None}, errors.INVALID, {"where": "T5Config.mlp_activations"}),
        ({"dropout_rate": 1.0}, errors.INVALID, {"where": "T5Config.dropout_rate", "value": 1.0}),
        (
            {"dropout_rate": "0.1"},
            errors.INVALID,
            {"where": "T5Config.dropout_rate", "value": "0.1"},
        ),
        ({"dropout_rate": None}, errors.INVALID, {"where": "T5Config.dropout_rate"}),
        (
            {"num_heads": 0},
            errors.INVALID,
            {"where": "T5Config.num_heads", "value": 0, "remedy": "1"},
        ),
        ({"num_heads": "4"}, errors.INVALID, {"where": "T5Config.num_heads", "value": "4"}),
        ({"emb_dim": None}, errors.INVALID, {"where": "T5Config.emb_dim"}),
        ({"head_dim": 16.0}, errors.INVALID, {"where": "T5Config.head_dim", "value": 16.0}),
        (
            {"num_encoder_layers": -1},
            errors.INVALID,
            {"where": "T5Config.num_encoder_layers", "value": -1, "remedy": "0"},
        ),
        (
            {"num_decoder_layers": -1},
            errors.INVALID,
            {"where": "T5Config.num_decoder_layers", "value": -1},
        ),
        ({"vocab_size": "128"}, errors.INVALID, {"where": "T5Config.vocab_size", "value": "128"}),
        (
            {"relative_bias": "layers"},
            errors.INVALID,
            {"value": "layers", "remedy": ("stack", "layer")},
        ),
        ({"loss_chunks": 1000}, errors.INVALID, {"where": "T5Config.loss_chunks", "value": 1000}),
        ({"loss_chunks": -1}, errors.INVALID, {"where": "T5Config.loss_chunks", "value": -1}),
        ({"loss_chunks": 2.0}, errors.INVALID, {"where": "T5Config.loss_chunks", "value": 2.0}),
        (
            {"attention": "te", "scan_layers": True},
            errors.CONFLICT,
            {"where": "T5Config.scan_layers"},
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], kind: str, facts: dict[str, Any]) -> None:
    with errors.expect_user_error(kind, **facts) as problem:
        T5Config(**{"vocab_size": 128, **wrong})
    assert problem.value.where == f"T5Config.{list(wrong)[-1]}"
    assert "\n" not in str(problem.value)


def test_a_list_of_activations_is_kept_as_a_tuple_and_no_encoder_is_one() -> None:
    assert T5Config(
        8,
        mlp_activations=["gelu", "linear"],  # type: ignore[arg-type]
        num_encoder_layers=0,
    ).mlp_activations == ("gelu", "linear")


@pytest.mark.parametrize("name", choices.T5X_PRECISIONS)
def test_a_type_is_kept_as_its_name(name: str) -> None:
    jnp = required_modules.need_modules("jax", "jax.numpy")
    made = [T5Config(8, dtype=each) for each in (name, getattr(jnp, name), jnp.dtype(name))]
    assert [each.dtype for each in made] == [name] * 3
    assert len(set(made)) == 1
    assert dataclasses.replace(made[1]) == made[0]
