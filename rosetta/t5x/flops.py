"""How much arithmetic a T5 training step is, and how much a card can do: together they give MFU.

Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B) is

    MFU = train_flops / (seconds a step takes x devices x peak_flops of a card)

Only what the model asks for counts: each matrix product of the forward pass as 2 m n k, three times (forward, gradient of the input, gradient
of the weight). What is computed again under rematerialisation does not count, nor do embedding look-ups, norms, softmax and the optimizer.
Attention counts in full also where it is causal, and padding counts, since the shapes of a step are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.t5x.config import T5Config

TERA = 10**12

# Dense tensor-core peaks in TFLOP/s at boost clock, accumulated in float32; NVIDIA prints most of them with sparsity, which doubles them.
# float32 stands for TF32, which XLA multiplies float32 with where a card has it. A card without FP8 has no such entry. The first name counts
# all of whose words are in the card's, as JAX's device_kind and nvidia-smi have it.
# Sources: the data sheets of V100, A100, A10, L4, L40S, H100 and H200, GH200's and Blackwell's (DGX/HGX B200, GB200) as of 2025.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "GB200": {"bfloat16": 2500.0, "float16": 2500.0, "float32": 1250.0, "fp8": 5000.0},
    "B200": {"bfloat16": 2250.0, "float16": 2250.0, "float32": 1125.0, "fp8": 4500.0},
    "GH200": {"bfloat16": 989.4, "float16": 989.4, "float32": 494.7, "fp8": 1978.9},
    "H200": {"bfloat16": 989.4, "float16": 989.4, "float32": 494.7, "fp8": 1978.9},
    "H100 PCIe": {"bfloat16": 756.0, "float16": 756.0, "float32": 378.0, "fp8": 1513.0},
    "H100 NVL": {"bfloat16": 835.5, "float16": 835.5, "float32": 417.5, "fp8": 1671.0},
    "H100": {"bfloat16": 989.4, "float16": 989.4, "float32": 494.7, "fp8": 1978.9},
    "A100": {"bfloat16": 312.0, "float16": 312.0, "float32": 156.0},
    "A10G": {"bfloat16": 70.0, "float16": 70.0, "float32": 35.0},
    "A10": {"bfloat16": 125.0, "float16": 125.0, "float32": 62.5},
    "L40S": {"bfloat16": 362.0, "float16": 362.0, "float32": 183.0, "fp8": 733.0},
    "L4": {"bfloat16": 121.0, "float16": 121.0, "float32": 60.0, "fp8": 242.5},
    "V100": {"float16": 125.0, "float32": 15.7},
}


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


def flops(config: T5Config, inputs: int, targets: int, batch: int) -> Flops:
    """Count an encoder-decoder's, for `batch` sequences of `inputs` and `targets` tokens; with inputs 0, a decoder-only model's.

    By d = emb_dim, w = num_heads x head_dim, f = mlp_dim, E and D layers, S input and T target tokens, V vocabulary, g kernels into the MLP:
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
        attention=batch * 4 * config.num_heads * config.head_dim * (encoded * inputs + decoded * targets + decoded * inputs),
        logits=batch * 2 * config.emb_dim * config.vocab_size * targets,
    )


def train_flops(config: T5Config, enc_len: int, dec_len: int, batch: int) -> int:
    """FLOPs of one training step over a global batch of sequences; `enc_len` 0 for a decoder-only model."""
    return flops(config, enc_len, dec_len, batch).train


def peak_flops(card: str, dtype: str) -> float | None:
    """Return FLOP/s that a card named like JAX's device_kind can do at most, or None where it is not known.

    dtype: "bfloat16", "float16", "float32" or "fp8".
    """
    words = set(card.lower().replace("-", " ").split())
    for name, peaks in PEAKS.items():
        if set(name.lower().split()) <= words:
            found = peaks.get(dtype)
            return None if found is None else found * TERA
    return None


def mfu(step_flops: float, seconds: float, devices: int, peak: float | None) -> float | None:
    """Return the share of the peak that a step made use of, or None without a known peak.

    step_flops: train_flops of the global batch; seconds: that the step took; peak: peak_flops of one device.
    """
    if peak is None or seconds <= 0:
        return None
    return step_flops / (seconds * devices * peak)
