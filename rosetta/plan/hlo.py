"""Reading of optimised HLO text for GPUs: which kernels run how often, what they read and write, which products they are.

Counts are per device and step. A loop's body counts as often as its known trip count says. A kernel is an instruction outside of fusions
that does work on the device; its bytes are those of its operands and outputs by their shapes, a slice's own where a fusion slices.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "f8e4m3": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip
# Instructions that launch nothing: bookkeeping, or the end of what was started elsewhere.
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "call", "conditional", "partition-id", "replica-id",
    "opt-barrier", "async-done", "async-update", "domain", "add-dependency", "iota",
}  # fmt: skip
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast", "ragged-all-to-all")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|[^ ]+) ([\w\-]+)\((.*)$")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\([^{]*\) -> [^{]*)?\{\s*$")


@dataclass(frozen=True)
class Instruction:
    """One line of HLO. `rest` is what follows the operands: attributes, metadata, configuration."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @property
    def bytes(self) -> float:
        """Of its output."""
        return size(self.shape)

    @property
    def op_name(self) -> str:
        """Where in the program it comes from."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""

    @property
    def target(self) -> str:
        """Of a custom call."""
        found = re.search(r'custom_call_target="([^"]*)"', self.rest)
        return found[1] if found else ""

    def called(self) -> list[str]:
        """The computations it names."""
        found = re.findall(r"(?:calls|to_apply|branch_computations|true_computation|false_computation|called_computations)=(?:\{([^}]*)\}|%?([\w.\-]+))", self.rest)
        return [name for several, one in found for name in (re.findall(r"[\w.\-]+", several) if several else [one])]


@dataclass(frozen=True)
class Kernel:
    """An instruction that launches a kernel, and how often it runs in a step."""

    instruction: Instruction
    times: int
    bytes: float


@dataclass(frozen=True)
class Gemm:
    """A matrix product by a library. `dtypes` are those of both factors; `kind` is fprop, dgrad, wgrad, or forward and backward where it is not said."""

    op_name: str
    dtypes: tuple[str, str]
    flops: float
    times: int
    fp8: bool
    kind: str
    rematerialised: bool

    @property
    def product(self) -> str:
        """The layer and projection, without the program's own scopes."""
        path = re.sub(r"\b(?:jit|jvp|transpose|checkpoint|remat2?|vmap)\(([^()]*)\)", r"\1", re.sub(r"transpose\(jvp\(([^()]*)\)\)", r"\1", self.op_name))
        parts = [part for part in path.split("/") if part not in ("fprop", "dgrad", "wgrad", "dot_general", "checkpoint", "rematted_computation", "while", "body", "closed_call")]
        return "/".join(parts[-3:])


@dataclass(frozen=True)
class Collective:
    """Communication between devices: what each of them ends up with, in bytes, and the matrix products and attention that run meanwhile."""

    kind: str
    dtype: str
    bytes: float
    times: int
    asynchronous: bool
    behind: int


@dataclass
class Program:
    """A module's computations: for each its instructions by name, in order."""

    entry: str = ""
    computations: dict[str, dict[str, Instruction]] = field(default_factory=dict)


def size(shape: str) -> float:
    """Return the bytes of a shape or tuple of shapes as HLO writes them."""
    total = 0.0
    for kind, dimensions in _SHAPE.findall(shape):
        if kind in BYTES:
            total += BYTES[kind] * math.prod(int(each) for each in dimensions.split(",") if each)
    return total


def dims(shape: str) -> list[int]:
    """Return the dimensions of the first shape in a text."""
    found = _SHAPE.search(shape)
    return [int(each) for each in found[2].split(",") if each] if found else []


def parse(text: str) -> Program:
    """Read a module's text."""
    program, current = Program(), None
    for line in text.splitlines():
        if current is None:
            if head := _HEAD.match(line):
                current = program.computations.setdefault(head[2], {})
                if head[1]:
                    program.entry = head[2]
        elif line.startswith("}"):
            current = None
        elif found := _LINE.match(line):
            operands, rest = _operands(found[4])
            current[found[1]] = Instruction(found[1], found[2], found[3], operands, rest)
    return program


