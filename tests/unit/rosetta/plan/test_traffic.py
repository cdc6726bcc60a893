"""What a step sends, counted by hand in a module's text: a loop of three layers on eight devices in two nodes."""

from __future__ import annotations

from rosetta.plan import hlo_text, traffic

TEXT = """\
HloModule jit_step, is_scheduled=true

%plus (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%a, %b)
}

%most (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  %b.1 = f32[] parameter(1)
  ROOT %larger = f32[] maximum(%a.1, %b.1)
}

%joined (left: bf16[3000], right: bf16[2000]) -> bf16[5000] {
  %left = bf16[3000]{0} parameter(0)
  %right = bf16[2000]{0} parameter(1)
  ROOT %both = bf16[5000]{0} concatenate(%left, %right), dimensions={0}
}

%body (carry: (s32[], f8e4m3fn[3,8,512])) -> (s32[], f8e4m3fn[3,8,512]) {
  %carry = (s32[], f8e4m3fn[3,8,512]{2,1,0}) parameter(0)
  %index = s32[] get-tuple-element(%carry), index=0
  %weights = f8e4m3fn[3,8,512]{2,1,0} get-tuple-element(%carry), index=1
  %layer = f8e4m3fn[8,512]{1,0} bitcast(%weights)
  %x = bf16[16,64]{1,0} bitcast(%weights)
  %gather-start = (f8e4m3fn[8,512]{1,0}, f8e4m3fn[64,512]{1,0}) all-gather-start(%layer), replica_groups=mesh['axis_0'=8] {'axis_0'}, dimensions={0}, backend_config={"collective_backend_config":{"is_sync":false}}
  %product = (bf16[16,512]{1,0}, s8[1024]{0}) custom-call(%x, %layer), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %gather-done = f8e4m3fn[64,512]{1,0} all-gather-done(%gather-start)
  %gradient = bf16[64,512]{1,0} bitcast(%gather-done)
  %scatter-start = ((bf16[64,512]{1,0}), bf16[8,512]{1,0}) reduce-scatter-start(%gradient), replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%plus, backend_config={"collective_backend_config":{"is_sync":true}}
  %scatter-done = bf16[8,512]{1,0} reduce-scatter-done(%scatter-start)
  %one = f32[] constant(1)
  %amax = f32[] all-reduce(%one), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%most
  %mean = f32[] all-reduce(%one), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%plus
  ROOT %next = (s32[], f8e4m3fn[3,8,512]{2,1,0}) tuple(%index, %weights)
}

%condition (carry.1: (s32[], f8e4m3fn[3,8,512])) -> pred[] {
  %carry.1 = (s32[], f8e4m3fn[3,8,512]{2,1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (p.0: f8e4m3fn[3,8,512], p.1: bf16[3000], p.2: bf16[2000], p.3: bf16[7,4096]) -> bf16[5000] {
  %p.0 = f8e4m3fn[3,8,512]{2,1,0} parameter(0)
  %p.1 = bf16[3000]{0} parameter(1)
  %p.2 = bf16[2000]{0} parameter(2)
  %p.3 = bf16[7,4096]{1,0} parameter(3)
  %start = s32[] constant(0)
  %carried = (s32[], f8e4m3fn[3,8,512]{2,1,0}) tuple(%start, %p.0)
  %loop = (s32[], f8e4m3fn[3,8,512]{2,1,0}) while(%carried), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %exchanged = bf16[7,4096]{1,0} all-to-all(%p.3), replica_groups=[2,4]<=[8], dimensions={0}
  %biases = bf16[5000]{0} fusion(%p.1, %p.2), kind=kLoop, calls=%joined
  ROOT %reduced = bf16[5000]{0} all-reduce(%biases), replica_groups=[2,4]<=[8], to_apply=%plus
}
"""
# A kernel of 64 x 512, kept in parts of 8 x 512, in each of three layers; two biases that every device has whole.
PARAMETERS = {(3, 8, 512), (8, 512), (3, 64, 512), (64, 512), (3000,), (2000,)}


def test_flows() -> None:
    found = {
        (flow.kind, flow.role): flow
        for flow in traffic.sum_flows(hlo_text.parse_module(TEXT), 4, PARAMETERS)
    }
    assert set(found) == {
        ("all-gather", "parameters"),
        ("reduce-scatter", "gradients"),
        ("all-reduce", "small"),
        ("all-reduce", "gradients"),
        ("all-to-all", "activations"),
    }
    gathered, scattered = found["all-gather", "parameters"], found["reduce-scatter", "gradients"]
    kernel = 3 * 64 * 512 * 7 / 8
    assert (gathered.dtype, gathered.times, gathered.bytes, gathered.across) == (
        "f8e4m3fn",
        3,
        kernel,
        kernel / 4,
    )
    assert (gathered.waited, gathered.behind) == (0, kernel)
    assert (scattered.dtype, scattered.bytes, scattered.waited, scattered.behind) == (
        "bf16",
        2 * kernel,
        2 * kernel,
        0,
    )
    biases = found["all-reduce", "gradients"]
    assert (biases.times, biases.bytes, biases.across) == (2, 2 * 5000 * 2 * 3 / 4, 0)
    assert found["all-reduce", "small"].times == 6
    assert found["all-to-all", "activations"].bytes == 7 * 4096 * 2 * 3 / 4


def test_traffic_across_nodes_is_unknown_without_groups() -> None:
    (flow,) = (
        each
        for each in traffic.sum_flows(
            hlo_text.parse_module(TEXT.replace("replica_groups=mesh", "groups=mesh")), 4, PARAMETERS
        )
        if each.kind == "all-gather"
    )
    assert flow.across is None
    assert "?" in traffic.format_traffic([flow], [])


def test_loops() -> None:
    assert traffic.list_loops(hlo_text.parse_module(TEXT)) == [
        traffic.Loop("body", 3, small=2, largest=1)
    ]


def test_table() -> None:
    program = hlo_text.parse_module(TEXT)
    first, *rows, last = traffic.format_traffic(
        traffic.sum_flows(program, 4, PARAMETERS), traffic.list_loops(program)
    ).splitlines()
    assert first.split()[:3] == ["times", "GB", "received"]
    assert rows[0].split() == [
        "reduce-scatter",
        "gradients",
        "bf16",
        "3",
        "0.000",
        "0.000",
        "0.000",
        "0.000",
    ]
    assert last == "loop of 3: 2 all-reduces of small numbers, 1 of them for the largest"
