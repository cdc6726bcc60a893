"""List the kernels of a compiled step: matrix products, attention, collectives and all others.

A kernel is an instruction outside of fusions that does work on the device. Its bytes are those of
its operands and outputs, as their shapes say. If a kernel needs only a slice of an operand, the
bytes of the slice count, see rosetta.plan.moved_bytes. All counts are for one device and one step.
The body of a loop counts as often as its known trip count says.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.plan import moved_bytes
from rosetta.plan.hlo_text import count_bytes, find_dtypes, parse_dimensions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rosetta.plan.hlo_text import HloModule, Instruction

# Instructions that launch no kernel: bookkeeping, or the end of an asynchronous operation.
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
# Transformer Engine's custom calls, as transformer_engine/jax/csrc/extensions/pybind.cpp of version
# 2.20.2 registers them: matrix products, and attention.
_TE_PREFIX = "te_"
_TE_PRODUCTS = ("te_gemm_ffi", "te_gemm_v2_ffi")
_TE_ATTENTION = ("te_fused_attn_forward_ffi", "te_fused_attn_backward_ffi")
# The call of a kernel that Pallas wrote for Triton: until jaxlib 0.10.2, and after it.
PALLAS_CALLS = ("__gpu$xla.gpu.triton", "triton_kernel_call_ffi")
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
    """An instruction that launches a kernel.

    Attributes:
        instruction: The instruction.
        computation: The computation that contains it, instructions by name.
        times: How often it runs in a step.
        bytes: What it reads and writes in one run.
    """

    instruction: Instruction
    computation: dict[str, Instruction]
    times: int
    bytes: float


@dataclass(frozen=True)
class Gemm:
    """A matrix product.

    Attributes:
        op_name: The path of its scopes in the JAX program.
        dtypes: The element types of both factors.
        flops: Floating-point operations of one run.
        sizes: The products of one run, and their rows, columns and depth: the depth is summed over.
        times: How often it runs in a step.
        kind: "fprop", "dgrad" or "wgrad" if a scope says so, else "forward" or "backward".
        rematerialised: Whether it repeats a product of the forward pass in the backward pass.
    """

    op_name: str
    dtypes: tuple[str, str]
    flops: float
    sizes: tuple[int, int, int, int]
    times: int
    kind: str
    rematerialised: bool

    @property
    def fp8(self) -> bool:
        """Whether both factors are in FP8."""
        return all(dtype.startswith("f8") for dtype in self.dtypes)

    @property
    def product(self) -> str:
        """The last three scopes, without those that JAX adds: the layer and the projection."""
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
    """Communication between devices.

    Attributes:
        kind: The operation, for example "all-reduce".
        dtype: The element types of its arrays, for example "f32+s32".
        bytes: The bytes that each device has afterwards.
        times: How often it runs in a step.
        asynchronous: Whether it is split into a start and an end.
        behind: How many matrix products, attention kernels and loops run between start and end.
    """

    kind: str
    dtype: str
    bytes: float
    times: int
    asynchronous: bool
    behind: int


def list_kernels(module: HloModule) -> list[Kernel]:
    """Return the kernels of a step.

    Of the branches of a conditional, the one that moves most bytes counts.
    """
    return _list_computation_kernels(module, module.entry, 1)


def _list_computation_kernels(module: HloModule, name: str, times: int) -> list[Kernel]:
    """Return the kernels of a computation that runs `times` times."""
    kernels: list[Kernel] = []
    computation = module.computations.get(name, {})
    for instruction in computation.values():
        if instruction.opcode == "while":
            body, trips = read_loop(instruction)
            kernels += _list_computation_kernels(module, body, times * trips)
        elif instruction.opcode in ("call", "async-start"):
            for called in instruction.find_called_computations():
                kernels += _list_computation_kernels(module, called, times)
        elif instruction.opcode == "conditional":
            branches = [
                _list_computation_kernels(module, called, times)
                for called in instruction.find_called_computations()
            ]
            kernels += max(branches, key=_count_total_bytes, default=[])
        elif launches_kernel(instruction):
            moved = moved_bytes.count_moved_bytes(module, computation, instruction)
            kernels.append(Kernel(instruction, computation, times, moved))
    return kernels


def _count_total_bytes(kernels: Iterable[Kernel]) -> float:
    """Return the bytes that kernels move in a step."""
    return sum(kernel.times * kernel.bytes for kernel in kernels)


def launches_kernel(instruction: Instruction) -> bool:
    """Return whether an instruction itself does work on the device."""
    return (
        instruction.opcode not in FREE_OPCODES
        and not instruction.opcode.endswith("-done")
        and not instruction.target.startswith(("Sharding", "SPMD"))
    )


def read_loop(instruction: Instruction) -> tuple[str, int]:
    """Return the body of a loop and its trip count, which is 1 if it is not known."""
    trips = re.search(r'known_trip_count"?[:=]\{"?n"?:"?(\d+)', instruction.rest)
    body = re.search(r"body=%?([\w.\-]+)", instruction.rest)
    return body[1] if body else "", int(trips[1]) if trips else 1


def list_gemms(module: HloModule) -> list[Gemm]:
    """Return the matrix products: calls of libraries, and those that XLA compiles in fusions."""
    return [gemm for kernel in list_kernels(module) for gemm in list_kernel_gemms(module, kernel)]


def list_kernel_gemms(module: HloModule, kernel: Kernel) -> list[Gemm]:
    """Return the matrix products that a kernel computes: the one of a library, or those fused."""
    if _is_product(kernel.instruction):
        return [_make_gemm(kernel.computation, kernel.instruction, kernel.times)]
    fused = moved_bytes.find_fused_computation(module, kernel.instruction)
    return [
        _make_gemm(fused, instruction, kernel.times)
        for instruction in fused.values()
        if _is_product(instruction)
    ]


def _is_product(instruction: Instruction) -> bool:
    """Return whether an instruction is a matrix product, by itself or as a call of a library.

    Grouped products of Transformer Engine do not count: their sizes are not in the text.
    """
    target = instruction.target
    if target.startswith(_TE_PREFIX):
        return target in _TE_PRODUCTS
    return instruction.opcode == "dot" or "matmul" in target or "gemm" in target.lower()


def _make_gemm(computation: dict[str, Instruction], instruction: Instruction, times: int) -> Gemm:
    """Return the matrix product that an instruction computes."""
    left, right = _find_factors(computation, instruction)
    elements = math.prod(parse_dimensions(instruction.shape))
    sizes = _compute_sizes(instruction, left, right)
    depth = sizes[-1]
    op_name = instruction.op_name
    scopes = [scope for scope in ("fprop", "dgrad", "wgrad") if f"/{scope}/" in op_name]
    direction = "backward" if "transpose(jvp" in op_name else "forward"
    return Gemm(
        op_name,
        (find_dtypes(left)[0], find_dtypes(right)[0]),
        2.0 * elements * depth,
        sizes,
        times,
        scopes[0] if scopes else direction,
        "rematted_computation" in op_name,
    )


def _find_factors(computation: dict[str, Instruction], instruction: Instruction) -> tuple[str, str]:
    """Return the shapes of the factors of a product."""
    # Transformer Engine's calls have the scale of each factor after the factor.
    step = 2 if instruction.target in _TE_PRODUCTS else 1
    left, right = instruction.operands[: step + 1 : step]
    return computation[left].shape, computation[right].shape


def _compute_sizes(instruction: Instruction, left: str, right: str) -> tuple[int, int, int, int]:
    """Return the number of products of an instruction, and their rows, columns and depth.

    Args:
        instruction: The product.
        left: The shape of the left factor.
        right: The shape of the right factor.
    """
    dimensions = parse_dimensions(left)
    elements = math.prod(parse_dimensions(instruction.shape))
    if instruction.target in _TE_PRODUCTS:
        # The call names no axes, and each factor may be transposed. Of one product with R rows, C
        # columns and depth D, the factors have R*D and D*C elements, and the output has R*C.
        left_size, right_size = math.prod(dimensions), math.prod(parse_dimensions(right))
        depth = math.isqrt(left_size * right_size // elements)
        return 1, left_size // depth, right_size // depth, depth
    depth = math.prod(dimensions[axis] for axis in _parse_axes(instruction, "contracting"))
    count = math.prod(dimensions[axis] for axis in _parse_axes(instruction, "batch"))
    rows = math.prod(dimensions) // (depth * count)
    return count, rows, elements // (rows * count), depth


def _parse_axes(instruction: Instruction, kind: str) -> list[int]:
    """Return the axes of a product's left factor that are contracted, or that count products.

    Args:
        instruction: The product.
        kind: "contracting" or "batch".
    """
    # A dot has lhs_contracting_dims={1}, a library call "lhs_contracting_dimensions":["1"].
    pattern = rf"lhs_{kind}_dim(?:ension)?s\"?[=:]\s*[{{\[]([^}}\]]*)"
    match = re.search(pattern, instruction.rest)
    return [int(axis) for axis in re.findall(r"\d+", match[1] if match else "")]


def count_attention_kernels(module: HloModule) -> dict[str, int]:
    """Return function of a fused attention -> how often it runs in a step."""
    counts: dict[str, int] = {}
    for kernel in _list_attention_kernels(module):
        target = kernel.instruction.target
        counts[target] = counts.get(target, 0) + kernel.times
    return counts


def count_attention_flops(module: HloModule) -> float | None:
    """Return the FLOPs of fused attention, without regard to masks.

    The forward pass has two products of queries, keys and depth, the backward pass five.

    Returns:
        The FLOPs, or None if the dimensions of queries or keys are not batch, length, heads and
        depth.
    """
    total = 0.0
    for kernel in _list_attention_kernels(module):
        flops = count_kernel_attention_flops(kernel)
        if flops is None:
            return None
        total += kernel.times * flops
    return total


def count_kernel_attention_flops(kernel: Kernel) -> float | None:
    """Return the FLOPs of one run of fused attention, see `count_attention_flops`."""
    operands = kernel.instruction.operands
    query, key = (parse_dimensions(kernel.computation[name].shape) for name in operands[:2])
    if len(query) != 4 or len(key) != 4:
        return None
    products = 5 if "backward" in kernel.instruction.target.lower() else 2
    return products * 2.0 * math.prod(query) * key[1]


def _list_attention_kernels(module: HloModule) -> list[Kernel]:
    """Return the kernels of fused attention."""
    return [kernel for kernel in list_kernels(module) if is_attention(kernel.instruction)]


def is_attention(instruction: Instruction) -> bool:
    """Return whether an instruction is a call of fused attention: cuDNN's or Transformer Engine's.

    Transformer Engine's calls also begin with queries and keys.
    """
    return "fmha" in instruction.target or instruction.target in _TE_ATTENTION


def is_pallas(instruction: Instruction) -> bool:
    """Return whether an instruction is a kernel that was written in Pallas."""
    return instruction.target in PALLAS_CALLS


def list_collectives(module: HloModule) -> list[Collective]:
    """Return the collectives of a step."""
    collectives = []
    for kernel in list_collective_kernels(module):
        shape = moved_bytes.find_output_shape(kernel.instruction)
        opcode = kernel.instruction.opcode
        collectives.append(
            Collective(
                opcode.removesuffix("-start"),
                "+".join(sorted(set(find_dtypes(shape)))),
                count_bytes(shape),
                kernel.times,
                opcode.endswith("-start"),
                count_overlapped_work(module, kernel),
            )
        )
    return collectives


def list_collective_kernels(module: HloModule) -> list[Kernel]:
    """Return the kernels that communicate between devices."""
    return [
        kernel
        for kernel in list_kernels(module)
        if kernel.instruction.opcode.removesuffix("-start") in COLLECTIVE_OPCODES
    ]


def count_collective_bytes(kernel: Kernel) -> float:
    """Return the bytes of the whole arrays of a collective: those that an all-gather has made, and
    those that all others take.
    """
    if kernel.instruction.opcode.removesuffix("-start") == "all-gather":
        return count_bytes(moved_bytes.find_output_shape(kernel.instruction))
    return sum(
        kernel.computation[name].bytes
        for name in kernel.instruction.operands
        if name in kernel.computation
    )


def is_synchronous(kernel: Kernel) -> bool:
    """Return whether a device does nothing else while a collective runs."""
    return (
        not kernel.instruction.opcode.endswith("-start")
        or '"is_sync":true' in kernel.instruction.rest
    )


def count_overlapped_work(module: HloModule, kernel: Kernel) -> int:
    """Return how many kernels with products or attention, and loops, run beside a collective.

    A product counts whether a library computes it or XLA compiles it into a fusion (Triton).
    """
    if is_synchronous(kernel):
        return 0
    done_opcode = kernel.instruction.opcode.removesuffix("-start") + "-done"
    # The text has the order of the schedule: what is between start and end runs at the same time.
    instructions = list(kernel.computation.values())
    count = 0
    for other in instructions[instructions.index(kernel.instruction) + 1 :]:
        if other.opcode == done_opcode and kernel.instruction.name in other.operands:
            break
        count += _computes(module, other)
    return count


def _computes(module: HloModule, instruction: Instruction) -> bool:
    """Return whether an instruction has enough work to hide communication.

    That is a product, attention or a loop, or a fusion or call that contains one of them.
    """
    if instruction.opcode == "while" or is_attention(instruction) or _is_product(instruction):
        return True
    if instruction.opcode not in ("fusion", "call", "async-start", "conditional"):
        return False
    return any(
        _computes(module, inner)
        for name in instruction.find_called_computations()
        for inner in module.computations.get(name, {}).values()
    )
