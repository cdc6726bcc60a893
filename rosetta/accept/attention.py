"""The row `attention`: cuDNN's fused attention beside XLA's, errors and times.

On a CPU, JAX's implementation of the same function for XLA takes the place of cuDNN's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from rosetta.accept.numerics import compute_error, describe_rate
from rosetta.accept.records import Check, Measurement, Number, SkipCase
from rosetta.accept.setup import Case, Setup, make_case
from rosetta.bench import device_timing
from rosetta.core import gpus
from rosetta.nn import attention
from rosetta.nn.attention import Mask

if TYPE_CHECKING:
    from rosetta.bench.timing import Timings

# The error that fused attention may have: this factor of that of XLA's attention, and this much.
ERROR_FACTOR, ERROR_MARGIN = 2.0, 0.002
# Five products backward, two forward.
_BACKWARD_FACTOR = 2.5
_TURNS = 5
_ARRAYS = 3  # different arrays in one program; one in a tiny acceptance
_PADDED_SHARE = 4  # the shortest row has this fraction less than the longest


@dataclass(frozen=True)
class Shape:
    """A call of attention.

    Attributes:
        name: The name of the case.
        batch: Rows.
        queries: Queries of a row.
        keys: Keys of a row.
        heads: Heads.
        head_dim: Features of a head.
        causal: Whether a query sees only the keys before it.
        biased: Whether there is a bias of relative positions, with a gradient.
        padded: Whether rows have different lengths.
        dropped: Whether a tenth of the keys is dropped, by zeros in the values.
    """

    name: str
    batch: int
    queries: int
    keys: int
    heads: int = 16
    head_dim: int = 64
    causal: bool = False
    biased: bool = False
    padded: bool = False
    dropped: bool = False

    @property
    def forward_flops(self) -> float:
        """The operations of the two products; half of them if the mask is causal."""
        flops = 4.0 * self.batch * self.heads * self.queries * self.keys * self.head_dim
        return flops / 2 if self.causal else flops


# T5-large with 32 sequences of 512 and 128 tokens, and GPT 5B with 4 of 2,048.
SHAPES = (
    Shape("t5-encoder", 32, 512, 512, biased=True),
    Shape("t5-encoder-dropout", 32, 512, 512, biased=True, dropped=True),
    Shape("t5-encoder-padding", 32, 512, 512, biased=True, padded=True),
    Shape("t5-decoder", 32, 128, 128, causal=True, biased=True),
    Shape("t5-cross", 32, 128, 512),
    Shape("gpt-5b", 4, 2048, 2048, heads=32, head_dim=128, causal=True),
)


def shrink_shape(shape: Shape) -> Shape:
    """Return the shape with few rows, positions and heads."""
    return replace(
        shape,
        batch=2,
        queries=8,
        keys=16 if shape.keys > shape.queries else 8,
        heads=2,
        head_dim=8,
    )


def list_cases(setup: Setup) -> list[Case]:
    """Return a case for each shape."""
    shapes = [shrink_shape(shape) for shape in SHAPES] if setup.tiny else SHAPES
    return [make_case(shape.name, functools.partial(measure, setup, shape)) for shape in shapes]


def make_arguments(shape: Shape, seed: int) -> tuple[Any, ...]:
    """Return query, key, value, bias, the lengths of rows, the kept keys, and the gradient of the
    output, all random.

    T5 does not scale logits, so the queries are scaled.
    """
    keys = jax.random.split(jax.random.key(seed), 7)
    query_shape = (shape.batch, shape.queries, shape.heads, shape.head_dim)
    key_shape = (shape.batch, shape.keys, shape.heads, shape.head_dim)
    query = jax.random.normal(keys[0], query_shape) * shape.head_dim**-0.5
    bias = jax.random.normal(keys[3], (1, shape.heads, shape.queries, shape.keys))
    shortest = shape.queries - shape.queries // _PADDED_SHARE
    lengths = jax.random.randint(keys[4], (shape.batch,), shortest, shape.queries + 1)
    keep_mask = jax.random.bernoulli(keys[5], 0.9, (shape.batch, shape.heads * shape.keys))
    return (
        query.astype(jnp.bfloat16),
        jax.random.normal(keys[1], key_shape).astype(jnp.bfloat16),
        jax.random.normal(keys[2], key_shape).astype(jnp.bfloat16),
        bias.astype(jnp.bfloat16).astype(jnp.float32),
        lengths,
        keep_mask,
        jax.random.normal(keys[6], query_shape).astype(jnp.bfloat16),
    )


def make_mask(shape: Shape, lengths: Any) -> Mask:
    """Return the mask of a call."""
    if not shape.padded:
        return Mask(causal=shape.causal)
    valid = jnp.arange(shape.queries)[None, :] < lengths[:, None]
    return Mask(valid_queries=valid, valid_keys=valid, causal=shape.causal)


def compute_fused(shape: Shape, arguments: tuple[Any, ...], implementation: str) -> Any:
    """Return the output of fused attention."""
    query, key, value, bias, lengths, keep_mask = arguments
    if shape.dropped:
        value = attention.zero_dropped_keys(value, keep_mask)
    return attention.compute_fused_attention(
        query,
        key,
        value,
        relative=bias if shape.biased else None,
        mask=make_mask(shape, lengths),
        implementation=implementation,
    )


def compute_plain(shape: Shape, arguments: tuple[Any, ...]) -> Any:
    """Return the output of attention from two products, in the type of the arguments."""
    query, key, value, bias, lengths, keep_mask = arguments
    relative = bias.astype(query.dtype) if shape.biased else None
    mask = make_mask(shape, lengths)
    dense = mask.make_bias(shape.queries, shape.keys, relative, query.dtype)
    keep_weights = keep_mask.reshape(shape.batch, shape.heads, 1, shape.keys)

    def drop_weights(weights: Any) -> Any:
        return jnp.where(keep_weights, weights, jnp.zeros((), weights.dtype))

    return attention.compute_plain_attention(
        query,
        key,
        value,
        bias=dense,
        float32_logits=False,
        drop=drop_weights if shape.dropped else lambda weights: weights,
    )


def differentiate(shape: Shape, compute: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the output, and the gradients of query, key, value and, if there is one, the bias.

    Rows of padding count neither in the output nor in the gradients.
    """
    query, key, value, bias, lengths, keep_mask, gradient = arguments
    if shape.padded:
        valid = jnp.arange(shape.queries)[None, :] < lengths[:, None]
        gradient = jnp.where(valid[..., None, None], gradient, jnp.zeros((), gradient.dtype))
    output, backward = jax.vjp(
        lambda *differentiable: compute(shape, (*differentiable, lengths, keep_mask)),
        query,
        key,
        value,
        bias,
    )
    gradients = backward(gradient.astype(output.dtype))
    if shape.padded:
        output = jnp.where(valid[..., None, None], output, jnp.zeros((), output.dtype))
    return (output, *(gradients if shape.biased else gradients[:3]))


