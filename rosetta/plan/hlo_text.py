"""Read the text of an optimised HLO module: computations, instructions and shapes.

HLO is the language that XLA compiles. A module has computations, and a computation has
instructions, one in each line.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Element type -> bytes of an element.
ELEMENT_BYTES = {
    "pred": 1,
    "s4": 0.5,
    "u4": 0.5,
    "s8": 1,
    "u8": 1,
    "f8e4m3fn": 1,
    "f8e5m2": 1,
    "f8e4m3": 1,
    "s16": 2,
    "u16": 2,
    "bf16": 2,
    "f16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
    "c64": 8,
    "c128": 16,
}
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|[^ ]+) ([\w\-]+)\((.*)$")
_CALLED = re.compile(
    r"(?:calls|to_apply|branch_computations|true_computation|false_computation"
    r"|called_computations)=(?:\{([^}]*)\}|%?([\w.\-]+))"
)
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\([^{]*\) -> [^{]*)?\{\s*$")


@dataclass(frozen=True)
class Instruction:
    """One line of HLO.

    Attributes:
        name: The name of the result.
        shape: The shape of the result, or a tuple of shapes.
        opcode: The operation, for example "fusion".
        operands: The names of the operands. The only operand of a parameter is its number.
        rest: The text after the operands: attributes, metadata and configuration.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @property
    def bytes(self) -> float:
        """The bytes of the result."""
        return count_bytes(self.shape)

    @property
    def op_name(self) -> str:
        """The path of scopes in the JAX program from which the instruction comes; "" if unknown."""
        match = re.search(r'op_name="([^"]*)"', self.rest)
        return match[1] if match else ""

    @property
    def target(self) -> str:
        """The library function that a custom call calls, "" for other instructions."""
        match = re.search(r'custom_call_target="([^"]*)"', self.rest)
        return match[1] if match else ""

    def find_called_computations(self) -> list[str]:
        """Return the names of the computations that the instruction calls, without loop bodies."""
        names: list[str] = []
        for listed, single in _CALLED.findall(self.rest):
            names += re.findall(r"[\w.\-]+", listed) if listed else [single]
        return names


@dataclass
class HloModule:
    """The computations of a module.

    Attributes:
        entry: The name of the computation that runs.
        computations: Name -> instructions by their names, in the order of the schedule.
    """

    entry: str = ""
    computations: dict[str, dict[str, Instruction]] = field(default_factory=dict)


def count_bytes(shape: str) -> float:
    """Return the bytes of a shape, or of a tuple of shapes, as HLO writes it.

    Element types without a size, such as tokens, count 0.
    """
    total = 0.0
    for dtype, dimensions in _SHAPE.findall(shape):
        if dtype in ELEMENT_BYTES:
            total += ELEMENT_BYTES[dtype] * math.prod(_parse_numbers(dimensions))
    return total


def split_tuple_shape(shape: str) -> list[str]:
    """Return the elements of a tuple's shape, or the shape itself if it is not a tuple."""
    if not shape.startswith("("):
        return [shape]
    inside = shape[1:-1]
    commas = [
        index for index, letter, depth in _iterate_depths(inside) if letter == "," and not depth
    ]
    cuts = [-1, *commas, len(inside)]
    return [inside[begin + 1 : end].strip() for begin, end in itertools.pairwise(cuts)]


def find_dtypes(shape: str) -> list[str]:
    """Return the element types of the shapes in a text, in order."""
    return [dtype for dtype, _ in _SHAPE.findall(shape)]


def parse_dimensions(shape: str) -> list[int]:
    """Return the dimensions of the first shape in a text."""
    match = _SHAPE.search(shape)
    return _parse_numbers(match[2]) if match else []


def _parse_numbers(text: str) -> list[int]:
    """Return the numbers in a list that is separated by commas."""
    return [int(number) for number in text.split(",") if number]


def parse_module(text: str) -> HloModule:
    """Return the module whose text this is."""
    module, computation = HloModule(), None
    for line in text.splitlines():
        if computation is None:
            if head := _HEAD.match(line):
                computation = module.computations.setdefault(head[2], {})
                if head[1]:
                    module.entry = head[2]
        elif line.startswith("}"):
            computation = None
        elif match := _LINE.match(line):
            name, shape, opcode, arguments = match.groups()
            operands, rest = _split_operands(arguments)
            computation[name] = Instruction(name, shape, opcode, operands, rest)
    return module


def _split_operands(text: str) -> tuple[tuple[str, ...], str]:
    """Return the operands and the rest of "%a, %b), attribute=...".

    The operands end at the parenthesis that closes. A parameter has a number instead of operands.
    """
    end = next((index for index, _, depth in _iterate_depths(text) if depth < 0), 0)
    inside, rest = text[:end], text[end + 1 :]
    if inside.isdigit():
        return (inside,), rest
    return tuple(re.findall(r"%([\w.\-]+)", inside)), rest


def _iterate_depths(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield (index, letter, number of brackets that are open after the letter)."""
    depth = 0
    for index, letter in enumerate(text):
        depth += letter in "([{"
        depth -= letter in ")]}"
        yield index, letter, depth
