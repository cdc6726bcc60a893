"""What is read off a module as its work."""

from __future__ import annotations

import pytest

from rosetta.core import gpus
from rosetta.plan import hlo_text, step_kernels, step_report, t5x_step
from tests.support.hlo_module import TEXT


@pytest.fixture(scope="module")
def program() -> hlo_text.HloModule:
    return hlo_text.parse_module(TEXT)


def test_kernels_count_by_trip_count_and_largest_branch(
    program: hlo_text.HloModule,
) -> None:
    times = {kernel.instruction.name: kernel.times for kernel in step_kernels.list_kernels(program)}
    once = (
        "narrow",
        "fused",
        "backwards",
        "reduce-start",
        "gathered",
        "scattered",
        "once",
        "twice",
        "written",
        "logits",
    )
    assert times == {"slice": 4, "product": 4, **dict.fromkeys(once, 1)}


def test_only_the_slice_of_an_operand_is_read(program: hlo_text.HloModule) -> None:
    moved = {kernel.instruction.name: kernel.bytes for kernel in step_kernels.list_kernels(program)}
    assert (
        moved["slice"] == 32 * 64 * 2 + 4 + 32 * 64 * 2
    )  # the slice, its index, the output; not the stack of four
    assert moved["product"] == 16 * 32 * 2 + 32 * 64 * 2 + 16 * 64 * 2  # without the workspace
    assert (
        moved["written"] == 8 * 4 + 4 + 8 * 4
    )  # the row, its index, the row again; the stack stays where it is
    assert (
        moved["gathered"] == 16 * 32 * 2 + 64 * 32 * 2
    )  # what is read and what is made, not what is read twice


def test_products(program: hlo_text.HloModule) -> None:
    wide, narrow, fused = step_kernels.list_gemms(program)
    assert (wide.product, wide.kind, wide.fp8, wide.times, wide.dtypes) == (
        "layers/attention/query+key+value",
        "forward",
        False,
        4,
        ("bf16", "bf16"),
    )
    assert wide.flops == 2 * 16 * 64 * 32
    assert (narrow.product, narrow.kind, narrow.fp8, narrow.rematerialised) == (
        "layers_0/mlp/wo",
        "dgrad",
        True,
        True,
    )
    assert narrow.dtypes == ("f8e5m2", "f8e4m3fn")
    assert narrow.flops == 2 * 64 * 64 * 16
    assert (fused.product, fused.kind, fused.dtypes) == (
        "Transformer/decoder/logits",
        "backward",
        ("f32", "f32"),
    )
    assert fused.flops == 2 * 16 * 4 * 8


def test_attention(program: hlo_text.HloModule) -> None:
    assert step_kernels.count_attention_kernels(program) == {
        "__cudnn$fmhaScaleBiasSoftmax": 1,
        "__cudnn$fmhaScaleBiasSoftmaxBackward": 1,
    }
    # Two products forwards and five backwards: batch 2, 4 heads, 8 queries, 6 keys, depth 16.
    assert step_kernels.count_attention_flops(program) == (2 + 5) * 2 * (2 * 4 * 8 * 6 * 16)


def test_attention_with_other_dimensions_has_unknown_flops() -> None:
    odd = TEXT.replace("%query = bf16[2,8,4,16]{3,2,1,0}", "%query = bf16[16,64]{1,0}")
    assert step_kernels.count_attention_flops(hlo_text.parse_module(odd)) is None
    found = step_report.summarize_step(t5x_step.CompiledStep(odd, 1, 1, 0, 1, 1.0, 1))
    assert found["attention_flops"] is None
    assert (
        "attention    an unknown number of TFLOP, 1 x __cudnn$fmhaScaleBiasSoftmax"
        in step_report.format_step_report(found)
    )


@pytest.mark.parametrize(("peak", "verdict"), [(70e9, "fits "), (73e9, "does not fit ")])
def test_the_report_says_what_was_planned_and_whether_it_fits(peak: float, verdict: str) -> None:
    found = step_report.summarize_step(t5x_step.CompiledStep(TEXT, int(peak), 0, 0, 0, 1.0, 1))
    found["run"] = step_report.describe_fit(
        found["memory"]["peak"],
        gpus.GPUS["h100"],
        "t5_1_1 large, a global batch of 256 sequences",
        8,
    )
    first, second, *_ = step_report.format_step_report(found).splitlines()
    assert (
        first
        == "plan         t5_1_1 large, a global batch of 256 sequences, on 8 x NVIDIA H100 80GB HBM3"
    )
    assert second.startswith(verdict)
    assert second.endswith(
        f"{peak / 1e9:.1f} GB of the 72.2 GB that JAX takes of each GPU's 84.9 GB"
    )