def measure(setup: Setup, shape: Shape) -> Measurement:
    """Measure a call.

    Raises:
        SkipCase: The GPU has no fused attention by cuDNN.
    """
    if setup.on_gpu and not setup.supports(gpus.CUDNN_ATTENTION):
        raise SkipCase(gpus.CUDNN_ATTENTION.requirement)
    implementation = "cudnn" if setup.on_gpu else "xla"

    def fused(shape: Shape, arguments: tuple[Any, ...]) -> Any:
        return compute_fused(shape, arguments, implementation)

    checks = check_against_reference(shape, fused)
    argument_sets = [make_arguments(shape, seed) for seed in range(1 if setup.tiny else _ARRAYS)]
    ways = {
        "fused forward": lambda *arguments: fused(shape, arguments[:-1]),
        "fused": lambda *arguments: differentiate(shape, fused, arguments),
        "XLA": lambda *arguments: differentiate(shape, compute_plain, arguments),
    }
    functions = {
        name: device_timing.DeviceFunction(way, argument_sets, turn_seconds=setup.turn_seconds)
        for name, way in ways.items()
    }
    timings = device_timing.time_functions(functions, _TURNS)
    notes = () if setup.on_gpu else ("XLA's implementation takes the place of cuDNN's",)
    return Measurement(describe_times(setup, shape, timings), checks, notes)


def check_against_reference(shape: Shape, fused: Any) -> tuple[Check, ...]:
    """Compare fused attention and XLA's attention in bfloat16 with attention in float32."""
    arguments = make_arguments(shape, 0)
    wide = tuple(
        array.astype(jnp.float32) if array.dtype == jnp.bfloat16 else array for array in arguments
    )
    with jax.default_matmul_precision("highest"):
        reference = jax.jit(lambda *args: differentiate(shape, compute_plain, args))(*wide)
    plain = jax.jit(lambda *args: differentiate(shape, compute_plain, args))(*arguments)
    results = jax.jit(lambda *args: differentiate(shape, fused, args))(*arguments)
    names = ("output", "gradient of q", "gradient of k", "gradient of v", "gradient of the bias")
    checks = []
    for name, result, other, expected in zip(names, results, plain, reference, strict=False):
        limit = ERROR_FACTOR * compute_error(other, expected) + ERROR_MARGIN
        checks.append(Check(f"error of the {name}", compute_error(result, expected), limit))
    return tuple(checks)


def describe_times(setup: Setup, shape: Shape, timings: dict[str, Timings]) -> tuple[Number, ...]:
    """Return the times and the rates of fused attention, and its gain over XLA's."""
    gpu = setup.find_gpu()
    peak = gpu.peak_flops("bfloat16") if gpu else None
    forward, both, plain = (timings[name] for name in ("fused forward", "fused", "XLA"))
    backward_seconds = max(both.median - forward.median, 1e-9)
    return (
        Number("fused forward", forward.median * 1e6, "us", forward.spread),
        Number("fused forward and backward", both.median * 1e6, "us", both.spread),
        Number("XLA forward and backward", plain.median * 1e6, "us", plain.spread),
        Number("fused, time beside XLA's", both.ratio(plain), ""),
        *describe_rate("fused forward", shape.forward_flops, forward.median, peak),
        *describe_rate(
            "fused backward", _BACKWARD_FACTOR * shape.forward_flops, backward_seconds, peak
        ),
    )
