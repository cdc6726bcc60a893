"""Estimate the time of a kernel on a GPU: the longer of computing and of moving bytes (a roofline).

The peaks are those of the data sheets, see rosetta.core.gpus. A kernel reaches a share of them.
`Shares` are these shares. Four of them were fitted, see FITTED; all others are taken from what
others published. Every time is a prediction: nothing here was measured on a GPU.

Products:
    A product reaches its share of the peak if its tiles fill the multiprocessors and its depth is
    large. A GPU computes a product in tiles, as many at once as it has multiprocessors. If the last
    round is not full, the others wait. Each tile spends time on its first loads and last stores.

Collectives:
    A ring sends an array once around all devices (twice for an all-reduce). The slowest link sets
    its speed. Each step of the ring has a latency. A tree needs fewer steps, at half the speed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from rosetta.core import gpus
from rosetta.plan import collective_groups, step_kernels
from rosetta.plan.hlo_text import count_bytes, parse_dimensions

if TYPE_CHECKING:
    from rosetta.core.gpus import Gpu
    from rosetta.plan.hlo_text import HloModule
    from rosetta.plan.step_kernels import Gemm, Kernel

HOPPER = gpus.GPUS["h100"].capability
MICROSECOND = 1e-6


@dataclass(frozen=True)
class Shares:
    """The share of a data sheet's figure that kernels reach.

    Attributes:
        products: Matrix products in bfloat16, float16 or TF32.
        fp8_products: Matrix products in FP8.
        attention_forward: The forward pass of cuDNN's attention with heads of 128, of the peak of
            bfloat16.
        attention_backward: The backward pass.
        bandwidth: Kernels that are bound by memory.
        links: NCCL, of the bandwidth of NVLink or of the network in one direction.
      flat: Whether products and attention reach these shares whatever their shapes are, and no
        kernel has a shortest time. A roofline that is computed by hand assumes this.
    """

    products: float
    fp8_products: float
    attention_forward: float
    attention_backward: float
    bandwidth: float
    links: float
    flat: bool = False


# The shares that were fitted to the published rows of T5 large and GPT 5B, see bench/plan_times.py
# and docs/project/benchmarks.md: the products of GPUs before Hopper, those of Hopper and newer
# GPUs, FP8's products, and NCCL's links.
#
# The others: FlashAttention-2 (arXiv 2307.08691) reaches up to 73 % of an A100's peak in the
# forward and 63 % in the backward pass; FlashAttention-3 (arXiv 2407.08608) measures cuDNN on an
# H100 at 50 to 65 % and 40 to 55 %. Copies of large arrays reach 85 to 92 % of the bandwidth;
# kernels that XLA fuses, which also reduce and transpose, reach less.
AMPERE_SHARES = Shares(0.80, 0.80, 0.65, 0.50, 0.80, 0.70)
HOPPER_SHARES = Shares(0.65, 0.55, 0.60, 0.48, 0.80, 0.70)
# Factors on all shares for the ends of the range. Single products that were measured on a cool H100
# reach 78 to 81 % of the peak, 1.2 times the share of products.
FASTEST, SLOWEST = 1.2, 0.85

# Attention with heads of 64 or with a bias reaches this share of what it reaches otherwise: there
# is less to multiply for each exponential, and a gradient of the bias to add up.
SMALL_HEAD_SHARE, BIAS_SHARE = 0.75, 0.75
# The rows and columns that cuBLAS and Triton compute in one multiprocessor at once, and the share
# of the speed of the largest that smaller tiles reach.
TILES = ((128, 256, 1.0), (128, 128, 0.95), (64, 128, 0.8), (64, 64, 0.6))
# The bytes of a row's depth whose loads and stores cost as much time as the first and last steps of
# a tile.
FILL_BYTES = 256
# The time between two kernels of a stream, and the shortest time of a kernel, in seconds.
LAUNCH_SECONDS, SHORTEST_KERNEL_SECONDS = 1.0 * MICROSECOND, 1.5 * MICROSECOND
# NCCL's latencies for its LL128 protocol, in seconds: of an operation, and of a step of a ring or
# tree within a node or between nodes (src/graph/tuning.cc).
NCCL_BASE_SECONDS = 14.0 * MICROSECOND
RING_STEP_SECONDS = {"node": 1.9 * MICROSECOND, "network": 4.0 * MICROSECOND}
TREE_STEP_SECONDS = {"node": 1.25 * MICROSECOND, "network": 8.5 * MICROSECOND}
# A node has a network adapter for each GPU, as fast as its slot: 200 Gb/s for PCIe 4 (NVIDIA DGX
# A100) and 400 Gb/s for PCIe 5 (DGX H100), in bytes per second and direction.
NETWORK_BANDWIDTH = {3: 12.5e9, 4: 25e9, 5: 50e9, 6: 100e9}
# What GPUs without NVLink reach over PCIe, in bytes per second and direction.
PCIE_BANDWIDTH = {3: 12e9, 4: 24e9, 5: 48e9, 6: 96e9}
_PEAK_TYPES = {"bf16": "bfloat16", "f16": "float16"}


@dataclass(frozen=True)
class KernelTime:
    """The predicted time of one run of a kernel.

    Attributes:
        seconds: The time on the GPU, without the launch.
        kind: What the kernel does: one of "products", "FP8 products", "attention", or, if memory
            bounds it, of MEMORY_KINDS, PALLAS or ELEMENTWISE.
    """

    seconds: float
    kind: str


# Kinds of kernels that memory bounds: the operations by which they are recognised, the first that
# fits.
MEMORY_KINDS = {
    "reductions": ("reduce", "reduce-window"),
    "lookups": ("gather", "scatter", "sort"),
    "slices and joins": ("dynamic-slice", "dynamic-update-slice", "slice", "concatenate", "pad"),
    "transposes and copies": ("transpose", "copy", "copy-start"),
}
ELEMENTWISE = "elementwise"
# Kernels of our own, such as those of rosetta.nn.mlp_kernels. Their operands and results are
# counted whole: they read and write each once.
PALLAS = "Pallas kernels"


def find_shares(gpu: Gpu) -> Shares:
    """Return the shares that kernels are likely to reach on a GPU."""
    return HOPPER_SHARES if gpu.capability >= HOPPER else AMPERE_SHARES


def scale_shares(shares: Shares, factor: float) -> Shares:
    """Return shares multiplied by a factor, at most 1."""
    names = [field.name for field in fields(shares) if field.name != "flat"]
    return replace(shares, **{name: min(getattr(shares, name) * factor, 1.0) for name in names})


def estimate_kernel(module: HloModule, kernel: Kernel, gpu: Gpu, shares: Shares) -> KernelTime:
    """Return the predicted time of a kernel that does not communicate.

    Args:
        module: The module of the kernel.
        kernel: The kernel.
        gpu: The GPU.
        shares: The shares of the GPU's figures that kernels reach.
    """
    moving = kernel.bytes / (gpu.bandwidth * shares.bandwidth)
    shortest = 0.0 if shares.flat else SHORTEST_KERNEL_SECONDS
    if step_kernels.is_attention(kernel.instruction):
        computing = _estimate_attention_seconds(kernel, gpu, shares)
        return KernelTime(max(computing, moving, shortest), "attention")
    gemms = step_kernels.list_kernel_gemms(module, kernel)
    if gemms:
        computing = sum(_estimate_gemm_seconds(gemm, gpu, shares) for gemm in gemms)
        kind = "FP8 products" if all(gemm.fp8 for gemm in gemms) else "products"
        return KernelTime(max(computing, moving, shortest), kind)
    return KernelTime(max(moving, shortest), _classify_memory_kind(module, kernel))


def _classify_memory_kind(module: HloModule, kernel: Kernel) -> str:
    """Return the kind of a kernel that memory bounds."""
    if step_kernels.is_pallas(kernel.instruction):
        return PALLAS
    opcodes = {kernel.instruction.opcode}
    for name in kernel.instruction.find_called_computations():
        if kernel.instruction.opcode == "fusion":
            opcodes |= {inner.opcode for inner in module.computations.get(name, {}).values()}
    for kind, operations in MEMORY_KINDS.items():
        if opcodes.intersection(operations):
            return kind
    return ELEMENTWISE


def _estimate_gemm_seconds(gemm: Gemm, gpu: Gpu, shares: Shares) -> float:
    """Return the time in which a product is computed, without regard to memory."""
    left = gemm.dtypes[0]
    fp8_peak = gpu.peak_flops("fp8")
    if gemm.fp8 and fp8_peak:
        peak, share = fp8_peak, shares.fp8_products
    else:
        peak = gpu.peak_flops(_PEAK_TYPES.get(left, "float32")) or gpu.peaks["fp32"] * 1e12
        share = shares.products
    _count, rows, columns, depth = gemm.sizes
    if shares.flat:
        return gemm.flops / (peak * share)
    depth_bytes = depth * (count_bytes(f"{left}[1]") or 1.0)
    fill = depth_bytes / (depth_bytes + FILL_BYTES)
    if min(rows, columns) == 1:
        # A product with a vector is bound by memory.
        return 0.0
    return gemm.flops / (peak * share * fill * _compute_tile_share(gemm, gpu.sms))


def _compute_tile_share(gemm: Gemm, sms: int) -> float:
    """Return the share of the multiprocessors' time that the tiles of a product use."""
    count, rows, columns, _depth = gemm.sizes
    best = 0.0
    for tile_rows, tile_columns, share in TILES:
        for height, width in ((tile_rows, tile_columns), (tile_columns, tile_rows)):
            tiles = count * math.ceil(rows / height) * math.ceil(columns / width)
            useful = count * rows * columns / (height * width)
            best = max(best, share * useful / (math.ceil(tiles / sms) * sms))
    # A product with few tiles and a large depth is split along the depth (split-K).
    return max(best, min(0.5, best * 8))


