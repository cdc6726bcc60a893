"""Count the bytes that a kernel reads and writes.

A kernel need not read an operand whole. A fusion that takes a slice of a stack of layers reads the
slice, also if it changes the type or the dimensions of the stack first: XLA computes only the
elements that are needed. So the elements that a kernel needs are traced from its outputs back to
its operands, as XLA's own cost analysis does. An array that is updated in place is neither read nor
written outside of the update. Caches are not modelled.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from rosetta.plan.hlo_text import count_bytes, parse_dimensions, split_tuple_shape

if TYPE_CHECKING:
    from rosetta.plan.hlo_text import HloModule, Instruction

# Operations whose first operand is read only where the output comes from. All other operands are
# the indices.
_SLICES = ("slice", "dynamic-slice", "gather")
# Operations that need all elements of their operands to compute any of their own, or for which a
# share would mean little.
_WHOLE = ("dot", "custom-call", "sort", "scatter", "fusion", "convolution", "call", "while")


def find_output_shape(instruction: Instruction) -> str:
    """Return the shape of the arrays that an instruction computes."""
    elements = split_tuple_shape(instruction.shape)
    if (
        instruction.opcode == "custom-call"
        and len(elements) > 1
        and re.fullmatch(r"[su]8\[\d+\]\{0\}", elements[-1])
    ):
        # The last output of a library call is its workspace, which it need not use.
        return ", ".join(elements[:-1])
    if (
        instruction.opcode.endswith("-start")
        and not instruction.opcode.startswith("all-reduce")
        and len(elements) > 1
    ):
        # The start of an asynchronous operation has its inputs, its outputs and temporary values.
        # The start of an all-reduce has only its outputs.
        return elements[1]
    return instruction.shape


def find_fused_computation(module: HloModule, instruction: Instruction) -> dict[str, Instruction]:
    """Return the computation of a fusion, {} for other instructions."""
    if instruction.opcode != "fusion":
        return {}
    for name in instruction.find_called_computations():
        if name in module.computations:
            return module.computations[name]
    return {}


def count_moved_bytes(
    module: HloModule, computation: dict[str, Instruction], instruction: Instruction
) -> float:
    """Return the bytes that a kernel reads and writes.

    Args:
        module: The module of the kernel.
        computation: The computation that contains the kernel.
        instruction: The instruction that launches the kernel.
    """
    fused = find_fused_computation(module, instruction)
    if not fused:
        return _count_unfused_bytes(computation, instruction)
    parameters = [other for other in fused.values() if other.opcode == "parameter"]
    outputs = _find_outputs(fused)
    updates = {name: _find_update(fused, name) for name in outputs}
    needed = _count_needed_elements(fused, {update.name for update in updates.values() if update})
    read = sum(
        parameter.bytes * _compute_share(needed.get(parameter.name, 0.0), parameter)
        for parameter in parameters
    )
    written = 0.0
    for name, update in updates.items():
        # An update in place writes its second operand.
        written += fused[update.operands[1] if update else name].bytes
    return read + written


def _count_unfused_bytes(computation: dict[str, Instruction], instruction: Instruction) -> float:
    """Return the bytes that an instruction outside of a fusion reads and writes."""
    operands = [computation[name] for name in instruction.operands if name in computation]
    if instruction.opcode in _SLICES:
        # Indices and the slice are read, and the slice is written.
        return sum(operand.bytes for operand in operands[1:]) + 2 * instruction.bytes
    if instruction.opcode == "dynamic-update-slice":
        # The array is updated in place: indices and the update are read, and the update written.
        return sum(operand.bytes for operand in operands[1:]) + operands[1].bytes
    read = sum(operand.bytes for operand in operands)
    return read + count_bytes(find_output_shape(instruction))


def _find_outputs(fused: dict[str, Instruction]) -> list[str]:
    """Return the names of the instructions that a fusion writes: its root, or those of a tuple."""
    root = list(fused.values())[-1]
    return list(root.operands) if root.opcode == "tuple" else [root.name]


def _find_update(fused: dict[str, Instruction], name: str) -> Instruction | None:
    """Return the update in place that an output is, seen through bitcasts, else None.

    XLA updates in place if the array that is updated is an operand of the fusion.
    """
    output = _skip_bitcasts(fused, name)
    if output.opcode != "dynamic-update-slice":
        return None
    updated = _skip_bitcasts(fused, output.operands[0])
    return output if updated.opcode == "parameter" else None


def _skip_bitcasts(fused: dict[str, Instruction], name: str) -> Instruction:
    """Return an instruction, or the array of which it is a view."""
    instruction = fused[name]
    while instruction.opcode == "bitcast":
        instruction = fused[instruction.operands[0]]
    return instruction


def _count_needed_elements(
    fused: dict[str, Instruction], updates_in_place: set[str]
) -> dict[str, float]:
    """Return instruction of a fusion -> how many of its elements the outputs need."""
    needed = dict.fromkeys(_find_outputs(fused), math.inf)
    # Users come after what they use, so each instruction is complete when it is reached.
    for instruction in reversed(fused.values()):
        share = _compute_share(needed.get(instruction.name, 0.0), instruction)
        if not share or instruction.opcode in ("parameter", "tuple"):
            continue
        for index, name in enumerate(instruction.operands):
            if name not in fused:
                continue
            if instruction.name in updates_in_place and index == 0:
                continue
            demand = _count_operand_elements(instruction, fused[name], index, share)
            needed[name] = needed.get(name, 0.0) + demand
    return needed


def _count_operand_elements(
    instruction: Instruction, operand: Instruction, index: int, share: float
) -> float:
    """Return how many elements of an operand an instruction reads.

    Args:
        instruction: The instruction.
        operand: The operand.
        index: The number of the operand.
        share: The share of the instruction's own elements that is needed.
    """
    output_size, operand_size = _count_elements(instruction), _count_elements(operand)
    if instruction.opcode in _WHOLE:
        return operand_size
    if instruction.opcode in _SLICES:
        return share * output_size if index == 0 else operand_size
    if instruction.opcode == "dynamic-update-slice" and index:
        return operand_size
    if instruction.opcode == "broadcast":
        return min(share * output_size, operand_size)
    # Elementwise operations, views, reductions and concatenations need the same share.
    return share * operand_size


def _count_elements(instruction: Instruction) -> float:
    """Return the elements of an instruction, of all arrays of a tuple together."""
    return float(
        sum(
            math.prod(parse_dimensions(shape))
            for shape in split_tuple_shape(instruction.shape)
            if shape
        )
    )


def _compute_share(needed: float, instruction: Instruction) -> float:
    """Return the share of an instruction's elements that is needed, at most 1."""
    size = _count_elements(instruction)
    return min(needed / size, 1.0) if size else 0.0
