"""A stack computes the same whether its layers are looped over or not; each drops others than the one before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from rosetta.nn import dropout
from rosetta.t5x import layer_stack
from tests.support import small_t5

LAYERS, WIDTH = 3, 64


class Mark(nn.Module):
    """A layer that writes down what it keeps: one bit further for each layer."""

    config: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return 2 * x + dropout.draw_masks(self, 0.5, x.shape[0], {"all": WIDTH})["all"]


class Stack(nn.Module):
    config: Any
    count: int = LAYERS

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return layer_stack.apply_layers(self, Mark, self.config, self.count, x)


@pytest.mark.parametrize(
    "switches",
    [{}, {"scan_layers": True}, {"remat": "full"}, {"scan_layers": True, "remat": "full"}],
    ids=str,
)
def test_each_layer_and_row_drops_others_and_all_follow_the_key(switches: dict[str, Any]) -> None:
    made = Stack(small_t5.make_config(**switches))

    def kept(seed: int) -> Any:
        marks = made.apply(
            {}, jnp.zeros((2, WIDTH), jnp.int32), rngs={"dropout": jax.random.key(seed)}
        )
        return (np.asarray(marks)[None] >> np.arange(LAYERS)[:, None, None] & 1).reshape(
            -1, WIDTH
        )  # layers times rows

    one, again, other = kept(0), kept(0), kept(1)
    np.testing.assert_array_equal(one, again)
    both = np.concatenate([one, other])
    for index, each in enumerate(both):
        assert 0.2 < each.mean() < 0.8
        for before in both[:index]:
            assert 0.2 < (each != before).mean() < 0.8


@pytest.mark.parametrize("scanned", [False, True])
def test_a_stack_of_no_layers_is_its_input(scanned: bool) -> None:
    x = jnp.ones((2, WIDTH), jnp.int32)
    np.testing.assert_array_equal(
        Stack(small_t5.make_config(scan_layers=scanned), 0).apply({}, x), x
    )
