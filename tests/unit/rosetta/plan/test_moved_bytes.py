"""The bytes that kernels move, in small programs whose true bytes are counted by hand."""

from __future__ import annotations

import pytest

from rosetta.plan import hlo_text, step_kernels

STACK, LAYER, INDEX = 4 * 32 * 64 * 2, 32 * 64 * 2, 4


def read_kernel_bytes(fused: str, parameters: str, output: str) -> float:
    """The bytes of the only kernel of a program, a fusion.

    Args:
        fused: The lines of the fused computation.
        parameters: The types of its parameters, separated by semicolons.
        output: The type of its output.
    """
    types = parameters.split(";")
    entry = [f"  %p.{index} = {kind} parameter({index})" for index, kind in enumerate(types)]
    operands = ", ".join(f"%p.{index}" for index in range(len(types)))
    text = "\n".join(
        [
            "HloModule jit_step, is_scheduled=true",
            "",
            "%fused (a: s32[]) -> s32[] {",
            *(f"  %a.{index} = {kind} parameter({index})" for index, kind in enumerate(types)),
            fused.strip("\n"),
            "}",
            "",
            "ENTRY %main (p: s32[]) -> s32[] {",
            *entry,
            f"  ROOT %kernel = {output} fusion({operands}), kind=kLoop, calls=%fused",
            "}",
        ]
    )
    (kernel,) = step_kernels.list_kernels(hlo_text.parse_module(text))
    return kernel.bytes


SLICES = {
    "of an operand": """
  %zero = s32[] constant(0)
  ROOT %cut = bf16[1,32,64] dynamic-slice(%a.0, %a.1, %zero, %zero), dynamic_slice_sizes={1,32,64}
""",
    "of a view of it": """
  %view = bf16[4,1,32,64]{3,2,1,0} bitcast(%a.0)
  %z = s32[] constant(0)
  %cut = bf16[1,1,32,64] dynamic-slice(%view, %a.1, %z, %z, %z), dynamic_slice_sizes={1,1,32,64}
  ROOT %flat = bf16[1,32,64]{2,1,0} bitcast(%cut)
""",
    "of a view of a view of it": """
  %view.1 = bf16[4,2048]{1,0} bitcast(%a.0)
  %view.2 = bf16[4,1,32,64]{3,2,1,0} bitcast(%view.1)
  %z = s32[] constant(0)
  %cut = bf16[1,1,32,64] dynamic-slice(%view.2, %a.1, %z, %z, %z), dynamic_slice_sizes={1,1,32,64}
  %copied = bf16[1,1,32,64]{3,2,1,0} copy(%cut)
  ROOT %flat = bf16[1,32,64]{2,1,0} bitcast(%copied)
""",
    "after a change of type": """
  %wide = f32[4,32,64]{2,1,0} convert(%a.0)
  %zero = s32[] constant(0)
  %cut = f32[1,32,64] dynamic-slice(%wide, %a.1, %zero, %zero), dynamic_slice_sizes={1,32,64}
  ROOT %narrow = bf16[1,32,64]{2,1,0} convert(%cut)
""",
    "used twice": """
  %view = bf16[4,32,64]{2,1,0} bitcast(%a.0)
  %zero = s32[] constant(0)
  %cut = bf16[1,32,64] dynamic-slice(%view, %a.1, %zero, %zero), dynamic_slice_sizes={1,32,64}
  ROOT %square = bf16[1,32,64]{2,1,0} multiply(%cut, %cut)
""",
}


@pytest.mark.parametrize("fused", SLICES.values(), ids=SLICES)
def test_a_slice_reads_its_own_bytes(fused: str) -> None:
    moved = read_kernel_bytes(fused, "bf16[4,32,64]{2,1,0};s32[]", "bf16[1,32,64]{2,1,0}")
    assert moved == LAYER + INDEX + LAYER


def test_two_slices_of_one_operand_are_read_both() -> None:
    fused = """
  %first = bf16[1,32,64]{2,1,0} slice(%a.0), slice={[0:1], [0:32], [0:64]}
  %view = bf16[4,2048]{1,0} bitcast(%a.0)
  %second = bf16[1,2048]{1,0} slice(%view), slice={[1:2], [0:2048]}
  %flat = bf16[1,32,64]{2,1,0} bitcast(%second)
  ROOT %sum = bf16[1,32,64]{2,1,0} add(%first, %flat)
"""
    moved = read_kernel_bytes(fused, "bf16[4,32,64]{2,1,0}", "bf16[1,32,64]{2,1,0}")
    assert moved == 2 * LAYER + LAYER


def test_an_operand_that_is_also_needed_whole_is_read_once() -> None:
    fused = """
  %cut = bf16[1,32,64]{2,1,0} slice(%a.0), slice={[0:1], [0:32], [0:64]}
  %flat = bf16[32,64]{1,0} bitcast(%cut)
  %repeated = bf16[4,32,64]{2,1,0} broadcast(%flat), dimensions={1,2}
  ROOT %sum = bf16[4,32,64]{2,1,0} add(%a.0, %repeated)
"""
    assert read_kernel_bytes(fused, "bf16[4,32,64]{2,1,0}", "bf16[4,32,64]{2,1,0}") == 2 * STACK