def test_collectives_have_the_bytes_of_their_outputs(program: hlo_text.HloModule) -> None:
    found = {each.kind: each for each in step_kernels.list_collectives(program)}
    assert found["all-reduce"] == step_kernels.Collective(
        "all-reduce", "f32", 8 * 16 * 4, 1, asynchronous=True, behind=2
    )
    assert found["all-gather"] == step_kernels.Collective(
        "all-gather", "bf16", 4096, 1, asynchronous=True, behind=0
    )
    assert found["reduce-scatter"] == step_kernels.Collective(
        "reduce-scatter", "f32+s32", 2 * 16 * 4 + 4, 1, asynchronous=True, behind=0
    )


BESIDE = {
    "a product of a library": (
        (
            "%x = bf16[8,8] custom-call(%p.1, %p.1), "
            'custom_call_target="__cublas$gemm", lhs_contracting_dims={1}'
        ),
        1,
    ),
    "a product that Triton computes": (
        "%gemm_fusion_dot.1 = bf16[8,8]{1,0} fusion(%p.1, %p.1), kind=kCustom, calls=%multiply",
        1,
    ),
    "a product in another stream": (
        "%x-start = ((bf16[8,8]{1,0}), bf16[8,8]{1,0}) async-start(%p.1), calls=%called",
        1,
    ),
    "a kernel without a product": (
        "%x = bf16[8,8]{1,0} fusion(%p.1, %p.1), kind=kLoop, calls=%added",
        0,
    ),
}


@pytest.mark.parametrize(("line", "behind"), BESIDE.values(), ids=BESIDE)
def test_products_hide_communication_whoever_computes_them(line: str, behind: int) -> None:
    text = f"""\
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

%multiply (c: bf16[8,8], d: bf16[8,8]) -> bf16[8,8] {{
  %c = bf16[8,8]{{1,0}} parameter(0)
  %d = bf16[8,8]{{1,0}} parameter(1)
  ROOT %dot = bf16[8,8]{{1,0}} dot(%c, %d), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

%added (e: bf16[8,8], f: bf16[8,8]) -> bf16[8,8] {{
  %e = bf16[8,8]{{1,0}} parameter(0)
  %f = bf16[8,8]{{1,0}} parameter(1)
  ROOT %total = bf16[8,8]{{1,0}} add(%e, %f)
}}

%called (g: bf16[8,8]) -> bf16[8,8] {{
  %g = bf16[8,8]{{1,0}} parameter(0)
  ROOT %inner = bf16[8,8]{{1,0}} fusion(%g, %g), kind=kCustom, calls=%multiply
}}

ENTRY %main (p.0: f32[1024], p.1: bf16[8,8]) -> f32[1024] {{
  %p.0 = f32[1024]{{0}} parameter(0)
  %p.1 = bf16[8,8]{{1,0}} parameter(1)
  %start = f32[1024]{{0}} all-reduce-start(%p.0), replica_groups={{{{0,1}}}}, to_apply=%add
  {line}
  ROOT %done = f32[1024]{{0}} all-reduce-done(%start)
}}
"""
    (collective,) = step_kernels.list_collectives(hlo_text.parse_module(text))
    assert collective.behind == behind


def test_synchronous_collectives_have_their_whole_size() -> None:
    text = TEXT.replace(
        "(bf16[16,32]{1,0}, bf16[64,32]{1,0}) all-gather-start(", "bf16[64,32]{1,0} all-gather("
    ).replace(
        "%reduce-start = f32[8,16]{1,0} all-reduce-start(",
        "%reduce-start = (f32[8,16]{1,0}, f32[2]{0}) all-reduce-start(",
    )
    found = {each.kind: each for each in step_kernels.list_collectives(hlo_text.parse_module(text))}
    assert (found["all-gather"].bytes, found["all-gather"].asynchronous) == (4096, False)
    assert found["all-reduce"].bytes == 8 * 16 * 4 + 8
