"""How much arithmetic a T5 training step is; with how much a GPU can do (rosetta.core.gpus) it
gives MFU.

Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B) is

    MFU = train_flops / (seconds a step takes x devices x peak_flops of a GPU)

Only what the model asks for counts: each matrix product of the forward pass as 2 m n k, three times
(forward, gradient of the input, gradient of the weight). What is computed again under
rematerialisation does not count, nor do embedding look-ups, norms, softmax and the optimizer.
Attention counts in full also where it is causal, and padding counts, since the shapes of a step are
fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rosetta.t5x.run.model_config import T5Config


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one forward pass over a batch, by what they are for."""

    projections: int
    mlp: int
    attention: int
    logits: int

    @property
    def forward(self) -> int:
        return self.projections + self.mlp + self.attention + self.logits

    @property
    def train(self) -> int:
        """Forward and backward."""
        return 3 * self.forward


def count_forward_flops(config: T5Config, inputs: int, targets: int, batch: int) -> Flops:
    """Count an encoder-decoder's, for `batch` sequences of `inputs` and `targets` tokens; with
    inputs 0, a decoder-only model's.

    By d = emb_dim, w = num_heads x head_dim, f = mlp_dim, E and D layers, S input and T target
    tokens, V vocabulary, g kernels into the MLP:
      projections  8 d w E S  +  8 d w D T  +  (4 d w T + 4 d w S) D across
      mlp          2 (g + 1) d f (E S + D T)
      attention    4 w (E S S + D T T + D T S)
      logits       2 d V T
    """
    wide, deep = config.emb_dim * config.num_heads * config.head_dim, config.num_decoder_layers
    encoded = config.num_encoder_layers * inputs if inputs else 0
    decoded = deep * targets
    across = deep * (targets + inputs) if inputs else 0
    mlp = 2 * (len(config.mlp_activations) + 1) * config.emb_dim * config.mlp_dim
    return Flops(
        projections=batch * wide * (8 * encoded + 8 * decoded + 4 * across),
        mlp=batch * mlp * (encoded + decoded),
        attention=batch
        * 4
        * config.num_heads
        * config.head_dim
        * (encoded * inputs + decoded * targets + decoded * inputs),
        logits=batch * 2 * config.emb_dim * config.vocab_size * targets,
    )


def count_train_flops(config: T5Config, enc_len: int, dec_len: int, batch: int) -> int:
    """FLOPs of one training step over a global batch of sequences; `enc_len` 0 for a decoder-only
    model.
    """
    return count_forward_flops(config, enc_len, dec_len, batch).train
