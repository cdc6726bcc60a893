"""Times of single kernels, computed by hand from a GPU's figures."""

from __future__ import annotations

import dataclasses

import pytest

from rosetta.core import gpus
from rosetta.plan import hlo_text, roofline, step_kernels
from rosetta.plan.roofline import Shares

H100, A100 = gpus.GPUS["h100"], gpus.GPUS["a100"]
FULL = Shares(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
LATENCY = roofline.NCCL_BASE_SECONDS
NODE_STEP = roofline.RING_STEP_SECONDS["node"]
NETWORK_STEP = roofline.RING_STEP_SECONDS["network"]


def read_kernel(*lines: str) -> tuple[hlo_text.HloModule, step_kernels.Kernel]:
    """A module with these lines in its entry, and its last kernel."""
    body = "\n".join(f"  {line}" for line in lines)
    module = hlo_text.parse_module(f"ENTRY %main (p: f32[]) -> f32[] {{\n{body}\n}}\n")
    return module, step_kernels.list_kernels(module)[-1]


def estimate(gpu: gpus.Gpu, shares: Shares, *lines: str) -> roofline.KernelTime:
    return roofline.estimate_kernel(*read_kernel(*lines), gpu, shares)


def multiply(rows: int, columns: int, depth: int, dtype: str = "bf16") -> tuple[str, ...]:
    return (
        f"%a = {dtype}[{rows},{depth}] parameter(0)",
        f"%b = {dtype}[{depth},{columns}] parameter(1)",
        (
            f"%c = bf16[{rows},{columns}] dot(%a, %b), lhs_contracting_dims={{1}}, "
            "rhs_contracting_dims={0}"
        ),
    )


def test_memory_bounds_a_copy() -> None:
    time = estimate(H100, FULL, "%a = f32[1024,1048576] parameter(0)", "%b = f32[] copy(%a)")
    assert time.kind == "transposes and copies"
    assert time.seconds == pytest.approx((2**30 * 4 + 4) / H100.bandwidth)


def test_a_share_of_the_bandwidth_makes_a_copy_slower() -> None:
    lines = "%a = f32[1024,1048576] parameter(0)", "%b = f32[1024,1048576] copy(%a)"
    half = dataclasses.replace(FULL, bandwidth=0.5)
    assert estimate(H100, half, *lines).seconds == 2 * estimate(H100, FULL, *lines).seconds


def test_the_peak_bounds_a_large_product() -> None:
    """8192 x 8448 is 64 x 33 tiles of 128 x 256: 16 full rounds of 132."""
    time = estimate(H100, FULL, *multiply(8192, 8448, 8192))
    fill = 8192 * 2 / (8192 * 2 + roofline.FILL_BYTES)
    assert time.kind == "products"
    assert time.seconds == pytest.approx(2 * 8192 * 8448 * 8192 / (989.4e12 * fill))


def test_fp8_has_its_own_peak_and_share() -> None:
    shares = dataclasses.replace(FULL, fp8_products=0.5)
    time = estimate(H100, shares, *multiply(8192, 8448, 8192, "f8e4m3fn"))
    fill = 8192 / (8192 + roofline.FILL_BYTES)
    assert time.kind == "FP8 products"
    assert time.seconds == pytest.approx(2 * 8192 * 8448 * 8192 / (1978.9e12 * 0.5 * fill))


def test_memory_bounds_a_product_of_little_depth() -> None:
    time = estimate(H100, FULL, *multiply(16384, 16384, 16))
    moved = 2 * (2 * 16384 * 16 + 16384 * 16384)
    assert time.seconds == pytest.approx(moved / H100.bandwidth)


def test_a_last_round_that_is_not_full_costs_a_round() -> None:
    """One more row of tiles than fills the multiprocessors takes about twice as long."""
    full = estimate(H100, FULL, *multiply(128 * 132, 256, 16384)).seconds
    more = estimate(H100, FULL, *multiply(128 * 133, 256, 16384)).seconds
    assert more > 1.2 * full


ATTENTION = (
    "%q = bf16[4,4096,32,128] parameter(0)",
    "%k = bf16[4,4096,32,128] parameter(1)",
    (
        '%o = (bf16[4,4096,32,128], u8[0]{0}) custom-call(%q, %k, %k), custom_call_target="CALL", '
        'backend_config={"mask_type": "MASK"}'
    ),
)


def estimate_attention(call: str, mask: str) -> float:
    lines = [line.replace("CALL", call).replace("MASK", mask) for line in ATTENTION]
    time = estimate(A100, FULL, *lines)
    assert time.kind == "attention"
    return time.seconds


def test_attention_has_two_products_forwards_and_five_backwards_and_half_with_a_causal_mask() -> (
    None
):
    product = 2 * 4 * 32 * 4096 * 4096 * 128 / 312e12
    assert estimate_attention("__cudnn$fmhaSoftmax", "NO_MASK") == pytest.approx(2 * product)
    assert estimate_attention("__cudnn$fmhaSoftmax", "CAUSAL") == pytest.approx(product)
    backward = estimate_attention("__cudnn$fmhaSoftmaxBackward", "PADDING_CAUSAL")
    assert backward == pytest.approx(2.5 * product)
    biased = estimate_attention("__cudnn$fmhaScaleBiasSoftmax", "NO_MASK")
    assert biased == pytest.approx(2 * product / roofline.BIAS_SHARE)


@pytest.mark.parametrize("target", ["__gpu$xla.gpu.triton", "triton_kernel_call_ffi"])
def test_pallas_kernel(target: str) -> None:
    """A Pallas kernel moves its operands and its results, each once."""
    time = estimate(
        H100,
        FULL,
        "%p = bf16[16384,2,2816] parameter(0)",
        "%s = f32[1] parameter(1)",
        (
            "%k = (f8e4m3fn[16384,2816], f8e4m3fn[2816,16384], f32[128,44]) custom-call(%p, %s), "
            f'custom_call_target="{target}", backend_config={{name = "geglu_forward"}}'
        ),
    )
    assert time.kind == roofline.PALLAS
    moved = 16384 * 2816 * (2 * 2 + 1 + 1) + 4 * 128 * 44 + 4
    assert time.seconds == pytest.approx(moved / H100.bandwidth)


def estimate_collective(kind: str, groups: str, gpu: gpus.Gpu = H100) -> float:
    """The time of a collective of 800 MB of each device."""
    _, kernel = read_kernel(
        "%a = f32[200000000] parameter(0)", f"%b = f32[200000000] {kind}(%a), {groups}"
    )
    return roofline.estimate_collective(kernel, gpu, 8, FULL)


def test_a_ring_within_a_node_is_as_fast_as_nvlink() -> None:
    seconds = estimate_collective("reduce-scatter", "replica_groups=[1,8]<=[8]")
    assert seconds == pytest.approx(LATENCY + 7 * NODE_STEP + 7 / 8 * 800e6 / 450e9)


def test_an_all_reduce_sends_twice_as_much() -> None:
    seconds = estimate_collective("all-reduce", "replica_groups=[1,8]<=[8]")
    assert seconds == pytest.approx(LATENCY + 14 * NODE_STEP + 2 * 7 / 8 * 800e6 / 450e9)


def test_rings_across_nodes_share_the_adapters_of_a_node() -> None:
    whole = estimate_collective("all-gather", "replica_groups=[1,16]<=[16]")
    # Eight adapters of 50 GB/s are slower than NVLink.
    steps = 14 * NODE_STEP + NETWORK_STEP
    assert whole == pytest.approx(LATENCY + steps + 15 / 16 * 800e6 / 400e9)
    pairs = estimate_collective("all-gather", "replica_groups=[8,2]<=[2,8]T(1,0)")
    assert pairs == pytest.approx(LATENCY + NETWORK_STEP + 1 / 2 * 800e6 / 50e9)


def test_a_gpu_without_nvlink_communicates_over_pcie() -> None:
    l40s = gpus.GPUS["l40s"]
    assert l40s.nvlink == 0
    seconds = estimate_collective("all-gather", "replica_groups=[1,2]<=[2]", l40s)
    pcie = roofline.PCIE_BANDWIDTH[l40s.pcie or 0]
    assert seconds == pytest.approx(LATENCY + NODE_STEP + 1 / 2 * 800e6 / pcie)


def test_every_gpu_of_the_table_has_times() -> None:
    for gpu in gpus.GPUS.values():
        shares = roofline.find_shares(gpu)
        assert 0 < estimate(gpu, shares, *multiply(4096, 4096, 4096)).seconds < 1
        assert 0 < estimate_collective("all-gather", "replica_groups=[1,2]<=[2]", gpu) < 1


def test_shares_are_at_most_the_whole() -> None:
    assert roofline.scale_shares(roofline.HOPPER_SHARES, 9.0) == FULL


def test_flat_shares_leave_out_what_shapes_cost() -> None:
    flat = Shares(0.5, 1.0, 1.0, 1.0, 1.0, 1.0, flat=True)
    product = estimate(H100, flat, *multiply(1025, 1025, 1024))
    assert product.seconds == pytest.approx(2 * 1025 * 1025 * 1024 / (989.4e12 * 0.5))
    tiny = estimate(H100, flat, "%a = f32[1] parameter(0)", "%b = f32[1] copy(%a)")
    assert tiny.seconds == pytest.approx(8 / H100.bandwidth)
    assert roofline.scale_shares(flat, 1.2).flat
