"""The floating-point operations of a T5 training step, from which the trainer reports MFU.

Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B) is

    MFU = FLOPs of a step / (seconds of a step x devices x peak FLOPs per second of a GPU)

rosetta.core.gpus has the peaks. Only the matrix products of the model count, each as 2 m n k, and
three times: forward, gradient of the input, gradient of the weight. What rematerialisation computes
again does not count, nor do embedding look-ups, norms, softmax and the optimizer. Causal attention
counts in full. Padding counts, because the shapes of a step are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rosetta.t5x.run.model_config import T5Config


@dataclass(frozen=True)
class Flops:
    """The floating-point operations of one forward pass over a batch, by part of the network."""

    projections: int
    mlp: int
    attention: int
    logits: int

    @property
    def forward(self) -> int:
        """The operations of the forward pass."""
        return self.projections + self.mlp + self.attention + self.logits

    @property
    def train(self) -> int:
        """The operations of the forward and the backward pass."""
        return 3 * self.forward


def count_forward_flops(config: T5Config, inputs: int, targets: int, batch: int) -> Flops:
    """Count the operations of a forward pass.

    Args:
      config: the network's configuration.
      inputs: tokens of an input sequence; 0 for a decoder-only network.
      targets: tokens of a target sequence.
      batch: sequences of the batch.

    With d = emb_dim, w = num_heads x head_dim, f = mlp_dim, E encoder and D decoder layers, S input
    and T target tokens, V = vocab_size, and g kernels into the MLP, a sequence takes:
      projections  8 d w E S  +  8 d w D T  +  (4 d w T + 4 d w S) D for attention to the encoder
      mlp          2 (g + 1) d f (E S + D T)
      attention    4 w (E S S + D T T + D T S)
      logits       2 d V T
    """
    attention_width = config.num_heads * config.head_dim
    kernel_size = config.emb_dim * attention_width
    # Each of these three is a number of tokens times a number of layers.
    encoded = config.num_encoder_layers * inputs if inputs else 0
    decoded = config.num_decoder_layers * targets
    crossed = config.num_decoder_layers * (targets + inputs) if inputs else 0
    mlp_flops = 2 * (len(config.mlp_activations) + 1) * config.emb_dim * config.mlp_dim
    token_pairs = encoded * inputs + decoded * targets + decoded * inputs
    return Flops(
        projections=batch * kernel_size * (8 * encoded + 8 * decoded + 4 * crossed),
        mlp=batch * mlp_flops * (encoded + decoded),
        attention=batch * 4 * attention_width * token_pairs,
        logits=batch * 2 * config.emb_dim * config.vocab_size * targets,
    )


def count_train_flops(config: T5Config, enc_len: int, dec_len: int, batch: int) -> int:
    """Return the FLOPs of one training step over a global batch.

    Args:
      config: the network's configuration.
      enc_len: tokens of an input sequence; 0 for a decoder-only network.
      dec_len: tokens of a target sequence.
      batch: sequences of the global batch.
    """
    return count_forward_flops(config, enc_len, dec_len, batch).train
