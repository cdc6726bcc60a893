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

_WORKSPACE = "u8[33554688]{0}"


def format_call(name: str, target: str, outputs: str, operands: str, scopes: str = "") -> str:
    """Return the line of a custom call."""
    metadata = f'metadata={{op_name="jit(step)/{scopes}/encoder/layers_0/mlp/wi/{target}"}}'
    attributes = "{collective_op = 0 : i64, lhs_transposed = false, rhs_transposed = true}"
    return (
        f'  %{name} = ({outputs}) custom-call({operands}), custom_call_target="{target}", '
        f"api_version=API_VERSION_TYPED_FFI, {metadata}, backend_config={attributes}"
    )


def format_product(name: str, target: str, output: str, factors: str, scopes: str) -> str:
    """Return the line of a product, whose factors have a scale each."""
    outputs = f"{output}, bf16[0]{{0}}, bf16[0]{{0}}, {_WORKSPACE}"
    operands = f"{factors}, %none, /*index=5*/%none, %s, %s"
    return format_call(name, target, outputs, operands, scopes)


_QUERIES, _KEYS = "bf16[8,512,12,64]{3,2,1,0}", "bf16[8,128,12,64]{3,2,1,0}"
_PARAMETERS = {
    "x": "f8e4m3fn[64,512,32]{2,1,0}",
    "w": "f8e4m3fn[96,32]{1,0}",
    "g": "f8e5m2[96,32768]{1,0}",
    "xt": "f8e4m3fn[32,32768]{1,0}",
    "s": "f32[1]{0}",
    "none": "bf16[0]{0}",
    "y": "bf16[16,32]{1,0}",
    "v": "bf16[64,32]{1,0}",
    "q": _QUERIES,
    "k": _KEYS,
}
_FORWARD, _BACKWARD = "jvp(Transformer)", "transpose(jvp(Transformer))"
_STATISTICS = "f32[8,12,512,1]{3,2,1,0}"
TEXT = "\n".join(
    [
        "HloModule jit_step, is_scheduled=true",
        "",
        "ENTRY %main (x: f8e4m3fn[64,512,32]) -> bf16[16,32] {",
        *(
            f"  %{name} = {shape} parameter({index})"
            for index, (name, shape) in enumerate(_PARAMETERS.items())
        ),
        format_product(
            "forward", "te_gemm_ffi", "bf16[64,512,96]{2,1,0}", "%x, %s, %w, %s", _FORWARD
        ),
        format_product(
            "weights", "te_gemm_v2_ffi", "bf16[32,96]{1,0}", "%xt, %s, %g, %s", _BACKWARD
        ),
        format_product("wide", "te_gemm_ffi", "bf16[16,64]{1,0}", "%y, %none, %v, %none", _FORWARD),
        format_call(
            "grouped", "te_grouped_gemm_ffi", f"bf16[16,64]{{1,0}}, {_WORKSPACE}", "%y, %none, %v"
        ),
        format_call(
            "attended",
            "te_fused_attn_forward_ffi",
            f"{_QUERIES}, {_STATISTICS}, {_WORKSPACE}",
            "%q, %k, %k, %none",
        ),
        format_call(
            "gradients",
            "te_fused_attn_backward_ffi",
            f"{_QUERIES}, {_KEYS}, {_WORKSPACE}",
            "%q, %k, %k, %none",
        ),
        '  ROOT %out = bf16[16,32]{1,0} custom-call(%y), custom_call_target="te_norm_forward_ffi"',
        "}",
        "",
    ]
)


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
