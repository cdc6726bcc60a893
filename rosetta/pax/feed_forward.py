"""Praxis' feed-forward layer with bias, GELU and their casts to FP8 in one kernel for each pass.

rosetta.pax.switches puts the layer in the place of Praxis' own if XLA computes FP8. Variables,
norms, dropout and the residual stay those of the base class. rosetta.nn.fp8_mlp computes the two
products and what is between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fiddle as fdl
from praxis import base_layer
from praxis.layers import activations, linears, transformers

from rosetta.nn import fallback_notice, fp8_mlp, mlp_kernels
from rosetta.nn.dense import Projection
from rosetta.pax import current_mesh, einsum

if TYPE_CHECKING:
    from rosetta.nn.kernel_placement import Placement

_ACTIVATION_SUMMARY_VERBOSITY = 4  # of Praxis' summary of the hidden features


class FusedFeedForward(transformers.TransformerFeedForward):
    """Praxis' TransformerFeedForward with a fused kernel.

    Attributes:
      is_asked: Whether the kernel was asked for: a line then says why XLA computes a call, and a
        CPU interprets the kernel.
    """

    is_asked: bool = False

    def _compute_ffns(self, inputs: Any, paddings: Any, ap_ff0: Any = None) -> Any:
        """Return the result of the two products.

        Args:
          inputs: [batch, length, features], or [batch, features] in a step of decoding.
          paddings: 1 for padding, [batch, length, 1], or None.
          ap_ff0: What splits each dimension of the hidden features over the mesh.
        """
        placement = self._choose_placement(inputs, ap_ff0)
        if placement is None:
            return super()._compute_ffns(inputs, paddings, ap_ff0)
        weights = None
        if paddings is not None and not self.apply_padding_first:
            weights = 1.0 - paddings[..., 0]
        first, second = self.ffn_layer1, self.ffn_layer2
        outputs = fp8_mlp.apply_mlp(
            mlp_kernels.GELU,
            inputs,
            [
                _read_projection(
                    "ffn_layer1", first, first.bias.theta.b if self.has_bias else None
                ),
                _read_projection("ffn_layer2", second),
            ],
            self.fprop_dtype,
            placement,
            weights=weights,
            product_name=first.checkpoint_str,
        )
        return second.bias(outputs) if self.has_bias else outputs

    def _choose_placement(self, inputs: Any, hidden_split: Any) -> Placement | None:
        """Return where the kernels run, None if XLA's own kernels compute a call.

        Args:
          inputs: [batch, length, features], or [batch, features] in a step of decoding.
          hidden_split: What splits each dimension of the hidden features over the mesh.
        """
        if self.is_initializing():
            return None
        placement = None
        if inputs.ndim != 3:
            problem = "a step of decoding"
        elif hidden_split is None:
            problem = "the layout of the hidden features is not known"
        elif self.jax_context.summary_verbosity >= _ACTIVATION_SUMMARY_VERBOSITY:
            problem = "a summary of the hidden features"
        else:
            placement, problem = fp8_mlp.choose_placement(
                mlp_kernels.GELU,
                current_mesh.find_mesh(),
                (*inputs.shape[:-1], self.hidden_dims),
                base_layer.to_partition_spec(hidden_split, self.mesh_axis_names),
            )
        if placement is None and self.is_asked:
            warn_of_fallback(problem)
        on_cpu = placement is not None and placement.interpret
        return None if on_cpu and not self.is_asked else placement


def _read_projection(name: str, layer: Any, bias: Any = None) -> Projection:
    """Return the parameters and the FP8 state of one of Praxis' FeedForward layers.

    Args:
      name: The name of the layer.
      layer: The layer.
      bias: The bias that is part of the kernel, or None.
    """
    state = {key: layer.linear.einsum.theta[key] for key in einsum.STATE_NAMES}
    return Projection(layer.linear.theta.w, state, name, bias=bias)


def find_problem(template: Any) -> str:
    """Return why a configuration of a feed-forward layer cannot have the kernel; empty if it can.

    Args:
      template: The configuration. Its products are in FP8 by XLA.
    """
    if fdl.get_callable(template) is not transformers.TransformerFeedForward:
        return "another feed-forward layer"
    activation = template.activation_tpl
    is_gelu = fdl.get_callable(activation) is activations.GELU and activation.approximate
    if template.use_gated_activation or not is_gelu:
        return "the activation is not GELU by tanh without a gate"
    if template.relu_dropout_prob:
        return "dropout"
    feed_forward = template.fflayer_tpl
    classes = (fdl.get_callable(feed_forward), fdl.get_callable(feed_forward.linear_tpl))
    if classes != (linears.FeedForward, linears.Linear):
        return "LoRA adapters"
    return ""


def warn_of_fallback(problem: str) -> None:
    """Print a warning that XLA's kernels compute a feed-forward layer, and why."""
    fallback_notice.warn_once("bias and GELU by XLA's kernels instead of the fused one", problem)