def _operands(text: str) -> tuple[tuple[str, ...], str]:
    """Split "a, %b), attribute=..." at the closing parenthesis; a parameter's only operand is its number."""
    depth = 0
    for index, letter in enumerate(text):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if depth < 0:
            inside = text[:index]
            return (inside,) if inside.isdigit() else tuple(re.findall(r"%([\w.\-]+)", inside)), text[index + 1 :]
    return (), text


def kernels(program: Program) -> list[Kernel]:
    """Return everything that runs on the device in a step."""
    found: list[Kernel] = []
    _walk(program, program.entry, 1, found)
    return found


def _walk(program: Program, name: str, times: int, found: list[Kernel]) -> None:
    computation = program.computations.get(name, {})
    for instruction in computation.values():
        if instruction.opcode == "while":
            body, trips = _loop(instruction)
            _walk(program, body, times * trips, found)
        elif instruction.opcode in ("call", "async-start"):
            for called in instruction.called():
                _walk(program, called, times, found)
        elif instruction.opcode == "conditional":
            branches: list[list[Kernel]] = []
            for called in instruction.called():
                branches.append([])
                _walk(program, called, times, branches[-1])
            found += max(branches, key=lambda branch: sum(each.times * each.bytes for each in branch), default=[])  # one of them runs
        elif instruction.opcode not in FREE and not instruction.opcode.endswith("-done") and not instruction.target.startswith(("Sharding", "SPMD")):
            found.append(Kernel(instruction, times, _moved(program, computation, instruction)))


def _loop(instruction: Instruction) -> tuple[str, int]:
    """The body of a loop, and how often it runs; once where that is not known."""
    trips = re.search(r'known_trip_count"?[:=]\{"?n"?:"?(\d+)', instruction.rest)
    body = re.search(r"body=%?([\w.\-]+)", instruction.rest)
    return body[1] if body else "", int(trips[1]) if trips else 1


def _moved(program: Program, computation: dict[str, Instruction], instruction: Instruction) -> float:
    """Bytes that a kernel reads and writes."""
    inner = next((program.computations[name] for name in instruction.called() if name in program.computations), None) if instruction.opcode == "fusion" else None
    ordered = sorted((each for each in inner.values() if each.opcode == "parameter"), key=lambda each: int(each.operands[0])) if inner else []
    # Workspace, the last of a library call's outputs, is its to use or not.
    outputs = re.sub(r", [su]8\[\d+\]\{0\}\)$", ")", instruction.shape) if instruction.opcode == "custom-call" else instruction.shape
    total, written = 0.0, size(outputs)
    for index, operand in enumerate(instruction.operands):
        source = computation.get(operand)
        full = source.bytes if source else 0.0
        if inner and index < len(ordered):
            uses = [each for each in inner.values() if ordered[index].name in each.operands]
            if uses and all(each.opcode in ("slice", "dynamic-slice", "gather") and each.operands[0] == ordered[index].name for each in uses):
                full = sum(each.bytes for each in uses)
            elif uses and all(each.opcode == "dynamic-update-slice" and each.operands[0] == ordered[index].name for each in uses):
                # Updated in place: what is written is the update, and nothing of the rest is read.
                update = sum(inner[each.operands[1]].bytes for each in uses if each.operands[1] in inner)
                written += update - sum(each.bytes for each in uses)
                full = 0.0
        total += full
    return total + max(written, 0.0)


def gemms(program: Program) -> list[Gemm]:
    """Return every matrix product: library calls, and those that XLA compiles into fusions itself."""
    found = []
    for kernel in kernels(program):
        instruction = kernel.instruction
        if "matmul" in instruction.target or "gemm" in instruction.target.lower():
            found.append(_gemm(program, instruction, kernel.times))
        elif instruction.opcode == "fusion":
            for name in instruction.called():
                inner = program.computations.get(name, {})
                found += [_dot(inner, each, kernel.times) for each in inner.values() if each.opcode == "dot"]
        elif instruction.opcode == "dot":
            found.append(_dot(next(each for each in program.computations.values() if instruction.name in each), instruction, kernel.times))
    return found


