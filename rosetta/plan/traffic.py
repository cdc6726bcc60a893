"""Sum up what a compiled step sends between devices: parameters, gradients, activations and small
arrays, within nodes and across them.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rosetta.plan import collective_groups, moved_bytes, step_kernels
from rosetta.plan.hlo_text import count_bytes, find_dtypes, parse_dimensions, split_tuple_shape

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from rosetta.plan.hlo_text import HloModule, Instruction
    from rosetta.plan.step_kernels import Kernel

# The dimensions of an array, sorted and without ones: XLA transposes and reshapes arrays freely.
Dimensions = tuple[int, ...]
# Arrays up to this size are losses, norms and the largest values that FP8 scales by. Their bytes do
# not matter, only how often they are sent.
MAX_SMALL_ELEMENTS = 1024


@dataclass
class Flow:
    """The communication of one kind, role and type, summed over a step, for one device.

    Attributes:
        kind: The collective, as HLO names it.
        role: "parameters", "gradients", "small" or "activations".
        dtype: The element type.
        times: The number of arrays.
        bytes: The bytes that a device receives. In a ring of n devices, that is (n - 1) / n of the
            whole array, and twice as much for an all-reduce.
        across: The part of `bytes` that comes from another node; None if the groups of devices are
            not understood.
        waited: The part of `bytes` during which the device does nothing else.
        behind: The part of `bytes` during which a product, attention or a loop runs.
    """

    kind: str
    role: str
    dtype: str
    times: int = 0
    bytes: float = 0.0
    across: float | None = 0.0
    waited: float = 0.0
    behind: float = 0.0


@dataclass(frozen=True)
class Loop:
    """The body of a loop that communicates.

    Attributes:
        name: The computation.
        times: How often it runs in a step.
        small: The number of its all-reduces of small arrays.
        largest: How many of these compute a maximum, as FP8 does for its scales.
    """

    name: str
    times: int
    small: int
    largest: int


def sum_flows(module: HloModule, per_node: int, parameters: Collection[Dimensions]) -> list[Flow]:
    """Return the communication of a step, the flow with the most bytes first.

    Args:
        module: The optimised module of the step.
        per_node: Devices of a node.
        parameters: The dimensions of the parameters on a device, before and after they are
            gathered.
    """
    flows: dict[tuple[str, str, str], Flow] = {}
    for kernel in step_kernels.list_collective_kernels(module):
        kind = kernel.instruction.opcode.removesuffix("-start")
        groups = collective_groups.parse_device_groups(kernel.instruction.rest)
        crossing = None
        if groups is not None:
            crossing = collective_groups.compute_cross_node_share(groups, per_node, kind)
        received_share = 1.0
        if groups is not None and kind != "collective-permute":
            received_share = (len(groups[0]) - 1) / len(groups[0])
        passes = 2 if kind == "all-reduce" else 1
        for shape in _iterate_array_shapes(module, kernel, kind):
            role = _classify_role(kind, shape, parameters)
            dtype = find_dtypes(shape)[0]
            flow = flows.setdefault((kind, role, dtype), Flow(kind, role, dtype))
            received = kernel.times * count_bytes(shape) * received_share * passes
            flow.times += kernel.times
            flow.bytes += received
            if crossing is None or flow.across is None:
                flow.across = None
            else:
                flow.across += received * crossing
            if step_kernels.is_synchronous(kernel):
                flow.waited += received
            if step_kernels.count_overlapped_work(module, kernel):
                flow.behind += received
    return sorted(flows.values(), key=lambda flow: -flow.bytes)


def normalize_dimensions(sizes: Iterable[int]) -> Dimensions:
    """Return dimensions sorted and without ones."""
    return tuple(sorted(size for size in sizes if size > 1))


def list_loops(module: HloModule) -> list[Loop]:
    """Return the bodies of the loops that communicate."""
    names = {id(computation): name for name, computation in module.computations.items()}
    kernels_by_body: dict[str, list[Kernel]] = {}
    for kernel in step_kernels.list_collective_kernels(module):
        name = names[id(kernel.computation)]
        if name != module.entry:
            kernels_by_body.setdefault(name, []).append(kernel)
    loops = []
    for name, kernels in kernels_by_body.items():
        small = [kernel for kernel in kernels if _is_small_all_reduce(kernel.instruction)]
        maxima = [
            kernel for kernel in small if _find_reduction(module, kernel.instruction) == "maximum"
        ]
        loops.append(Loop(name, kernels[0].times, len(small), len(maxima)))
    return loops


def _is_small_all_reduce(instruction: Instruction) -> bool:
    """Return whether an instruction is an all-reduce of small arrays only."""
    if not instruction.opcode.startswith("all-reduce"):
        return False
    return all(_is_small(shape) for shape in split_tuple_shape(instruction.shape))


def _is_small(shape: str) -> bool:
    """Return whether an array has so few elements that its bytes do not matter."""
    return math.prod(parse_dimensions(shape)) <= MAX_SMALL_ELEMENTS


def format_traffic(flows: list[Flow], loops: list[Loop]) -> str:
    """Return flows and loops as a table."""
    lines = [
        (
            f"{'':<20}{'':<13}{'':<9}{'times':>6}{'GB received':>13}"
            f"{'from other nodes':>18}{'waited for':>12}{'behind products':>17}"
        )
    ]
    for flow in flows:
        across = "?" if flow.across is None else f"{flow.across / 1e9:.3f}"
        lines.append(
            f"{flow.kind:<20}{flow.role:<13}{flow.dtype:<9}{flow.times:>6}{flow.bytes / 1e9:>13.3f}"
            f"{across:>18}{flow.waited / 1e9:>12.3f}{flow.behind / 1e9:>17.3f}"
        )
    lines += [
        (
            f"loop of {loop.times}: {loop.small} all-reduces of small numbers, {loop.largest} of "
            "them for the largest"
        )
        for loop in loops
    ]
    return "\n".join(lines)


def report_traffic(
    module: HloModule, per_node: int, parameters: Collection[Dimensions]
) -> dict[str, Any]:
    """Return the flows and loops of a step as JSON. The arguments are those of `sum_flows`."""
    return {
        "flows": [asdict(flow) for flow in sum_flows(module, per_node, parameters)],
        "loops": [asdict(loop) for loop in list_loops(module)],
    }


def _iterate_array_shapes(module: HloModule, kernel: Kernel, kind: str) -> Iterator[str]:
    """Yield the shapes of the whole arrays that a collective moves."""
    if kind == "all-gather":
        yield from split_tuple_shape(moved_bytes.find_output_shape(kernel.instruction))
        return
    for name in kernel.instruction.operands:
        source = kernel.computation.get(name)
        if source is not None:
            yield from _iterate_joined_shapes(module, source)


def _iterate_joined_shapes(module: HloModule, source: Instruction) -> Iterator[str]:
    """Yield the shapes of the arrays that XLA concatenated into one, or the instruction's shape."""
    called = source.find_called_computations() if source.opcode == "fusion" else []
    for name in called:
        fused = module.computations.get(name, {})
        root = list(fused.values())[-1] if fused else None
        if root is None or root.opcode != "concatenate":
            continue
        if all(operand in fused for operand in root.operands):
            yield from (fused[operand].shape for operand in root.operands)
            return
    yield source.shape


def _classify_role(kind: str, shape: str, parameters: Collection[Dimensions]) -> str:
    """Return what an array is, from its dimensions and the collective that moves it."""
    if kind == "all-reduce" and _is_small(shape):
        return "small"
    is_float = find_dtypes(shape)[0].startswith(("f", "bf"))
    if is_float and normalize_dimensions(parse_dimensions(shape)) in parameters:
        if kind == "all-gather":
            return "parameters"
        if kind in ("reduce-scatter", "all-reduce"):
            return "gradients"
    return "activations"


def _find_reduction(module: HloModule, instruction: Instruction) -> str:
    """Return the operation by which an all-reduce combines values, "" if it is not found."""
    match = re.search(r"to_apply=%?([\w.\-]+)", instruction.rest)
    body = module.computations.get(match[1], {}) if match else {}
    return list(body.values())[-1].opcode if body else ""
