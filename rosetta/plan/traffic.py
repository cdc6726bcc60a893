"""What a compiled step sends between devices and why: parameters, gradients, small numbers,
activations; within nodes and across them.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rosetta.plan import collective_groups, step_kernels
from rosetta.plan.hlo_text import count_bytes, find_dtypes, parse_dimensions, split_tuple_shape

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from rosetta.plan.hlo_text import HloModule, Instruction
    from rosetta.plan.step_kernels import Kernel

Dimensions = tuple[
    int, ...
]  # of an array, in order of size and without ones: XLA transposes and reshapes as it likes
# Numbers: losses, norms and the largest values that FP8 looks for, beside which no bandwidth
# counts, only how often.
MAX_SMALL_ELEMENTS = 1024


@dataclass
class Flow:
    """Alike communication added up, for a device and step.

    Attributes:
      kind: of collective, as HLO calls it.
      role: "parameters", "gradients", "small" or "activations".
      dtype: of the numbers sent.
      times: how many arrays.
      bytes: that a device receives, in a ring: (n - 1) / n of the whole array among n devices,
        twice that for an all-reduce.
      across: of them, those that come from another node; None where XLA's groups are not
        understood.
      waited: of `bytes`, those during which the device does nothing else.
      behind: of `bytes`, those during which some product, attention or loop runs.
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
    """A loop's body: how often it runs, its all-reduces of small numbers, and how many of these
    look for a largest one, as FP8 does.
    """

    name: str
    times: int
    small: int
    largest: int


def sum_flows(program: HloModule, per_node: int, parameters: Collection[Dimensions]) -> list[Flow]:
    """Return the communication of a step, what moves most bytes first.

    Args:
      program: optimised.
      per_node: devices of a node.
      parameters: the dimensions that they have on a device, before they are gathered and after.
    """
    found: dict[tuple[str, str, str], Flow] = {}
    for kernel in step_kernels.list_collective_kernels(program):
        kind = kernel.instruction.opcode.removesuffix("-start")
        named = collective_groups.parse_device_groups(kernel.instruction.rest)
        outside = (
            collective_groups.compute_cross_node_share(named, per_node, kind)
            if named is not None
            else None
        )
        share = (
            1.0
            if named is None or kind == "collective-permute"
            else (len(named[0]) - 1) / len(named[0])
        )
        for shape in _iterate_array_shapes(program, kernel, kind):
            role = _classify_role(kind, shape, parameters)
            flow = found.setdefault(
                (kind, role, find_dtypes(shape)[0]), Flow(kind, role, find_dtypes(shape)[0])
            )
            sent = kernel.times * count_bytes(shape) * share * (2 if kind == "all-reduce" else 1)
            flow.times += kernel.times
            flow.bytes += sent
            flow.across = (
                None if outside is None or flow.across is None else flow.across + sent * outside
            )
            flow.waited += sent if step_kernels.is_synchronous(kernel) else 0.0
            flow.behind += sent if step_kernels.count_overlapped_work(kernel) else 0.0
    return sorted(found.values(), key=lambda flow: -flow.bytes)


def normalize_dimensions(sizes: Iterable[int]) -> Dimensions:
    """Return dimensions in order of size and without ones."""
    return tuple(sorted(size for size in sizes if size > 1))


def list_loops(program: HloModule) -> list[Loop]:
    """Return the bodies of the loops that communicate."""
    names = {id(computation): name for name, computation in program.computations.items()}
    found: dict[str, list[Kernel]] = {}
    for kernel in step_kernels.list_collective_kernels(program):
        name = names[id(kernel.computation)]
        if name != program.entry:
            found.setdefault(name, []).append(kernel)
    made = []
    for name, kernels in found.items():
        small = [
            each
            for each in kernels
            if each.instruction.opcode.startswith("all-reduce")
            and all(
                math.prod(parse_dimensions(shape)) <= MAX_SMALL_ELEMENTS
                for shape in split_tuple_shape(each.instruction.shape)
            )
        ]
        made.append(
            Loop(
                name,
                kernels[0].times,
                len(small),
                sum(_find_reduction(program, each.instruction) == "maximum" for each in small),
            )
        )
    return made


def format_traffic(found: list[Flow], bodies: list[Loop]) -> str:
    """Return them for people."""
    lines = [
        (
            f"{'':<20}{'':<13}{'':<9}{'times':>6}{'GB received':>13}"
            f"{'from other nodes':>18}{'waited for':>12}{'behind products':>17}"
        )
    ]
    for flow in found:
        across = "?" if flow.across is None else f"{flow.across / 1e9:.3f}"
        lines.append(
            f"{flow.kind:<20}{flow.role:<13}{flow.dtype:<9}{flow.times:>6}{flow.bytes / 1e9:>13.3f}"
            f"{across:>18}{flow.waited / 1e9:>12.3f}{flow.behind / 1e9:>17.3f}"
        )
    lines += [
        (
            f"loop of {body.times}: {body.small} all-reduces of small numbers, {body.largest} of "
            "them for the largest"
        )
        for body in bodies
    ]
    return "\n".join(lines)


def report_traffic(
    program: HloModule, per_node: int, parameters: Collection[Dimensions]
) -> dict[str, Any]:
    """Return flows and loops as JSON has them."""
    return {
        "flows": [asdict(flow) for flow in sum_flows(program, per_node, parameters)],
        "loops": [asdict(loop) for loop in list_loops(program)],
    }


def _iterate_array_shapes(program: HloModule, kernel: Kernel, kind: str) -> Iterator[str]:
    """Yield the shapes of the whole arrays that a collective moves."""
    if kind == "all-gather":
        yield from split_tuple_shape(step_kernels.find_output_shape(kernel.instruction))
        return
    for name in kernel.instruction.operands:
        source = kernel.computation.get(name)
        if source is not None:
            yield from _iterate_joined_shapes(program, source)


def _iterate_joined_shapes(program: HloModule, source: Instruction) -> Iterator[str]:
    """Yield the shapes that XLA concatenated into one message, or the source's own shape."""
    for name in source.called() if source.opcode == "fusion" else ():
        inner = program.computations.get(name, {})
        root = list(inner.values())[-1] if inner else None
        if (
            root is not None
            and root.opcode == "concatenate"
            and all(operand in inner for operand in root.operands)
        ):
            yield from (inner[operand].shape for operand in root.operands)
            return
    yield source.shape


def _classify_role(kind: str, shape: str, parameters: Collection[Dimensions]) -> str:
    if kind == "all-reduce" and math.prod(parse_dimensions(shape)) <= MAX_SMALL_ELEMENTS:
        return "small"
    if normalize_dimensions(parse_dimensions(shape)) in parameters and find_dtypes(shape)[
        0
    ].startswith(("f", "bf")):
        return {
            "all-gather": "parameters",
            "reduce-scatter": "gradients",
            "all-reduce": "gradients",
        }.get(kind, "activations")
    return "activations"


def _find_reduction(program: HloModule, instruction: Instruction) -> str:
    """Return the operation that an all-reduce combines by."""
    named = re.search(r"to_apply=%?([\w.\-]+)", instruction.rest)
    body = program.computations.get(named[1], {}) if named else {}
    return list(body.values())[-1].opcode if body else ""
