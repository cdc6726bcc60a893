"""What a compiled step does on a device: its kernels, what they read and write, its matrix
products, attention and communication.

Counts are per device and step. A loop's body counts as often as its known trip count says. A kernel
is an instruction outside of fusions that does work on the device; its bytes are those of its
operands and outputs by their shapes, a slice's own where a fusion slices.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.plan.hlo_text import count_bytes, find_dtypes, parse_dimensions, split_tuple_shape

if TYPE_CHECKING:
    from rosetta.plan.hlo_text import HloModule, Instruction

# Instructions that launch nothing: bookkeeping, or the end of what was started elsewhere.
FREE_OPCODES = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "while",
    "call",
    "conditional",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "async-done",
    "async-update",
    "domain",
    "add-dependency",
    "iota",
}
COLLECTIVE_OPCODES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)


@dataclass(frozen=True)
class Kernel:
    """An instruction that launches a kernel, the computation it stands in, and how often it runs in
    a step.
    """

    instruction: Instruction
    computation: dict[str, Instruction]
    times: int
    bytes: float


@dataclass(frozen=True)
class Gemm:
    """A matrix product.

    `dtypes` are those of both factors; `kind` is fprop, dgrad, wgrad, or forward and backward where
    it is not said.
    """

    op_name: str
    dtypes: tuple[str, str]
    flops: float
    times: int
    kind: str
    rematerialised: bool

    @property
    def fp8(self) -> bool:
        """Are both factors in FP8?"""
        return all(each.startswith("f8") for each in self.dtypes)

    @property
    def product(self) -> str:
        """The layer and projection, without the program's own scopes."""
        path = re.sub(
            r"\b(?:jit|jvp|transpose|checkpoint|remat2?|vmap)\(([^()]*)\)",
            r"\1",
            re.sub(r"transpose\(jvp\(([^()]*)\)\)", r"\1", self.op_name),
        )
        words = [
            part
            for part in path.split("/")
            if part
            not in (
                "fprop",
                "dgrad",
                "wgrad",
                "dot_general",
                "checkpoint",
                "rematted_computation",
                "while",
                "body",
                "closed_call",
            )
        ]
        return "/".join(words[-3:])


@dataclass(frozen=True)
class Collective:
    """Communication between devices: what each of them ends up with, in bytes, and the matrix
    products and attention that run meanwhile.

    `dtype` names every type of a collective that several were combined into: "f32+s32".
    """

    kind: str
    dtype: str
    bytes: float
    times: int
    asynchronous: bool
    behind: int


def list_kernels(program: HloModule) -> list[Kernel]:
    """Return everything that runs on the device in a step.

    Of a conditional's branches it is the one that moves most bytes.
    """
    return _list_computation_kernels(program, program.entry, 1)


def _list_computation_kernels(program: HloModule, name: str, times: int) -> list[Kernel]:
    found: list[Kernel] = []
    computation = program.computations.get(name, {})
    for instruction in computation.values():
        if instruction.opcode == "while":
            body, trips = _read_loop(instruction)
            found += _list_computation_kernels(program, body, times * trips)
        elif instruction.opcode in ("call", "async-start"):
            for called in instruction.called():
                found += _list_computation_kernels(program, called, times)
        elif instruction.opcode == "conditional":
            branches = [
                _list_computation_kernels(program, called, times) for called in instruction.called()
            ]
            found += max(
                branches,
                key=lambda branch: sum(each.times * each.bytes for each in branch),
                default=[],
            )
        elif (
            instruction.opcode not in FREE_OPCODES
            and not instruction.opcode.endswith("-done")
            and not instruction.target.startswith(("Sharding", "SPMD"))
        ):
            found.append(
                Kernel(
                    instruction,
                    computation,
                    times,
                    _count_moved_bytes(program, computation, instruction),
                )
            )
    return found


def _read_loop(instruction: Instruction) -> tuple[str, int]:
    """Return the body of a loop, and how often it runs; once if that is not known."""
    trips = re.search(r'known_trip_count"?[:=]\{"?n"?:"?(\d+)', instruction.rest)
    body = re.search(r"body=%?([\w.\-]+)", instruction.rest)
    return body[1] if body else "", int(trips[1]) if trips else 1


def _count_moved_bytes(
    program: HloModule, computation: dict[str, Instruction], instruction: Instruction
) -> float:
    """Bytes that a kernel reads and writes."""
    inner = (
        next(
            (
                program.computations[name]
                for name in instruction.called()
                if name in program.computations
            ),
            None,
        )
        if instruction.opcode == "fusion"
        else None
    )
    ordered = (
        sorted(
            (each for each in inner.values() if each.opcode == "parameter"),
            key=lambda each: int(each.operands[0]),
        )
        if inner
        else []
    )
    total, written = 0.0, count_bytes(find_output_shape(instruction))
    for index, operand in enumerate(instruction.operands):
        source = computation.get(operand)
        full = source.bytes if source else 0.0
        if inner and index < len(ordered):
            uses = [each for each in inner.values() if ordered[index].name in each.operands]
            if uses and all(
                each.opcode in ("slice", "dynamic-slice", "gather")
                and each.operands[0] == ordered[index].name
                for each in uses
            ):
                full = sum(each.bytes for each in uses)
            elif uses and all(
                each.opcode == "dynamic-update-slice" and each.operands[0] == ordered[index].name
                for each in uses
            ):
                # Updated in place: what is written is the update, and nothing of the rest is read.
                update = sum(
                    inner[each.operands[1]].bytes for each in uses if each.operands[1] in inner
                )
                written += update - sum(each.bytes for each in uses)
                full = 0.0
        total += full
    return total + max(written, 0.0)


