"""The rotary embedding of LLaMA 3.1, and the options of a LLaMA's rotary embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from paxml.contrib.gpu.scripts_gpu.saxml_layers import LLaMARotaryEmbedding
from praxis import pax_fiddle

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
        if position is None:
            position = jnp.arange(inputs.shape[1])[jnp.newaxis]
        rotary = RotaryEmbedding(self.max_timescale, Scaling(*self.scaling))  # type: ignore[arg-type]
        frequencies = jnp.asarray(rotary.compute_frequencies(inputs.shape[-1]), jnp.float32)
        angles = position.astype(jnp.float32)[..., jnp.newaxis] * frequencies
        sin, cos = jnp.sin(angles)[:, :, jnp.newaxis], jnp.cos(angles)[:, :, jnp.newaxis]
        even, odd = inputs[..., ::2], inputs[..., 1::2]
        turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
        outputs = turned.reshape(inputs.shape)
        return outputs.astype(self.fprop_dtype) if self.cast_as_fprop_dtype else outputs


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
