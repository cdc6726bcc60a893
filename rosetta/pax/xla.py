"""Which flags of XLA a run of Pax has, by its experiment: those of the published runs, by the names they have today."""

from __future__ import annotations

import re

# Bytes up to which all-reduces are combined: small keeps each layer's apart, so that they hide behind the next layer's arithmetic; the 126M
# model's are so small that they are dearer one by one. Both are the published runs' values.
COMBINE, COMBINE_SMALL = 51200, 33554432
_SMALL = re.compile(r"126M(?!64E)")


def options(config: str) -> dict[str, int | bool | str]:
    """Return XLA's options for an experiment, flag without dashes -> value. Command buffers are off: CUDA graphs cost memory that big models lack.

    FP8 needs Triton's GEMMs off, which are never FP8 ones, and pipelined collectives off, as they are unless asked for.
    """
    return {
        "xla_gpu_enable_latency_hiding_scheduler": True,
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_all_reduce_combine_threshold_bytes": COMBINE_SMALL if _SMALL.search(config) else COMBINE,
        "xla_gpu_enable_command_buffer": "",
    }


def small(config: str) -> bool:
    """Is it the 126M model, which was seen to diverge with fused attention?"""
    return bool(_SMALL.search(config))