def _estimate_attention_seconds(kernel: Kernel, gpu: Gpu, shares: Shares) -> float:
    """Return the time in which cuDNN's attention is computed, without regard to memory."""
    flops = step_kernels.count_kernel_attention_flops(kernel)
    if flops is None:
        return 0.0
    target, rest = kernel.instruction.target, kernel.instruction.rest
    share = shares.attention_backward if "Backward" in target else shares.attention_forward
    query = parse_dimensions(kernel.computation[kernel.instruction.operands[0]].shape)
    if query[-1] <= 64 and not shares.flat:
        share *= SMALL_HEAD_SHARE
    if "Bias" in target and not shares.flat:
        share *= BIAS_SHARE
    if re.search(r'"mask_type":\s*"[A-Z_]*CAUSAL', rest):
        # cuDNN leaves out what a causal mask hides: half of the scores.
        flops /= 2
    peak = gpu.peak_flops("bfloat16") or gpu.peak_flops("float16") or gpu.peaks["fp32"] * 1e12
    return flops / (peak * share)


def estimate_collective(kernel: Kernel, gpu: Gpu, per_node: int, shares: Shares) -> float:
    """Return the predicted time of a collective, in seconds.

    Args:
        kernel: The collective.
        gpu: The GPU.
        per_node: GPUs of a node.
        shares: The shares of the GPU's figures that kernels reach.
    """
    instruction = kernel.instruction
    kind = instruction.opcode.removesuffix("-start")
    groups = collective_groups.parse_device_groups(instruction.rest)
    size = step_kernels.count_collective_bytes(kernel)
    within = (gpu.nvlink / 2 or PCIE_BANDWIDTH[gpu.pcie or 4]) * shares.links
    network = NETWORK_BANDWIDTH[gpu.pcie or 4] * shares.links
    if not groups:
        return NCCL_BASE_SECONDS + size / within
    group = max(groups, key=len)
    nodes = len({device // per_node for device in group})
    if kind == "collective-permute":
        crosses = collective_groups.compute_cross_node_share(groups, per_node, kind) > 0
        return NCCL_BASE_SECONDS + size / (network if crosses else within)
    if len(group) == 1:
        return SHORTEST_KERNEL_SECONDS
    sent = size * (len(group) - 1) / len(group)
    if kind in ("all-to-all", "ragged-all-to-all"):
        crossing = collective_groups.compute_cross_node_share(groups, per_node, kind)
        return NCCL_BASE_SECONDS + max(sent * crossing / network, sent * (1 - crossing) / within)
    # Each GPU of a node has its own adapter, and each adapter a ring of its own.
    speed = within if nodes == 1 else min(within, network * len(group) / nodes)
    passes = 2 if kind == "all-reduce" else 1
    steps = passes * (len(group) - nodes), passes * (nodes - 1)
    ring = _sum_latency(steps, RING_STEP_SECONDS) + passes * sent / speed
    if kind != "all-reduce":
        return ring
    # Up the tree and down again.
    steps = 2 * (math.ceil(len(group) / nodes) - 1), 2 * math.ceil(math.log2(nodes))
    return min(ring, _sum_latency(steps, TREE_STEP_SECONDS) + 2 * passes * sent / speed)


def _sum_latency(steps: tuple[int, int], seconds: dict[str, float]) -> float:
    """Return the latency of an operation with steps within nodes and between them."""
    within, between = steps
    return NCCL_BASE_SECONDS + within * seconds["node"] + between * seconds["network"]