def find_output_shape(instruction: Instruction) -> str:
    """Return the shape of what an instruction makes."""
    elements = split_tuple_shape(instruction.shape)
    if (
        instruction.opcode == "custom-call"
        and len(elements) > 1
        and re.fullmatch(r"[su]8\[\d+\]\{0\}", elements[-1])
    ):
        return ", ".join(
            elements[:-1]
        )  # the last of a library call's outputs is workspace, its to use or not
    if (
        instruction.opcode.endswith("-start")
        and not instruction.opcode.startswith("all-reduce")
        and len(elements) > 1
    ):
        # What is started holds its inputs, its outputs, and what the device needs meanwhile; an
        # all-reduce that is started, its outputs only.
        return elements[1]
    return instruction.shape


def list_gemms(program: HloModule) -> list[Gemm]:
    """Return every matrix product: library calls, and those that XLA compiles into fusions
    itself.
    """
    found = []
    for kernel in list_kernels(program):
        instruction = kernel.instruction
        if (
            instruction.opcode == "dot"
            or "matmul" in instruction.target
            or "gemm" in instruction.target.lower()
        ):
            found.append(_make_gemm(kernel.computation, instruction, kernel.times))
        elif instruction.opcode == "fusion":
            for name in instruction.called():
                inner = program.computations.get(name, {})
                found += [
                    _make_gemm(inner, each, kernel.times)
                    for each in inner.values()
                    if each.opcode == "dot"
                ]
    return found


def _make_gemm(computation: dict[str, Instruction], instruction: Instruction, times: int) -> Gemm:
    left, right = (computation[name].shape for name in instruction.operands[:2])
    # A dot has lhs_contracting_dims={1}, a library call "lhs_contracting_dimensions":["1"].
    found = re.search(r"lhs_contracting_dim(?:ension)?s\"?[=:][{\[]([^}\]]*)", instruction.rest)
    contracted = [
        parse_dimensions(left)[int(each)] for each in re.findall(r"\d+", found[1] if found else "")
    ]
    flops = 2.0 * math.prod(parse_dimensions(instruction.shape)) * math.prod(contracted)
    kind = next(
        (each for each in ("fprop", "dgrad", "wgrad") if f"/{each}/" in instruction.op_name),
        "backward" if "transpose(jvp" in instruction.op_name else "forward",
    )
    return Gemm(
        instruction.op_name,
        (find_dtypes(left)[0], find_dtypes(right)[0]),
        flops,
        times,
        kind,
        "rematted_computation" in instruction.op_name,
    )


def count_attention_kernels(program: HloModule) -> dict[str, int]:
    """Return how often each kind of cuDNN's fused attention runs."""
    found: dict[str, int] = {}
    for kernel in _list_attention_kernels(program):
        found[kernel.instruction.target] = found.get(kernel.instruction.target, 0) + kernel.times
    return found


def count_attention_flops(program: HloModule) -> float | None:
    """Return the FLOPs of cuDNN's fused attention: two products of queries, keys and depth
    forwards, and five backwards, as if nothing were masked.

    None where queries or keys have other dimensions than batch, length, heads and depth.
    """
    total = 0.0
    for kernel in _list_attention_kernels(program):
        query, key = (
            parse_dimensions(kernel.computation[name].shape)
            for name in kernel.instruction.operands[:2]
        )
        if len(query) != 4 or len(key) != 4:
            return None
        total += (
            kernel.times
            * (5 if "Backward" in kernel.instruction.target else 2)
            * 2.0
            * math.prod(query)
            * key[1]
        )
    return total


def _list_attention_kernels(program: HloModule) -> list[Kernel]:
    return [kernel for kernel in list_kernels(program) if "fmha" in kernel.instruction.target]


def list_collectives(program: HloModule) -> list[Collective]:
    """Return the communication between devices."""
    found = []
    for kernel in list_collective_kernels(program):
        shape = find_output_shape(kernel.instruction)
        started = kernel.instruction.opcode.endswith("-start")
        found.append(
            Collective(
                kernel.instruction.opcode.removesuffix("-start"),
                "+".join(sorted(set(find_dtypes(shape)))),
                count_bytes(shape),
                kernel.times,
                started,
                count_overlapped_work(kernel),
            )
        )
    return found


def list_collective_kernels(program: HloModule) -> list[Kernel]:
    """Return the kernels that communicate between devices."""
    return [
        kernel
        for kernel in list_kernels(program)
        if kernel.instruction.opcode.removesuffix("-start") in COLLECTIVE_OPCODES
    ]


def is_synchronous(kernel: Kernel) -> bool:
    """Return whether the device does nothing else while this kernel communicates."""
    return (
        not kernel.instruction.opcode.endswith("-start")
        or '"is_sync":true' in kernel.instruction.rest
    )


def count_overlapped_work(kernel: Kernel) -> int:
    """Return how many products, attentions and loops run while a kernel communicates, until the
    instruction that waits for it.
    """
    if is_synchronous(kernel):
        return 0
    end = kernel.instruction.opcode.removesuffix("-start") + "-done"
    # The text is in the order of the schedule: what stands between start and end runs meanwhile.
    order = list(kernel.computation.values())
    running = 0
    for other in order[order.index(kernel.instruction) + 1 :]:
        if other.opcode == end and kernel.instruction.name in other.operands:
            break
        running += "matmul" in other.target or "fmha" in other.target or other.opcode == "while"
    return running
