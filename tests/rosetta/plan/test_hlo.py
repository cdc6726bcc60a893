"""What is read off a module's text, on a small one written for it."""

from __future__ import annotations

import pytest

from rosetta.plan import hlo

TEXT = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8,16]{1,0})->f32[]}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%layer (param_0.1: bf16[4,32,64], param_1.2: s32[]) -> bf16[32,64] {
  %param_0.1 = bf16[4,32,64]{2,1,0} parameter(0)
  %param_1.2 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %cut = bf16[1,32,64]{2,1,0} dynamic-slice(%param_0.1, %param_1.2, %zero, %zero), dynamic_slice_sizes={1,32,64}
  ROOT %flat = bf16[32,64]{1,0} bitcast(%cut)
}

%body (carry: (s32[], bf16[4,32,64], bf16[16,32])) -> (s32[], bf16[4,32,64], bf16[16,32]) {
  %carry = (s32[], bf16[4,32,64]{2,1,0}, bf16[16,32]{1,0}) parameter(0)
  %index = s32[] get-tuple-element(%carry), index=0
  %weights = bf16[4,32,64]{2,1,0} get-tuple-element(%carry), index=1
  %x = bf16[16,32]{1,0} get-tuple-element(%carry), index=2
  %slice = bf16[32,64]{1,0} fusion(%weights, %index), kind=kLoop, calls=%layer
  %product = (bf16[16,64]{1,0}, s8[1024]{0}) custom-call(%x, %slice), custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(step)/jvp(Transformer)/while/body/encoder/layers/attention/query+key+value/dot_general"}, backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  ROOT %next = (s32[], bf16[4,32,64]{2,1,0}, bf16[16,32]{1,0}) tuple(%index, %weights, %x)
}

%condition (carry.1: (s32[], bf16[4,32,64], bf16[16,32])) -> pred[] {
  %carry.1 = (s32[], bf16[4,32,64]{2,1,0}, bf16[16,32]{1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (p.1: f32[8,16], p.2: bf16[4,32,64], p.3: bf16[16,32]) -> f32[] {
  %p.1 = f32[8,16]{1,0} parameter(0)
  %p.2 = bf16[4,32,64]{2,1,0} parameter(1)
  %p.3 = bf16[16,32]{1,0} parameter(2)
  %start = s32[] constant(0)
  %carried = (s32[], bf16[4,32,64]{2,1,0}, bf16[16,32]{1,0}) tuple(%start, %p.2, %p.3)
  %loop = (s32[], bf16[4,32,64]{2,1,0}, bf16[16,32]{1,0}) while(%carried), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  %left = f8e5m2[64,16]{1,0} bitcast(%p.1)
  %right = f8e4m3fn[16,64]{1,0} bitcast(%p.3)
  %narrow = (bf16[64,64]{1,0}, s8[1024]{0}) custom-call(%left, %right), custom_call_target="__cublas$lt$matmul$f8", metadata={op_name="jit(step)/transpose(jvp(Transformer))/checkpoint/rematted_computation/decoder/layers_0/mlp/wo/dgrad/dot_general"}, backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %fused = (bf16[2,8,4,16]{3,2,1,0}, u8[0]{0}) custom-call(%p.3, %p.3, %p.3), custom_call_target="__cudnn$fmhaScaleBiasSoftmax"
  %reduce-start = f32[8,16]{1,0} all-reduce-start(%p.1), to_apply=%add
  %reduce-done = f32[8,16]{1,0} all-reduce-done(%reduce-start)
  %gathered = (bf16[16,32]{1,0}, bf16[64,32]{1,0}) all-gather-start(%p.3), dimensions={0}
  %gathered-done = bf16[64,32]{1,0} all-gather-done(%gathered)
  ROOT %total = f32[] constant(0)
}
"""


@pytest.fixture(scope="module")
def program() -> hlo.Program:
    return hlo.parse(TEXT)


def test_computations(program: hlo.Program) -> None:
    assert program.entry == "main"
    assert set(program.computations) == {"add", "layer", "body", "condition", "main"}
    product = program.computations["body"]["product"]
    assert (product.opcode, product.operands, product.target) == ("custom-call", ("x", "slice"), "__cublas$lt$matmul")
    assert program.computations["layer"]["param_1.2"].operands == ("1",)


def test_kernels_of_a_loop_count_as_often_as_it_runs(program: hlo.Program) -> None:
    times = {kernel.instruction.name: kernel.times for kernel in hlo.kernels(program)}
    assert times == {"slice": 4, "product": 4, "narrow": 1, "fused": 1, "reduce-start": 1, "gathered": 1}


def test_a_slice_is_read_and_not_what_it_is_of(program: hlo.Program) -> None:
    moved = {kernel.instruction.name: kernel.bytes for kernel in hlo.kernels(program)}
    assert moved["slice"] == 32 * 64 * 2 + 4 + 32 * 64 * 2  # the slice, its index, the output; not the stack of four
    assert moved["product"] == 16 * 32 * 2 + 32 * 64 * 2 + 16 * 64 * 2  # without the workspace


def test_products(program: hlo.Program) -> None:
    wide, narrow = hlo.gemms(program)
    assert (wide.product, wide.kind, wide.fp8, wide.times, wide.dtypes) == ("layers/attention/query+key+value", "forward", False, 4, ("bf16", "bf16"))
    assert wide.flops == 2 * 16 * 64 * 32
    assert (narrow.product, narrow.kind, narrow.fp8, narrow.rematerialised) == ("layers_0/mlp/wo", "dgrad", True, True)
    assert narrow.dtypes == ("f8e5m2", "f8e4m3fn")
    assert narrow.flops == 2 * 64 * 64 * 16


def test_attention_and_communication(program: hlo.Program) -> None:
    assert hlo.attention(program) == {"__cudnn$fmhaScaleBiasSoftmax": 1}
    found = {each.kind: each for each in hlo.collectives(program)}
    assert (found["all-reduce"].dtype, found["all-reduce"].bytes, found["all-reduce"].asynchronous) == ("f32", 512, True)
    assert found["all-gather"].asynchronous


@pytest.mark.parametrize(("shape", "size"), [("f32[8,16]{1,0}", 512), ("(bf16[2]{0}, u8[0]{0}, s4[3]{0})", 5.5), ("token[]", 0), ("f8e4m3fn[]", 1)])
def test_sizes(shape: str, size: float) -> None:
    assert hlo.size(shape) == size
