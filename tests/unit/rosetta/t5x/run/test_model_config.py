"""What a T5Config refuses, in one line that names the field, and what it makes of types."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rosetta.core.errors import UserError
from rosetta.t5x.run.model_config import DTYPES, T5Config
from tests.support import required_modules


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"fp8": "e4m3"}, "fp8 is 'e4m3'"),
        ({"attention": "flash"}, "attention is 'flash'"),
        ({"remat": "some"}, "remat is 'some'"),
        ({"logits_dtype": "float16"}, "logits_dtype"),
        ({"dtype": "float64"}, "dtype is 'float64'"),
        ({"mlp_activations": ("gleu",)}, "'gleu'"),
        ({"mlp_activations": ()}, "none"),
        ({"mlp_activations": "gelu"}, "mlp_activations is 'gelu'"),
        ({"mlp_activations": None}, "mlp_activations is None"),
        ({"dropout_rate": 1.0}, "dropout_rate is 1.0"),
        ({"dropout_rate": "0.1"}, "dropout_rate is '0.1'"),
        ({"dropout_rate": None}, "dropout_rate is None"),
        ({"num_heads": 0}, "num_heads is 0; give a whole number from 1 on"),
        ({"num_heads": "4"}, "num_heads is '4'"),
        ({"emb_dim": None}, "emb_dim is None"),
        ({"head_dim": 16.0}, "head_dim is 16.0"),
        ({"num_encoder_layers": -1}, "num_encoder_layers is -1; give a whole number from 0 on"),
        ({"num_decoder_layers": 0}, "num_decoder_layers is 0"),
        ({"vocab_size": "128"}, "vocab_size is '128'"),
        ({"loss_chunks": 1000}, "loss_chunks is 1000"),
        ({"loss_chunks": -1}, "loss_chunks is -1"),
        ({"loss_chunks": 2.0}, "loss_chunks is 2.0"),
        ({"attention": "te", "scan_layers": True}, "scanned"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as problem:
        T5Config(**{"vocab_size": 128, **wrong})
    assert says in str(problem.value)
    assert problem.value.where == f"T5Config.{list(wrong)[-1]}"
    assert "\n" not in str(problem.value)


def test_a_list_of_activations_is_kept_as_a_tuple_and_no_encoder_is_one() -> None:
    assert T5Config(
        8,
        mlp_activations=["gelu", "linear"],  # type: ignore[arg-type]
        num_encoder_layers=0,
    ).mlp_activations == ("gelu", "linear")


@pytest.mark.parametrize("name", DTYPES)
def test_a_type_is_kept_as_its_name(name: str) -> None:
    jnp = required_modules.need("jax", "jax.numpy")
    made = [T5Config(8, dtype=each) for each in (name, getattr(jnp, name), jnp.dtype(name))]
    assert [each.dtype for each in made] == [name] * 3
    assert len(set(made)) == 1
    assert dataclasses.replace(made[1]) == made[0]
