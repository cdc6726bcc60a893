"""A small module's text, written to be read."""

from __future__ import annotations

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

%put (param_0.3: f32[4,8], param_1.4: f32[1,8], param_2.5: s32[]) -> f32[4,8] {
  %param_0.3 = f32[4,8]{1,0} parameter(0)
  %param_1.4 = f32[1,8]{1,0} parameter(1)
  %param_2.5 = s32[] parameter(2)
  %none = s32[] constant(0)
  ROOT %updated = f32[4,8]{1,0} dynamic-update-slice(%param_0.3, %param_1.4, %param_2.5, %none)
}

%multiplied (param_0.6: f32[8,16], param_1.7: f32[8,4]) -> f32[16,4] {
  %param_0.6 = f32[8,16]{1,0} parameter(0)
  %param_1.7 = f32[8,4]{1,0} parameter(1)
  ROOT %inner = f32[16,4]{1,0} dot(%param_0.6, %param_1.7), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/transpose(jvp(Transformer))/decoder/logits/dot_general"}
}

%cheap (q.1: f32[8,16]) -> f32[8,16] {
  %q.1 = f32[8,16]{1,0} parameter(0)
  ROOT %same = f32[8,16]{1,0} copy(%q.1)
}

%dear (q.2: f32[8,16]) -> f32[8,16] {
  %q.2 = f32[8,16]{1,0} parameter(0)
  %once = f32[8,16]{1,0} copy(%q.2)
  ROOT %twice = f32[8,16]{1,0} copy(%once)
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
  %query = bf16[2,8,4,16]{3,2,1,0} bitcast(%p.2)
  %key = bf16[2,6,4,16]{3,2,1,0} bitcast(%p.2)
  %reduce-start = f32[8,16]{1,0} all-reduce-start(%p.1), to_apply=%add
  %fused = (bf16[2,8,4,16]{3,2,1,0}, u8[0]{0}) custom-call(%query, %key, %key), custom_call_target="__cudnn$fmhaScaleBiasSoftmax"
  %backwards = (bf16[2,8,4,16]{3,2,1,0}, u8[0]{0}) custom-call(%query, %key, %key), custom_call_target="__cudnn$fmhaScaleBiasSoftmaxBackward"
  %reduce-done = f32[8,16]{1,0} all-reduce-done(%reduce-start)
  %gathered = (bf16[16,32]{1,0}, bf16[64,32]{1,0}) all-gather-start(%p.3), dimensions={0}
  %gathered-done = bf16[64,32]{1,0} all-gather-done(%gathered)
  %scattered = ((f32[8,16]{1,0}, s32[4]{0}), (f32[2,16]{1,0}, /*index=1*/s32[1]{0})) reduce-scatter-start(%p.1, %p.1), dimensions={0}, to_apply=%add, backend_config={"collective_backend_config":{"is_sync":true}}
  %meanwhile = f32[8,16]{1,0} conditional(%start, %p.1, %p.1), branch_computations={%cheap, %dear}
  %stack = f32[4,8]{1,0} bitcast(%p.1)
  %row = f32[1,8]{1,0} bitcast(%p.1)
  %written = f32[4,8]{1,0} fusion(%stack, %row, %start), kind=kLoop, calls=%put
  %cut.1 = f32[8,4]{1,0} bitcast(%p.1)
  %logits = f32[16,4]{1,0} fusion(%p.1, %cut.1), kind=kOutput, calls=%multiplied
  %scattered-done = (f32[2,16]{1,0}, s32[1]{0}) reduce-scatter-done(%scattered)
  ROOT %total = f32[] constant(0)
}
"""
