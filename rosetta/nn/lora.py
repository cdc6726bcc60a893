"""Low-rank adapters of projections (LoRA; Hu et al. 2021, arXiv:2106.09685).

Beside a frozen kernel W [inputs, outputs], a projection has two narrow parameters that are trained,
lora_a [inputs, rank] and lora_b [rank, outputs]. Its output is

    x W + alpha / rank (x lora_a) lora_b

The initial values are those of the package peft: uniform for lora_a, and zero for lora_b, so that
an adapter changes nothing at first.
"""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning as flax_partitioning

FIRST, SECOND = "lora_a", "lora_b"  # the names of the two parameters
PARAMETER_NAMES = (FIRST, SECOND)
RANK_AXIS = "lora_rank"  # the logical name of the narrow dimension, which no mesh axis divides
# Uniform between -1 / sqrt(inputs) and 1 / sqrt(inputs).
initialize_first = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


@dataclass(frozen=True)
class Adapter:
    """The adapter of one projection.

    Attributes:
        first: lora_a, float32 [inputs, rank].
        second: lora_b, float32 [rank, outputs].
        scale: alpha / rank, by which the product is multiplied; a number or an array [].
    """

    first: Any
    second: Any
    scale: Any

    def divide(self, divisor: Any) -> Adapter:
        """Return the adapter whose output is divided by a number."""
        return dataclasses.replace(self, scale=self.scale / divisor)


def declare_adapter(
    inputs: int, outputs: int, axes: tuple[str, str], rank: int, alpha: float
) -> Adapter:
    """Declare the two parameters of the Flax module that calls this, and return the adapter.

    Args:
        inputs: The number of input features.
        outputs: The number of output features.
        axes: The logical names of the dimensions of the kernel.
        rank: The narrow dimension.
        alpha: The numerator of the scale.
    """
    first = flax_partitioning.param_with_axes(
        FIRST, initialize_first, (inputs, rank), jnp.float32, axes=(axes[0], RANK_AXIS)
    )
    second = flax_partitioning.param_with_axes(
        SECOND, nn.initializers.zeros, (rank, outputs), jnp.float32, axes=(RANK_AXIS, axes[1])
    )
    return Adapter(first, second, alpha / rank)


def apply_adapter(x: Any, adapter: Adapter, dtype: Any) -> Any:
    """Return the output of an adapter, [..., outputs] in `dtype`.

    Args:
        x: [..., inputs] in `dtype`.
        adapter: The adapter.
        dtype: The type of the factors.
    """
    narrow = jnp.dot(x, adapter.first.astype(dtype)) * jnp.asarray(adapter.scale, dtype)
    return jnp.dot(narrow, adapter.second.astype(dtype))


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter, by its path "encoder/.../lora_a"."""
    return name.rpartition("/")[2] in PARAMETER_NAMES


def make_initial_value(name: str, shape: tuple[int, ...], key: Any) -> Any:
    """Return the initial value of a parameter of an adapter, float32.

    Args:
        name: Its path.
        shape: Its shape.
        key: A random key.
    """
    if name.endswith(SECOND):
        return jnp.zeros(shape, jnp.float32)
    return initialize_first(key, shape, jnp.float32)


def derive_key(key: Any, name: str) -> Any:
    """Return the random key of a parameter's initial value.

    Args:
        key: The random key of the run.
        name: The path of the parameter.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
