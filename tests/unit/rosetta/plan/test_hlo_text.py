"""What a module's text says."""

from __future__ import annotations

import pytest

from rosetta.plan import hlo_text
from tests.support.hlo_module import TEXT


def test_computations() -> None:
    program = hlo_text.parse_module(TEXT)
    assert program.entry == "main"
    assert set(program.computations) == {
        "add",
        "layer",
        "body",
        "put",
        "multiplied",
        "cheap",
        "dear",
        "condition",
        "main",
    }
    product = program.computations["body"]["product"]
    assert (product.opcode, product.operands, product.target) == (
        "custom-call",
        ("x", "slice"),
        "__cublas$lt$matmul",
    )
    assert product.op_name.endswith("/attention/query+key+value/dot_general")
    assert program.computations["layer"]["param_1.2"].operands == ("1",)
    assert program.computations["main"]["meanwhile"].find_called_computations() == ["cheap", "dear"]
    assert program.computations["main"]["written"].find_called_computations() == ["put"]


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[8,16]{1,0}", 512),
        ("(bf16[2]{0}, u8[0]{0}, s4[3]{0})", 5.5),
        ("token[]", 0),
        ("f8e4m3fn[]", 1),
    ],
)
def test_sizes(shape: str, size: float) -> None:
    assert hlo_text.count_bytes(shape) == size


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ("f32[8,16]{1,0}", ["f32[8,16]{1,0}"]),
        ("(bf16[2,4]{1,0}, u8[0]{0})", ["bf16[2,4]{1,0}", "u8[0]{0}"]),
        (
            "((f32[8]{0}, s32[4,2]{1,0}), (f32[2]{0}, /*index=1*/s32[1]{0}))",
            ["(f32[8]{0}, s32[4,2]{1,0})", "(f32[2]{0}, /*index=1*/s32[1]{0})"],
        ),
    ],
)
def test_elements_of_a_tuple(shape: str, parts: list[str]) -> None:
    assert hlo_text.split_tuple_shape(shape) == parts


def test_types_and_dimensions() -> None:
    assert hlo_text.find_dtypes("(bf16[2,4]{1,0}, u8[0]{0})") == ["bf16", "u8"]
    assert (
        hlo_text.parse_dimensions("(bf16[2,4]{1,0}, u8[0]{0})"),
        hlo_text.parse_dimensions("f32[]"),
        hlo_text.parse_dimensions("token"),
    ) == (
        [2, 4],
        [],
        [],
    )
