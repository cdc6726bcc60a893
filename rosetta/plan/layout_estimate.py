"""Estimate memory and time of a run from the sizes of its model, without a compiler.

`count_state_bytes` is a lower bound: a split whose state does not fit cannot fit. All else is rough
and only orders what is compiled first; compiled steps correct it (see layout_search).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.pax.run.experiment_checks import SAVE_DOT_AND_ATTENTION
from rosetta.plan import roofline
from rosetta.plan.search_space import NO_REMAT, T5X

if TYPE_CHECKING:
    from rosetta.core.gpus import Gpu
    from rosetta.plan.search_space import Candidate, Model, Split

# Bytes of a parameter, of both moments of Adam, and of a gradient in bfloat16 or float32.
PARAMETER_BYTES, MOMENT_BYTES, GRADIENT_BYTES, SUMMED_GRADIENT_BYTES = 4, 8, 2, 4
# Bytes that an update of Adam reads and writes for each parameter.
UPDATE_BYTES = 28
ACTIVATION_BYTES = 2
COPY_BYTES = 2  # of a gathered parameter in bfloat16; FP8 takes less
LOGIT_BYTES = 10  # float32 logits, their gradient, and a copy in bfloat16
# Remat -> activations of a layer that are kept, in multiples of the width and of the MLP's width.
_KEPT = {
    NO_REMAT: (10.0, 5.0),
    "minimal": (7.0, 3.0),
    SAVE_DOT_AND_ATTENTION: (8.0, 3.0),
    "save_dot_with_no_batch_dims": (7.0, 3.0),
    "full": (1.0, 0.0),
    "save_nothing": (1.0, 0.0),
}
# Remat -> the arithmetic that is repeated, as a share of the step's.
_REPEATED = {"full": 1 / 3, "save_nothing": 1 / 3}
# Remat -> the memory traffic, as a multiple of that without remat.
_TRAFFIC = {NO_REMAT: 1.0, SAVE_DOT_AND_ATTENTION: 1.05, "full": 1.35, "save_nothing": 1.35}
_OTHER_TRAFFIC = 1.1
_TRAFFIC_PASSES = 5.0  # how often each activation is read or written
_KERNELS_PER_LAYER = 150
_EXPOSED = 0.4  # the share of communication with other parts of the batch that nothing hides


@dataclass(frozen=True)
class Estimate:
    """A rough estimate of a candidate.

    Attributes:
        state: The lower bound of the memory of a GPU, in bytes.
        activations: The other memory of a GPU, in bytes: activations, and gathered parameters.
        seconds: The time of a step.
    """

    state: float
    activations: float
    seconds: float


def count_state_bytes(model: Model, split: Split, microbatches: int = 1) -> float:
    """Return the bytes of parameters, optimizer state and gradients on a GPU: a lower bound.

    FSDP shards all three. What a step gathers is not part of the bound.

    Args:
        model: The model.
        split: The split.
        microbatches: With several, gradients are summed in float32.
    """
    gradient = GRADIENT_BYTES if microbatches == 1 else SUMMED_GRADIENT_BYTES
    moments = MOMENT_BYTES if model.trained else 0
    gradients = gradient if model.trained else 0
    share = model.parameters / split.tensor / _count_shards(model, split)
    return share * (PARAMETER_BYTES + gradients + moments)


def _count_shards(model: Model, split: Split) -> int:
    """Return over how many parts of the batch FSDP shards each parameter.

    T5X shards a parameter over all parts if its width divides by them, and else over the fsdp axis
    alone: 24 groups of GPUs are data 3 x fsdp 8, and a width of 768 divides by 24.
    """
    if model.framework == T5X and split.fsdp > 1:
        return next(count for count in (split.parts, split.fsdp, 1) if model.width % count == 0)
    return split.fsdp


def _estimate_gathered_bytes(model: Model, candidate: Candidate) -> float:
    """Return the bytes of the gathered parameters that a GPU has at once.

    Parameters are gathered in the type of the products. Without remat, the copies of all layers
    stay until the backward pass has used them. With remat, the backward pass gathers them again.
    """
    if _count_shards(model, candidate.split) == 1:
        return 0.0
    layers = 1 if candidate.remat == NO_REMAT else model.layers
    return COPY_BYTES * model.parameters / candidate.split.tensor / layers


def estimate(model: Model, candidate: Candidate, gpu: Gpu, per_node: int) -> Estimate:
    """Return a rough estimate of a candidate.

    Args:
        model: The model.
        candidate: The candidate.
        gpu: The GPU.
        per_node: GPUs of a node.
    """
    split, rows = candidate.split, candidate.rows
    tokens = rows * model.tokens
    widths, inners = _KEPT.get(candidate.remat, _KEPT["minimal"])
    kept = widths * model.width + inners * model.inner
    whole = _KEPT[NO_REMAT][0] * model.width + _KEPT[NO_REMAT][1] * model.inner
    # A layer that is computed again has all of its activations for a moment.
    layers_kept = kept * model.layers + (whole if candidate.remat != NO_REMAT else 0.0)
    logits = rows * model.predicted * model.vocabulary * LOGIT_BYTES
    activations = (tokens * layers_kept * ACTIVATION_BYTES + logits) / split.tensor
    activations += _estimate_gathered_bytes(model, candidate)
    microbatch = _estimate_microbatch(model, candidate, gpu, per_node)
    updated = model.parameters / split.tensor / _count_shards(model, split)
    update = UPDATE_BYTES * updated / _bandwidth(gpu)
    return Estimate(
        count_state_bytes(model, split, candidate.microbatches),
        activations,
        candidate.microbatches * microbatch + update,
    )


def _bandwidth(gpu: Gpu) -> float:
    """Return the bandwidth that kernels reach, in bytes per second."""
    return gpu.bandwidth * roofline.find_shares(gpu).bandwidth


def _estimate_microbatch(model: Model, candidate: Candidate, gpu: Gpu, per_node: int) -> float:
    """Return the seconds of forward and backward pass of a microbatch."""
    split, shares = candidate.split, roofline.find_shares(gpu)
    tokens = candidate.rows * model.tokens
    embedding = 2 * model.vocabulary * model.width
    layer_share = 0.5 if model.framework == T5X else 1.0  # a token is in one of both stacks
    flops = 6.0 * max(model.parameters - embedding, 0) * tokens * layer_share
    flops += 6.0 * candidate.rows * model.predicted * model.vocabulary * model.width
    peak = gpu.peak_flops("bfloat16") or gpu.peak_flops("float16") or gpu.peaks["fp32"] * 1e12
    computing = flops * (1 + _REPEATED.get(candidate.remat, 0.0)) / (peak * shares.products)
    whole = _KEPT[NO_REMAT][0] * model.width + _KEPT[NO_REMAT][1] * model.inner
    traffic = tokens * model.layers * whole * ACTIVATION_BYTES * _TRAFFIC_PASSES
    traffic *= _TRAFFIC.get(candidate.remat, _OTHER_TRAFFIC) * (1.05 if candidate.scanned else 1.0)
    launching = model.layers * _KERNELS_PER_LAYER * roofline.LAUNCH_SECONDS * 2
    own = (computing + traffic / _bandwidth(gpu)) / split.tensor + launching
    return own + _estimate_communication(model, candidate, gpu, per_node)


def _estimate_communication(model: Model, candidate: Candidate, gpu: Gpu, per_node: int) -> float:
    """Return the seconds in which a GPU waits for others in a microbatch."""
    split, shares = candidate.split, roofline.find_shares(gpu)
    within = (gpu.nvlink / 2 or roofline.PCIE_BANDWIDTH[gpu.pcie or 4]) * shares.links
    network = roofline.NETWORK_BANDWIDTH[gpu.pcie or 4] * shares.links
    activation = candidate.rows * model.tokens * model.width * ACTIVATION_BYTES
    # Two all-reduces in the forward and two in the backward pass of each layer.
    tensor = 8 * model.layers * activation * (split.tensor - 1) / split.tensor / within
    weights = COPY_BYTES * model.parameters / split.tensor
    shards = _count_shards(model, split)
    replicas = split.parts // shards
    # GPUs of a node share its adapters: each group of the axis has as many as it has GPUs there.
    fsdp_speed = within if shards * split.tensor <= per_node else network * per_node
    fsdp_speed /= 1 if shards * split.tensor <= per_node else split.tensor
    # Gradients are scattered once. With remat, the backward pass gathers the parameters again.
    passes = 2 if candidate.remat == NO_REMAT else 3
    fsdp = passes * weights * (shards - 1) / shards / min(fsdp_speed, within)
    data_speed = within if split.parts * split.tensor <= per_node else network
    data = 2 * weights / shards * (replicas - 1) / replicas / data_speed
    return tensor + _EXPOSED * (fsdp + data)
