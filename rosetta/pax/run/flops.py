"""How much arithmetic a training step of a Pax language model is; rosetta.core.gpus has the
GPUs' peaks, rosetta.t5x.run.flops says what counts.

The count is by the sizes of the model, so that it stays one by hand: model FLOPs, each matrix
product of the forward pass as 2 m n k, twice as much for the backward pass (Chowdhery et al. 2022,
PaLM, appendix B). With LoRA the weights get no gradient, which leaves one of those two; its own
factors, a few in a thousand, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelSizes:
    """A decoder's sizes.

    Attributes:
      layers, moe_layers: all, and those of them whose MLP is one of experts.
      kernels: of an MLP: 2, or 3 where it is gated.
      experts: 0 without; experts_per_token: that each token goes through.
      frozen: whether weights get no gradient.
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


def count_forward_flops(shape: ModelSizes, length: int, rows: int) -> tuple[int, int]:
    """Return FLOPs of a forward pass over `rows` of `length` tokens: of weights, and of attention.

    By d = model_dims, w = heads x head_dim, u = kv_heads x head_dim, f = hidden_dims, k kernels, L
    layers of which M have experts, E experts, e of them for each token, g = moe_hidden_dims, V
    vocabulary, T length, for each token:
      projections  L (4 d w + 4 d u)
      MLP          (L - M) 2 k d f + M (2 d E + e 2 k d g)
      logits       2 d V
      attention    L 4 w T
    Attention counts in full though it is causal, as in rosetta.t5x.run.flops.
    """
    d, head = shape.model_dims, shape.head_dim
    projections = shape.layers * 4 * d * head * (shape.heads + shape.kv_heads)
    dense = (shape.layers - shape.moe_layers) * 2 * shape.kernels * d * shape.hidden_dims
    sparse = shape.moe_layers * (
        2 * d * shape.experts
        + shape.experts_per_token * 2 * shape.kernels * d * shape.moe_hidden_dims
    )
    weights = projections + dense + sparse + 2 * d * shape.vocabulary
    attention = shape.layers * 4 * shape.heads * head * length
    return rows * length * weights, rows * length * attention


def count_training_flops(shape: ModelSizes, length: int, rows: int) -> int:
    """Return FLOPs of a training step: forward and backward."""
    weights, attention = count_forward_flops(shape, length, rows)
    return (2 if shape.frozen else 3) * weights + 3 * attention


def read_model_sizes(task: Any) -> ModelSizes:
    """Return the sizes of a Paxml task's language model, from its configuration or the task
    itself.
    """
    lm = task.model.lm_tpl
    stack, times = lm.stacked_transformer_tpl, 1
    if hasattr(stack, "pipeline_stage"):
        stack, times = (
            stack.pipeline_stage,
            stack.num_pipeline_stages * (getattr(stack, "circular_repeat", 1) or 1),
        )
    if hasattr(stack, "block"):
        stack, times = stack.block, times * stack.x_times
    layer = stack.transformer_layer_params_tpl
    layer = layer[0] if isinstance(layer, Sequence) else layer
    attention = layer.tr_atten_tpl
    width = attention.hidden_dim or stack.model_dims
    head = stack.dim_per_head or attention.dim_per_head or width // stack.num_heads
    moe = len(stack.moe_layers or ()) if stack.num_experts else 0
    optimised = getattr(task.train, "learner", None)
    return ModelSizes(
        layers=stack.num_layers * times,
        model_dims=stack.model_dims,
        hidden_dims=stack.hidden_dims,
        heads=stack.num_heads,
        kv_heads=getattr(attention, "num_kv_heads", None) or stack.num_heads,
        head_dim=head,
        kernels=3 if layer.tr_fflayer_tpl.use_gated_activation else 2,
        vocabulary=lm.vocab_size,
        moe_layers=moe * times,
        experts=stack.num_experts if moe else 0,
        moe_hidden_dims=(stack.moe_layer_tpl.hidden_dims or stack.hidden_dims) if moe else 0,
        frozen=bool(getattr(optimised, "bprop_variable_inclusion", None)),
    )