IN_PLACE = {
    "of an operand": (
        """
  %zero = s32[] constant(0)
  ROOT %put = bf16[4,32,64]{2,1,0} dynamic-update-slice(%a.0, %a.1, %a.2, %zero, %zero)
""",
        "bf16[4,32,64]{2,1,0}",
        LAYER,
    ),
    "of a view of it": (
        """
  %view = bf16[4,2048]{1,0} bitcast(%a.0)
  %row = bf16[1,2048]{1,0} bitcast(%a.1)
  %zero = s32[] constant(0)
  %put = bf16[4,2048]{1,0} dynamic-update-slice(%view, %row, %a.2, %zero)
  ROOT %flat = bf16[4,32,64]{2,1,0} bitcast(%put)
""",
        "bf16[4,32,64]{2,1,0}",
        LAYER,
    ),
    "beside another output": (
        """
  %zero = s32[] constant(0)
  %put = bf16[4,32,64]{2,1,0} dynamic-update-slice(%a.0, %a.1, %a.2, %zero, %zero)
  %wide = f32[1,32,64]{2,1,0} convert(%a.1)
  ROOT %both = (bf16[4,32,64]{2,1,0}, f32[1,32,64]{2,1,0}) tuple(%put, %wide)
""",
        "(bf16[4,32,64]{2,1,0}, f32[1,32,64]{2,1,0})",
        LAYER + 2 * LAYER,
    ),
}


@pytest.mark.parametrize(("fused", "output", "written"), IN_PLACE.values(), ids=IN_PLACE)
def test_an_update_in_place_moves_the_update(fused: str, output: str, written: float) -> None:
    parameters = "bf16[4,32,64]{2,1,0};bf16[1,32,64]{2,1,0};s32[]"
    assert read_kernel_bytes(fused, parameters, output) == LAYER + INDEX + written


def test_an_update_of_a_computed_array_writes_the_array() -> None:
    fused = """
  %wide = f32[4,32,64]{2,1,0} convert(%a.0)
  %row = f32[1,32,64]{2,1,0} convert(%a.1)
  %zero = s32[] constant(0)
  ROOT %put = f32[4,32,64]{2,1,0} dynamic-update-slice(%wide, %row, %a.2, %zero, %zero)
"""
    parameters = "bf16[4,32,64]{2,1,0};bf16[1,32,64]{2,1,0};s32[]"
    moved = read_kernel_bytes(fused, parameters, "f32[4,32,64]{2,1,0}")
    assert moved == STACK + LAYER + INDEX + 2 * STACK


def test_a_lookup_reads_the_rows_and_their_numbers() -> None:
    lookup = (
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1,64}"
    )
    fused = f"  ROOT %rows = bf16[16,64] gather(%a.0, %a.1), {lookup}"
    moved = read_kernel_bytes(fused, "bf16[32000,64]{1,0};s32[16,1]{1,0}", "bf16[16,64]{1,0}")
    assert moved == 2 * (16 * 64 * 2) + 16 * 4


def test_a_reduction_reads_its_operand_and_a_repeated_row_is_read_once() -> None:
    fused = """
  %repeated = f32[128,64]{1,0} broadcast(%a.1), dimensions={1}
  %scaled = f32[128,64]{1,0} multiply(%a.0, %repeated)
  %zero = f32[] constant(0)
  ROOT %sums = f32[128]{0} reduce(%scaled, %zero), dimensions={1}, to_apply=%add
"""
    moved = read_kernel_bytes(fused, "f32[128,64]{1,0};f32[64]{0}", "f32[128]{0}")
    assert moved == 128 * 64 * 4 + 64 * 4 + 128 * 4


def test_what_no_output_needs_is_not_read() -> None:
    fused = """
  %unused = f32[128,64]{1,0} negate(%a.1)
  ROOT %same = f32[128,64]{1,0} copy(%a.0)
"""
    moved = read_kernel_bytes(fused, "f32[128,64]{1,0};f32[128,64]{1,0}", "f32[128,64]{1,0}")
    assert moved == 2 * 128 * 64 * 4


def test_slices_and_updates_outside_of_a_fusion() -> None:
    text = """\
HloModule jit_step, is_scheduled=true

ENTRY %main (p.0: bf16[4,32,64], p.1: s32[]) -> bf16[4,32,64] {
  %p.0 = bf16[4,32,64]{2,1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %cut = bf16[1,32,64] dynamic-slice(%p.0, %p.1, %zero, %zero), dynamic_slice_sizes={1,32,64}
  ROOT %put = bf16[4,32,64]{2,1,0} dynamic-update-slice(%p.0, %cut, %p.1, %zero, %zero)
}
"""
    cut, put = step_kernels.list_kernels(hlo_text.parse_module(text))
    assert cut.bytes == put.bytes == 2 * LAYER + 3 * INDEX
