"""Describe a GPU to XLA's compiler, which then compiles for the GPU without having it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rosetta.core.gpus import Gpu


DNN_VERSION = (9, 10, 0)  # of cuDNN


def describe_target(gpu: Gpu, dnn_version: tuple[int, int, int] = DNN_VERSION) -> str:
    """Return a GPU as the text of XLA's GpuTargetConfigProto.

    Args:
        gpu: The GPU.
        dnn_version: The version of cuDNN that a run on the GPU has.
    """
    architecture = gpu.architecture
    major, minor = gpu.capability
    fields = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": architecture.shared_per_sm,
        "threads_per_core_limit": architecture.threads_per_sm,
        "core_count": gpu.sms,
        "fpus_per_core": architecture.fp32_cores_per_sm,
        "block_dim_limit_x": 2147483647,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": gpu.bandwidth,
        "l2_cache_size": gpu.l2,
        "clock_rate_ghz": gpu.clock,
        "device_memory_size": gpu.memory,
        "shared_memory_per_block_optin": architecture.shared_per_block,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    info = " ".join(f"{name}: {value}" for name, value in fields.items())
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    names = ("major", "minor", "patch")
    dnn = " ".join(f"{name}: {part}" for name, part in zip(names, dnn_version, strict=True))
    versions = f"dnn_version_info {{ {dnn} }} runtime_version {{ major: 12 minor: 9 }}"
    return (
        f'gpu_device_info {{ {info} {capability} }} platform_name: "CUDA" {versions} '
        f'device_description_str: "{gpu.name}"'
    )
