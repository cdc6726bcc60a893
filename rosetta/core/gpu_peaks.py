"""How much arithmetic a card can do, and how much of it a step makes use of (MFU)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TERA = 10**12

# Dense tensor-core peaks in TFLOP/s at boost clock, accumulated in float32; NVIDIA prints most of
# them with sparsity, which doubles them. float32 stands for TF32, which XLA multiplies float32 with
# where a card has it. A card without FP8 has no such entry. The first name counts all of whose
# words are in the card's, as JAX's device_kind and nvidia-smi have it.
# Sources: the data sheets of V100, A100, A10, L4, L40S, H100 and H200, GH200's and Blackwell's
# (DGX/HGX B200, GB200) as of 2025.
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


def peak_flops(card: str, dtype: str) -> float | None:
    """Return FLOP/s that a card named like JAX's device_kind can do at most, or None where it is
    not known.

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

    step_flops: train_flops of the global batch; seconds: that the step took; peak: peak_flops of
    one device.
    """
    if peak is None or seconds <= 0:
        return None
    return step_flops / (seconds * devices * peak)
