"""Count the arithmetic of a training step of a Pax language model.

The count follows from the sizes of the model, so a reader can repeat it by hand. It is in model
FLOPs: a matrix product of the forward pass is 2 m n k, and the backward pass has twice as much
(Chowdhery et al. 2022, PaLM, appendix B). With LoRA the weights get no gradient, so the backward
pass of the weights has as much as the forward pass. The products with LoRA's own factors, a few in
a thousand, are left out. rosetta.core.gpus has the peaks of the GPUs, and rosetta.t5x.run.flops
says what counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a decoder.

    Attributes:
      layers: All layers.
      model_dims: The width of the model.
      hidden_dims: The width of an MLP.
      heads: The heads of queries.
      kv_heads: The heads of keys and values.
      head_dim: The width of a head.
      kernels: The kernels of an MLP: 2, or 3 in a gated MLP.
      vocabulary: The tokens of the vocabulary.
      moe_layers: The layers whose MLP is a mixture of experts.
      experts: The experts of such a layer, or 0.
      experts_per_token: The experts that each token goes through.
      moe_hidden_dims: The width of an expert.
      frozen: Whether the weights get no gradient.
    """

    layers: int
    model_dims: int
    hidden_dims: int
    heads: int
    kv_heads: int
    head_dim: int
    kernels: int
    vocabulary: int
    moe_layers: int = 0
    experts: int = 0
    experts_per_token: int = 2
    moe_hidden_dims: int = 0
    frozen: bool = False


def count_forward_flops(sizes: ModelSizes, length: int, rows: int) -> tuple[int, int]:
    """Return the FLOPs of a forward pass: those of the weights, and those of attention.

    With d = model_dims, w = heads x head_dim, u = kv_heads x head_dim, f = hidden_dims, k kernels,
    L layers of which M have experts, E experts, e of them for each token, g = moe_hidden_dims, V
    vocabulary and T length, a token costs:

      projections  L (4 d w + 4 d u)
      MLP          (L - M) 2 k d f + M (2 d E + e 2 k d g)
      logits       2 d V
      attention    L 4 w T

    Attention counts in full although it is causal, as in rosetta.t5x.run.flops.

    Args:
      sizes: The sizes of the model.
      length: The tokens of a row.
      rows: The rows of the batch.
    """
    d, head = sizes.model_dims, sizes.head_dim
    projections = sizes.layers * 4 * d * head * (sizes.heads + sizes.kv_heads)
    dense = (sizes.layers - sizes.moe_layers) * 2 * sizes.kernels * d * sizes.hidden_dims
    sparse = sizes.moe_layers * (
        2 * d * sizes.experts
        + sizes.experts_per_token * 2 * sizes.kernels * d * sizes.moe_hidden_dims
    )
    weights = projections + dense + sparse + 2 * d * sizes.vocabulary
    attention = sizes.layers * 4 * sizes.heads * head * length
    return rows * length * weights, rows * length * attention


def count_training_flops(sizes: ModelSizes, length: int, rows: int) -> int:
    """Return the FLOPs of a training step, forward and backward.

    Args:
      sizes: The sizes of the model.
      length: The tokens of a row.
      rows: The rows of the batch.
    """
    weights, attention = count_forward_flops(sizes, length, rows)
    return (2 if sizes.frozen else 3) * weights + 3 * attention


def read_model_sizes(task: Any) -> ModelSizes:
    """Return the sizes of the language model of a Paxml task.

    Args:
      task: The task, or its configuration.
    """
    lm = task.model.lm_tpl
    # The stack may be in a pipeline, and its layers may be repeated.
    stack, repeats = lm.stacked_transformer_tpl, 1
    if hasattr(stack, "pipeline_stage"):
        repeats = stack.num_pipeline_stages * (getattr(stack, "circular_repeat", 1) or 1)
        stack = stack.pipeline_stage
    if hasattr(stack, "block"):
        repeats *= stack.x_times
        stack = stack.block
    layer = stack.transformer_layer_params_tpl
    if isinstance(layer, Sequence):
        layer = layer[0]
    attention = layer.tr_atten_tpl
    width = attention.hidden_dim or stack.model_dims
    moe_layers = len(stack.moe_layers or ()) if stack.num_experts else 0
    learner = getattr(task.train, "learner", None)
    return ModelSizes(
        layers=stack.num_layers * repeats,
        model_dims=stack.model_dims,
        hidden_dims=stack.hidden_dims,
        heads=stack.num_heads,
        kv_heads=getattr(attention, "num_kv_heads", None) or stack.num_heads,
        head_dim=stack.dim_per_head or attention.dim_per_head or width // stack.num_heads,
        kernels=3 if layer.tr_fflayer_tpl.use_gated_activation else 2,
        vocabulary=lm.vocab_size,
        moe_layers=moe_layers * repeats,
        experts=stack.num_experts if moe_layers else 0,
        moe_hidden_dims=(
            (stack.moe_layer_tpl.hidden_dims or stack.hidden_dims) if moe_layers else 0
        ),
        frozen=bool(getattr(learner, "bprop_variable_inclusion", None)),
    )
