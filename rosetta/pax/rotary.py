"""Rotary embeddings that Praxis lacks: those of LLaMA 3.1 and of GPT-NeoX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from paxml.contrib.gpu.scripts_gpu.saxml_layers import LLaMARotaryEmbedding
from praxis import pax_fiddle
from praxis.layers import embedding_softmax

from rosetta.core.errors import INVALID, UserError
from rosetta.nn.rotary_positions import RotaryEmbedding, Scaling

if TYPE_CHECKING:
    from collections.abc import Sequence


class ScaledRotaryEmbedding(LLaMARotaryEmbedding):
    """LLaMA's rotary embedding with the scaled frequencies of LLaMA 3.1.

    Neighbours, the features 2i and 2i + 1 of a head, are turned together.

    Attributes:
      scaling: The numbers of a rosetta.nn.rotary_positions.Scaling, in the order of its
        fields.
    """

    scaling: tuple[float, ...] = ()

    def __call__(self, inputs: jax.Array, position: jax.Array | None = None) -> jax.Array:
        """Return the inputs, turned by the angles of their positions.

        Args:
          inputs: Queries or keys [batch, length, heads, depth].
          position: The position of each token, [batch, length]; None: 0, 1, 2 and so on.
        """
        rotary = RotaryEmbedding(self.max_timescale, Scaling(*self.scaling))  # type: ignore[arg-type]
        sin, cos = _compute_angles(rotary, inputs.shape[-1], inputs, position)
        even, odd = inputs[..., ::2], inputs[..., 1::2]
        turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
        outputs = turned.reshape(inputs.shape)
        return outputs.astype(self.fprop_dtype) if self.cast_as_fprop_dtype else outputs


class PartialRotaryEmbedding(embedding_softmax.RotaryPositionalEmbedding):
    """GPT-NeoX's rotary embedding, which turns the first features of a head and keeps the others.

    The first half of the turned features is turned with the second half.

    Attributes:
      fraction: The share of the features that are turned.
    """

    fraction: float = 1.0

    def __call__(self, inputs: jax.Array, position: jax.Array | None = None) -> jax.Array:
        """Return the inputs, turned by the angles of their positions.

        Args:
          inputs: Queries or keys [batch, length, heads, depth].
          position: The position of each token, [batch, length]; None: 0, 1, 2 and so on.
        """
        width = int(inputs.shape[-1] * self.fraction)
        rotary = RotaryEmbedding(self.max_timescale)
        sin, cos = _compute_angles(rotary, width, inputs, position)
        first, second = inputs[..., : width // 2], inputs[..., width // 2 : width]
        turned = [first * cos - second * sin, second * cos + first * sin]
        outputs = jnp.concatenate([*turned, inputs[..., width:]], axis=-1)
        return outputs.astype(self.fprop_dtype) if self.cast_as_fprop_dtype else outputs


def _compute_angles(
    rotary: RotaryEmbedding, width: int, inputs: jax.Array, position: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Return the sines and cosines [batch or 1, length, 1, width / 2] of the angles.

    Args:
      rotary: The rotary embedding.
      width: The number of features that are turned.
      inputs: Queries or keys [batch, length, heads, depth].
      position: The position of each token, [batch, length]; None: 0, 1, 2 and so on.
    """
    if position is None:
        position = jnp.arange(inputs.shape[1])[jnp.newaxis]
    frequencies = jnp.asarray(rotary.compute_frequencies(width), jnp.float32)
    angles = position.astype(jnp.float32)[..., jnp.newaxis, jnp.newaxis] * frequencies
    return jnp.sin(angles), jnp.cos(angles)


def configure_partial_embedding(base: float, fraction: float, head_dim: int) -> Any:
    """Return the configuration of GPT-NeoX's rotary embedding.

    Args:
      base: The base of the wavelengths.
      fraction: The share of the features that are turned.
      head_dim: The features of a head.

    Raises:
      UserError: The share is not that of an even number of features.
    """
    width = int(head_dim * fraction)
    if not 0 < fraction <= 1 or width < 2 or width % 2:
        raise UserError(
            f"{fraction} of the {head_dim} features of a head is not an even number",
            "ROTARY_FRACTION",
            "give a number above 0 and at most 1, such as 0.25",
            kind=INVALID,
            value=fraction,
        )
    return pax_fiddle.Config(PartialRotaryEmbedding, max_timescale=base, fraction=fraction)


def configure_rotary_embedding(base: float, scaling: Sequence[float] | None) -> Any:
    """Return the configuration of a LLaMA's rotary embedding.

    Args:
      base: The base of the wavelengths.
      scaling: The four numbers of LLaMA 3.1's scaling, or None.

    Raises:
      UserError: The numbers are not those of a scaling.
    """
    if scaling is None:
        return pax_fiddle.Config(LLaMARotaryEmbedding, max_timescale=base)
    numbers = tuple(scaling)
    if len(numbers) != 4:
        raise UserError(
            f"{list(numbers)} does not have four numbers",
            "ROPE_SCALING",
            "give the factor, the low and the high factor of the frequencies, and the original "
            "length, for example [8,1,4,8192]",
            kind=INVALID,
        )
    Scaling(*numbers).check("ROPE_SCALING")  # type: ignore[arg-type]
    return pax_fiddle.Config(ScaledRotaryEmbedding, max_timescale=base, scaling=numbers)
