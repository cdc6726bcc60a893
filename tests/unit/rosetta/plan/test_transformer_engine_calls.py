"""Transformer Engine's custom calls in a compiled step.

Without a GPU driver, Transformer Engine cannot be loaded, so no step with its calls can be compiled
here. The text has the syntax that JAX 0.10.2 gives an `ffi_call` with the operands, the outputs and
the attributes of Transformer Engine 2.20.2.
"""

from __future__ import annotations

import pytest

from rosetta.core import gpus
from rosetta.plan import hlo_text, roofline, step_kernels, step_report
from rosetta.plan.step_kernels import Gemm
from rosetta.plan.t5x_step import CompiledStep

_GEMM = (
    "api_version=API_VERSION_TYPED_FFI, metadata={{op_name="
    '"jit(step)/{scopes}/encoder/layers_0/mlp/wi/te_gemm_ffi"}}, backend_config={{collective_op = '
    "0 : i64, fuse_bias = false, lhs_transposed = false, rhs_transposed = true}}"
)
TEXT = f"""\
HloModule jit_step, is_scheduled=true

ENTRY %main (x: f8e4m3fn[64,512,32], w: f8e4m3fn[96,32], g: f8e5m2[32768,96], s: f32[1]) -> bf16[] {{
  %x = f8e4m3fn[64,512,32]{{2,1,0}} parameter(0)
  %w = f8e4m3fn[96,32]{{1,0}} parameter(1)
  %g = f8e5m2[96,32768]{{1,0}} parameter(2)
  %xt = f8e4m3fn[32,32768]{{1,0}} parameter(3)
  %s = f32[1]{{0}} parameter(4)
  %none = bf16[0]{{0}} constant({{}})
  %y = bf16[16,32]{{1,0}} parameter(5)
  %v = bf16[64,32]{{1,0}} parameter(6)
  %q = bf16[8,512,12,64]{{3,2,1,0}} parameter(7)
  %k = bf16[8,128,12,64]{{3,2,1,0}} parameter(8)
  %sizes = s32[4]{{0}} parameter(9)
  %forward = (bf16[64,512,96]{{2,1,0}}, bf16[0]{{0}}, bf16[0]{{0}}, u8[33554688]{{0}}) custom-call(%x, %s, %w, %s, %none, /*index=5*/%none, %s, %s), custom_call_target="te_gemm_ffi", {_GEMM.format(scopes="jvp(Transformer)")}
  %weights = (bf16[32,96]{{1,0}}, bf16[0]{{0}}, bf16[0]{{0}}, u8[33554688]{{0}}) custom-call(%xt, %s, %g, %s, %none, /*index=5*/%none, %s, %s), custom_call_target="te_gemm_v2_ffi", {_GEMM.format(scopes="transpose(jvp(Transformer))")}
  %wide = (bf16[16,64]{{1,0}}, bf16[0]{{0}}, bf16[0]{{0}}, u8[33554688]{{0}}) custom-call(%y, %none, %v, %none, %none, /*index=5*/%none, %s, %s), custom_call_target="te_gemm_ffi", {_GEMM.format(scopes="jvp(Transformer)")}
  %grouped = (bf16[16,64]{{1,0}}, u8[1024]{{0}}) custom-call(%y, %none, %v, %none, %none, /*index=5*/%sizes), custom_call_target="te_grouped_gemm_ffi", api_version=API_VERSION_TYPED_FFI
  %attended = (bf16[8,512,12,64]{{3,2,1,0}}, f32[8,12,512,1]{{3,2,1,0}}, u32[2,4]{{1,0}}, u8[64]{{0}}) custom-call(%q, %k, %k, %none), custom_call_target="te_fused_attn_forward_ffi", api_version=API_VERSION_TYPED_FFI
  %gradients = (bf16[8,512,12,64]{{3,2,1,0}}, bf16[8,128,12,64]{{3,2,1,0}}, u8[64]{{0}}) custom-call(%q, %k, %k, %none), custom_call_target="te_fused_attn_backward_ffi", api_version=API_VERSION_TYPED_FFI
  ROOT %normal = (bf16[16,32]{{1,0}}, u8[64]{{0}}) custom-call(%y, %v), custom_call_target="te_norm_forward_ffi", api_version=API_VERSION_TYPED_FFI
}}
"""


@pytest.fixture(scope="module")
def module() -> hlo_text.HloModule:
    return hlo_text.parse_module(TEXT)


def test_products_have_their_factors_and_sizes(module: hlo_text.HloModule) -> None:
    forward, weights, wide = step_kernels.list_gemms(module)

    def describe(gemm: Gemm) -> tuple[object, ...]:
        return gemm.sizes, gemm.dtypes, gemm.fp8, gemm.kind

    rows = 64 * 512
    assert describe(forward) == (
        (1, rows, 96, 32),
        ("f8e4m3fn", "f8e4m3fn"),
        True,
        "forward",
    )
    assert describe(weights) == ((1, 32, 96, rows), ("f8e4m3fn", "f8e5m2"), True, "backward")
    assert describe(wide) == ((1, 16, 64, 32), ("bf16", "bf16"), False, "forward")
    assert forward.flops == weights.flops == 2.0 * rows * 96 * 32


def test_a_report_counts_them() -> None:
    report = step_report.summarize_step(CompiledStep(TEXT, 1, 1, 0, 1, 1.0, 1))
    assert report["gemms"] == {"fp8": 2, "other": 1}
    assert report["attention"] == {
        "te_fused_attn_forward_ffi": 1,
        "te_fused_attn_backward_ffi": 1,
    }
    assert report["attention_flops"] == (2 + 5) * 2.0 * (8 * 512 * 12 * 64) * 128


def test_kernels_have_the_kind_of_their_call(module: hlo_text.HloModule) -> None:
    gpu = gpus.GPUS["h100"]
    kinds = {
        kernel.instruction.name: roofline.estimate_kernel(
            module, kernel, gpu, roofline.find_shares(gpu)
        ).kind
        for kernel in step_kernels.list_kernels(module)
    }
    assert kinds["forward"] == kinds["weights"] == "FP8 products"
    assert kinds["wide"] == "products"
    assert kinds["attended"] == kinds["gradients"] == "attention"
    assert "products" not in kinds["grouped"]
