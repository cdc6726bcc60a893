"""Reading of optimised HLO text: computations, instructions, shapes."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        return count_bytes(self.shape)

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
        """Return the computations that the instruction names."""
        found = re.findall(
            r"(?:calls|to_apply|branch_computations|true_computation|false_computation|called_computations)=(?:\{([^}]*)\}|%?([\w.\-]+))",
            self.rest,
        )
        return [
            name
            for several, one in found
            for name in (re.findall(r"[\w.\-]+", several) if several else [one])
        ]


@dataclass
class HloModule:
    """A module's computations: for each its instructions by name, in order."""

    entry: str = ""
    computations: dict[str, dict[str, Instruction]] = field(default_factory=dict)


def count_bytes(shape: str) -> float:
    """Return the bytes of a shape or tuple of shapes as HLO writes them."""
    total = 0.0
    for kind, dimensions in _SHAPE.findall(shape):
        if kind in ELEMENT_BYTES:
            total += ELEMENT_BYTES[kind] * math.prod(
                int(each) for each in dimensions.split(",") if each
            )
    return total


def split_tuple_shape(shape: str) -> list[str]:
    """Return the elements of a tuple's shape, themselves shapes or tuples; of any other shape,
    itself.
    """
    if not shape.startswith("("):
        return [shape]
    inside = shape[1:-1]
    cuts = [
        -1,
        *(index for index, letter, depth in _iterate_depths(inside) if letter == "," and not depth),
        len(inside),
    ]
    return [inside[begin + 1 : end].strip() for begin, end in itertools.pairwise(cuts)]


def find_dtypes(shape: str) -> list[str]:
    """Return the element types of the shapes in a text, in order."""
    return [kind for kind, _ in _SHAPE.findall(shape)]


def parse_dimensions(shape: str) -> list[int]:
    """Return the dimensions of the first shape in a text."""
    found = _SHAPE.search(shape)
    return [int(each) for each in found[2].split(",") if each] if found else []


def parse_module(text: str) -> HloModule:
    """Read a module's text."""
    program, current = HloModule(), None
    for line in text.splitlines():
        if current is None:
            if head := _HEAD.match(line):
                current = program.computations.setdefault(head[2], {})
                if head[1]:
                    program.entry = head[2]
        elif line.startswith("}"):
            current = None
        elif found := _LINE.match(line):
            operands, rest = _split_operands(found[4])
            current[found[1]] = Instruction(found[1], found[2], found[3], operands, rest)
    return program


def _split_operands(text: str) -> tuple[tuple[str, ...], str]:
    """Split "a, %b), attribute=..." at the closing parenthesis; a parameter's only operand is its
    number.
    """
    end = next((index for index, _, depth in _iterate_depths(text) if depth < 0), 0)
    inside = text[:end]
    return (inside,) if inside.isdigit() else tuple(re.findall(r"%([\w.\-]+)", inside)), text[
        end + 1 :
    ]


def _iterate_depths(text: str) -> Iterator[tuple[int, str, int]]:
    """Each letter of a text with its place, and how many brackets are open after it."""
    depth = 0
    for index, letter in enumerate(text):
        depth += letter in "([{"
        depth -= letter in ")]}"
        yield index, letter, depth
