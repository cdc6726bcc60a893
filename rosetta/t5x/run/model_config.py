"""The hyper-parameters of a T5 and the switches by which it is computed."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from rosetta.core.errors import CONFLICT, INVALID, UserError
from rosetta.core.variables import choices

FP8_MODES = ("off", "xla", "te")
LOGITS_DTYPES = ("float32", "bfloat16")
ACTIVATIONS = (
    "linear",
    "relu",
    "gelu",
    "silu",
    "swish",
    "tanh",
    "sigmoid",
    "softplus",
    "elu",
    "leaky_relu",
)
MINIMUMS = {
    "vocab_size": 1,
    "emb_dim": 1,
    "num_heads": 1,
    "head_dim": 1,
    "mlp_dim": 1,
    "num_encoder_layers": 0,
    "num_decoder_layers": 1,
    "loss_chunks": 0,
}


def is_whole_number(value: Any, least: int) -> bool:
    """Is it a whole number from `least` on?"""
    return hasattr(value, "__index__") and operator.index(value) >= least


@dataclass(frozen=True)
class T5Config:
    """What upstream's T5Config holds, under the same names, and below it how to compute the same
    model.

    No switch changes the parameters' tree, or what the model computes beyond rounding (fp8 rounds
    coarsely; docs/reference/t5x-switches.md has the table).

    Attributes:
      vocab_size: rows of the embedding, tokens of the logits.
      dtype: of activations, and of the kernels while they are multiplied with; kept as its name.
        Parameters are float32.
      emb_dim, num_heads, head_dim, mlp_dim: widths. num_encoder_layers is not read by a
        decoder-only model.
      mlp_activations: one name of flax.linen for T5 1.0, two for the gated units of 1.1; "linear"
        is the identity.
      dropout_rate: after embedding and blocks, of attention weights and within the MLP.
      logits_via_embedding: logits from the embedding's table (T5 1.0) rather than a kernel of their
        own (1.1).
      float32_attention_logits: queries times keys in float32.
      scale_attn_logits: divide attention's logits by sqrt(head_dim). Must be as it was when a
        checkpoint was trained; public ones: False.
      fp8: projections in FP8 by XLA, by Transformer Engine, or not.
      fuse_qkv: q, k and v, k and v of the attention to the encoder, and both halves of a gated MLP
        in one GEMM each.
      transpose_batch_sequence: activations as [length, batch, features].
      attention: who computes it.
      scan_layers: compile one layer and loop over it.
      remat: what the backward pass computes again: nothing, all but matrix products ("minimal"), or
        whole layers ("full").
      logits_dtype: of the factors of the last product, which is accumulated in float32.
      loss_chunks: slices of the vocabulary in which the loss is computed, 0 for all at once.
    """

    vocab_size: int
    dtype: Any = "float32"
    emb_dim: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    head_dim: int = 64
    mlp_dim: int = 2048
    mlp_activations: tuple[str, ...] = ("relu",)
    dropout_rate: float = 0.1
    logits_via_embedding: bool = False
    float32_attention_logits: bool = False
    scale_attn_logits: bool = False
    fp8: str = "off"
    fuse_qkv: bool = False
    transpose_batch_sequence: bool = False
    attention: str = "xla"
    scan_layers: bool = False
    remat: str = "none"
    logits_dtype: str = "float32"
    loss_chunks: int = 0

    def __post_init__(self) -> None:
        activations: Any = self.mlp_activations
        if isinstance(activations, str) or not hasattr(activations, "__iter__"):
            raise UserError(
                f"mlp_activations is {activations!r}",
                "T5Config.mlp_activations",
                "give a list of names, as ('relu',)",
                kind=INVALID,
                value=activations,
            )
        object.__setattr__(self, "mlp_activations", tuple(activations))
        object.__setattr__(self, "dtype", getattr(self.dtype, "__name__", str(self.dtype)))
        for name, known in (
            ("fp8", FP8_MODES),
            ("attention", choices.ATTENTION),
            ("remat", choices.REMAT),
            ("logits_dtype", LOGITS_DTYPES),
            ("dtype", choices.T5X_PRECISIONS),
        ):
            if getattr(self, name) not in known:
                raise UserError(
                    f"{name} is {getattr(self, name)!r}",
                    f"T5Config.{name}",
                    f"choose one of: {', '.join(known)}",
                    kind=INVALID,
                    value=getattr(self, name),
                )
        if not self.mlp_activations or (
            unknown := [name for name in self.mlp_activations if name not in ACTIVATIONS]
        ):
            raise UserError(
                (
                    "mlp_activations has "
                    f"{', '.join(map(repr, unknown)) if self.mlp_activations else 'none'}"
                ),
                "T5Config.mlp_activations",
                f"choose one or more of: {', '.join(ACTIVATIONS)}",
                kind=INVALID,
            )
        if not isinstance(self.dropout_rate, (int, float)) or not 0 <= self.dropout_rate < 1:
            raise UserError(
                f"dropout_rate is {self.dropout_rate!r}",
                "T5Config.dropout_rate",
                "give a share below 1, 0 for none",
                kind=INVALID,
                value=self.dropout_rate,
            )
        for name, least in MINIMUMS.items():
            value = getattr(self, name)
            if not is_whole_number(value, least):
                raise UserError(
                    f"{name} is {value!r}",
                    f"T5Config.{name}",
                    f"give a whole number from {least} on",
                    kind=INVALID,
                    value=value,
                )
        if self.loss_chunks > self.vocab_size:
            raise UserError(
                f"loss_chunks is {self.loss_chunks}",
                "T5Config.loss_chunks",
                f"give 0 for none, or at most the vocabulary's {self.vocab_size}",
                kind=INVALID,
                value=self.loss_chunks,
            )
        if "te" in (self.fp8, self.attention) and self.scan_layers:
            raise UserError(
                "Transformer Engine's modules are not scanned over",
                "T5Config.scan_layers",
                "set scan_layers to False, or fp8 and attention to others than te",
                kind=CONFLICT,
            )
