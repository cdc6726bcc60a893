"""Layers of GPT-NeoX that Praxis lacks."""

from __future__ import annotations

from typing import Any

from praxis import layers, py_utils
from praxis.layers import activations


class ExactGELU(activations.GELU):
    """The Gaussian error linear unit by the error function. Praxis' GELU approximates it."""

    approximate: bool = False


class ParallelTransformer(layers.Transformer):
    """A layer in which attention and MLP read the same input, each through a norm of its own.

    The norms are before attention and MLP, and there is no cross-attention. Parameters are those of
    the base class.
    """

    def __call__(
        self,
        inputs: Any,
        paddings: Any,
        attention_mask: Any,
        cross_inputs: Any = None,
        cross_attention_mask: Any = None,
        segment_pos: Any = None,
        segment_ids: Any = None,
    ) -> tuple[Any, Any]:
        """Return the result of the layer, and the weights of attention.

        Args:
          inputs: [batch, length, features].
          paddings: 1 for padding, [batch, length].
          attention_mask: Added to the logits of attention.
          cross_inputs: Not used.
          cross_attention_mask: Not used.
          segment_pos: The position of each token in its example, [batch, length].
          segment_ids: Not used: the mask keeps examples apart.
        """
        del cross_inputs, cross_attention_mask, segment_ids
        normalized = self.layer_norm(inputs)
        attended, weights = self.self_attention(
            normalized,
            normalized,
            normalized,
            atten_mask=attention_mask,
            query_segment_pos=segment_pos,
            key_segment_pos=segment_pos,
        )
        # The MLP adds its own input.
        output = self.residual_dropout(attended) + self.ff_layer(inputs, paddings=paddings)
        return output, py_utils.NestedMap(self_atten=weights)

    def extend_step(
        self,
        inputs: Any,
        *,
        time_step: Any,
        segment_pos: Any = None,
        attention_mask: Any,
        cross_attention_mask: Any = None,
    ) -> Any:
        """Return the result of one step of decoding with a cache.

        Args:
          inputs: [batch, features], or [batch, length, features].
          time_step: The number of the step.
          segment_pos: The position of each token in its example; None: the step.
          attention_mask: Added to the logits of attention.
          cross_attention_mask: Not used.
        """
        del cross_attention_mask
        attended = self.self_attention.extend_step(
            self.layer_norm(inputs),
            atten_mask=attention_mask,
            time_step=time_step,
            segment_pos=segment_pos,
        )
        mlp_output = self.ff_layer.extend_step(inputs, time_step=time_step)
        return self.residual_dropout(attended) + mlp_output