def _gemm(program: Program, instruction: Instruction, times: int) -> Gemm:
    computation = next(each for each in program.computations.values() if each.get(instruction.name) is instruction)
    left, right = (computation[name] for name in instruction.operands[:2])
    found = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.rest)
    contracting = [int(each) for each in re.findall(r"\d+", found[1])] if found else []
    shape = dims(left.shape)
    output = math.prod(dims(instruction.shape.lstrip("(")))
    flops = 2.0 * output * math.prod(shape[index] for index in contracting if index < len(shape))
    dtypes = tuple(_SHAPE.findall(each.shape)[0][0] for each in (left, right))
    return Gemm(instruction.op_name, (dtypes[0], dtypes[1]), flops, times, "$f8" in instruction.target, *_role(instruction.op_name))


def _dot(computation: dict[str, Instruction], instruction: Instruction, times: int) -> Gemm:
    found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.rest)
    left, right = (computation[name] for name in instruction.operands[:2])
    shape = dims(left.shape)
    flops = 2.0 * math.prod(dims(instruction.shape)) * math.prod(shape[int(each)] for each in (found[1] if found else "").split(",") if each)
    dtypes = tuple(_SHAPE.findall(each.shape)[0][0] for each in (left, right))
    return Gemm(instruction.op_name, (dtypes[0], dtypes[1]), flops, times, all(each.startswith("f8") for each in dtypes), *_role(instruction.op_name))


def _role(op_name: str) -> tuple[str, bool]:
    kind = next((each for each in ("fprop", "dgrad", "wgrad") if f"/{each}/" in op_name), "backward" if "transpose(jvp" in op_name else "forward")
    return kind, "rematted_computation" in op_name


def attention(program: Program) -> dict[str, int]:
    """Return how often each kind of cuDNN's fused attention runs."""
    found: dict[str, int] = {}
    for kernel in kernels(program):
        if "fmha" in kernel.instruction.target:
            found[kernel.instruction.target] = found.get(kernel.instruction.target, 0) + kernel.times
    return found


def attention_flops(program: Program) -> float:
    """Return the FLOPs of cuDNN's fused attention: two products of queries, keys and depth forwards, and five backwards, as if nothing were masked."""
    total = 0.0
    for kernel in kernels(program):
        if "fmha" in kernel.instruction.target:
            shapes = re.search(r"operand_layout_constraints=\{([^=]*)\}", kernel.instruction.rest)
            query, key = (dims(each) for each in re.findall(r"\w+\[[\d,]+\]", shapes[1] if shapes else "")[:2])
            batch, length, heads, depth = query
            products = 5 if "Backward" in kernel.instruction.target else 2
            total += kernel.times * products * 2.0 * batch * heads * length * key[1] * depth
    return total


def collectives(program: Program) -> list[Collective]:
    """Return the communication between devices."""
    found: list[Collective] = []
    _communication(program, program.entry, 1, found)
    return found


def _communication(program: Program, name: str, times: int, found: list[Collective]) -> None:
    computation = program.computations.get(name, {})
    order = list(computation.values())
    for index, instruction in enumerate(order):
        if instruction.opcode == "while":
            inner, trips = _loop(instruction)
            _communication(program, inner, times * trips, found)
        elif instruction.opcode in ("call", "conditional"):
            for called in instruction.called():
                _communication(program, called, times, found)
        base = instruction.opcode.removesuffix("-start")
        if base not in COLLECTIVES:
            continue
        started = instruction.opcode.endswith("-start")
        shapes = _SHAPE.findall(instruction.shape)
        output = size(instruction.shape) / (2 if started and base != "all-reduce" else 1)
        behind = 0
        if started and '"is_sync":true' not in instruction.rest:
            # The text is in the order of the schedule: what stands between start and end runs meanwhile.
            for other in order[index + 1 :]:
                if other.opcode == f"{base}-done" and instruction.name in other.operands:
                    break
                behind += "matmul" in other.target or "fmha" in other.target or other.opcode == "while"
        found.append(Collective(base, shapes[0][0] if shapes else "", output, times, started, behind))
