"""rosetta's side of Transformer Engine (TE), with a stand-in for TE's interface. No kernel of TE runs here."""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from rosetta.core import log
from rosetta.core import transformer_engine as package
from rosetta.nn import attention, fp8, transformer_engine
from rosetta.nn.attention import Mask
from rosetta.nn.dense import Kernel, apply_projections
from rosetta.t5x import network
from rosetta.t5x.run.model_config import T5Config


@jax.tree_util.register_pytree_node_class
@dataclass
class _Set:
    """A stand-in for TE's QuantizerSet.

    TE multiplies by its scales, and the first element of a history is the newest.
    """

    scales: tuple[Any, Any, Any]
    histories: tuple[Any, Any, Any]

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.scales, self.histories), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> _Set:
        return cls(*children)


def _narrow(x: Any, scale: Any, kind: Any) -> Any:
    edge = float(jnp.finfo(kind).max)
    return jnp.clip(x.astype(jnp.float32) * scale, -edge, edge).astype(kind).astype(jnp.float32)


def _next(history: Any, seen: Any) -> Any:
    return (
        jnp.roll(history.at[0].set(jnp.max(jnp.abs(seen)).astype(jnp.float32)), -1).at[0].set(0.0)
    )


@jax.custom_vjp
def _dense(x: Any, kernel: Any, quantizers: _Set) -> Any:
    return _dense_forward(x, kernel, quantizers)[0]


def _dense_forward(x: Any, kernel: Any, quantizers: _Set) -> Any:
    of_x, of_kernel, _ = quantizers.scales
    y = jnp.tensordot(
        _narrow(x, of_x, jnp.float8_e4m3fn), _narrow(kernel, of_kernel, jnp.float8_e4m3fn), 1
    ) / (of_x * of_kernel)
    return y.astype(x.dtype), (x, kernel, quantizers)


def _dense_backward(kept: Any, gradient: Any) -> Any:
    x, kernel, quantizers = kept
    of_x, of_kernel, of_gradient = quantizers.scales
    narrow = _narrow(gradient, of_gradient, jnp.float8_e5m2)
    rows, columns = tuple(range(x.ndim - 1)), tuple(range(1, kernel.ndim))
    over = tuple(range(x.ndim - 1, gradient.ndim))
    into_x = jnp.tensordot(
        narrow, _narrow(kernel, of_kernel, jnp.float8_e4m3fn), (over, columns)
    ) / (of_gradient * of_kernel)
    into_kernel = jnp.tensordot(_narrow(x, of_x, jnp.float8_e4m3fn), narrow, (rows, rows)) / (
        of_x * of_gradient
    )
    histories = tuple(
        _next(history, seen)
        for history, seen in zip(quantizers.histories, (x, kernel, gradient), strict=True)
    )
    return (
        into_x.astype(x.dtype),
        into_kernel.astype(x.dtype).astype(kernel.dtype),
        _Set(quantizers.scales, histories),
    )


_dense.defvjp(_dense_forward, _dense_backward)


class _Attention(nn.Module):
    """A stand-in for TE's DotProductAttention, without dropout."""

    head_dim: int
    num_attention_heads: int
    num_gqa_groups: int
    attention_dropout: float
    attn_mask_type: str
    attn_bias_type: str
    qkv_layout: str
    scale_factor: float
    transpose_batch_sequence: bool

    def __call__(
        self, query: Any, key: Any, value: Any, described: Any, bias: Any, *, deterministic: bool
    ) -> Any:
        if self.head_dim > 128:
            warnings.warn(
                "Falling back to the unfused attention backend as\nfused attention does not support this",
                stacklevel=1,
            )
        assert (self.attn_bias_type == "no_bias") == (bias is None)
        query = query * jnp.asarray(self.scale_factor, query.dtype)
        assert deterministic == (self.attention_dropout == 0)
        along = 0 if self.transpose_batch_sequence else 1
        counts = [
            jnp.arange(each.shape[along])[None] < count[:, None]
            for each, count in zip((query, key), described, strict=True)
        ]
        seen = (
            Mask(valid_queries=counts[0], valid_keys=counts[1])
            if "padding" in self.attn_mask_type
            else Mask()
        )
        seen = Mask(
            valid_queries=seen.valid_queries,
            valid_keys=seen.valid_keys,
            causal="causal" in self.attn_mask_type,
        )
        bias = seen.make_bias(query.shape[along], key.shape[along], bias, query.dtype)
        assert key.shape[-2] == value.shape[-2] == self.num_gqa_groups
        key, value = (
            jnp.repeat(each, self.num_attention_heads // self.num_gqa_groups, axis=-2)
            for each in (key, value)
        )
        return attention.compute_plain_attention(
            query,
            key,
            value,
            bias=bias,
            float32_logits=True,
            drop=lambda weights: weights,
            transposed=self.transpose_batch_sequence,
        )


@pytest.fixture
def axes() -> set[str]:
    """Return the axes of the mesh."""
    return {"data"}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, axes: set[str]) -> Any:
    """Make a stand-in for Transformer Engine importable, and return the calls that it gets."""
    asked: list[Any] = []

    def dense(x: Any, kernel: Any, *, contracting_dims: Any, quantizer_set: _Set) -> Any:
        asked.append(kernel.shape)
        assert contracting_dims == ((x.ndim - 1,), (0,))
        return _dense(x, kernel, quantizer_set)

    def create_set(*, fp8_recipe: Any, quantize_meta_set: Any) -> _Set:
        assert fp8_recipe == "delayed"
        metas = [quantize_meta_set[name] for name in ("x", "kernel", "grad")]
        return _Set(
            tuple(meta["scale"] for meta in metas), tuple(meta["amax_history"] for meta in metas)
        )

    def size(axis: str) -> int:
        assert axis in axes
        return 1

    def guard(resource: Any) -> Any:
        asked.append(resource)
        return contextlib.nullcontext()

    algorithm = types.SimpleNamespace(AmaxComputeAlgo=types.SimpleNamespace(MAX="max"))
    parts: dict[str, dict[str, Any]] = {
        "dense": {"dense": dense},
        "flax": {"DotProductAttention": _Attention},
        "quantize": {
            "QuantizeMeta": dict,
            "QuantizeMetaSet": dict,
            "QuantizerFactory": types.SimpleNamespace(create_set=create_set),
            "helper": algorithm,
        },
        "quantize.helper": vars(algorithm),
        "sharding": {
            "is_mesh_available": lambda: True,
            "get_mesh_axis_size": size,
            "MeshResource": dict,
            "global_shard_guard": guard,
        },
        "attention": {
            "SequenceDescriptor": types.SimpleNamespace(from_seqlens=lambda counts: counts)
        },
    }
    root = types.ModuleType("transformer_engine.jax")
    for name, members in parts.items():
        module = types.ModuleType(f"transformer_engine.jax.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if "." not in name:
            setattr(root, name, module)
    recipes: Any = types.ModuleType("transformer_engine.common.recipe")
    recipes.DelayedScaling = lambda: "delayed"
    for name, module in (
        ("transformer_engine", types.ModuleType("transformer_engine")),
        ("transformer_engine.jax", root),
        (recipes.__name__, recipes),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(
        sys.modules, "transformer_engine.common", types.ModuleType("transformer_engine.common")
    )
    monkeypatch.setattr(package, "find_installed_version", lambda: "2.20.2")
    log.forget_shown()
    return asked


def _state(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {}
    for tensor, size, edge in (
        ("input", 4.0, 448.0),
        ("kernel", 0.5, 448.0),
        ("output_grad", 1e-2, 57344.0),
    ):
        found[f"{tensor}_scale"] = jnp.full((1,), size / edge, jnp.float32)
        found[f"{tensor}_amax_history"] = jnp.asarray(
            size * rng.uniform(0.5, 1.0, fp8.HISTORY_LENGTH), jnp.float32
        )
    return found


def _graded(multiply: Any, count: int) -> Any:
    """Return the outputs of `count` projections, and the gradients of input, kernels and states."""
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(2, 16, 64)), jnp.float32)
    kernels = [jnp.asarray(0.1 * rng.normal(size=(64, 32)), jnp.float32) for _ in range(count)]
    gradients = tuple(
        jnp.asarray(1e-3 * rng.normal(size=(2, 16, 32)), jnp.float32) for _ in range(count)
    )
    outputs, back = jax.vjp(
        lambda *args: multiply(*args, jnp.float32), x, kernels, [_state(1) for _ in range(count)]
    )
    return outputs, back(gradients)


def test_a_product_and_its_state_equal_those_of_xla(engine: Any) -> None:
    ours, theirs = _graded(fp8.multiply_kernels, 1), _graded(transformer_engine.multiply_kernels, 1)
    assert (64, 32) in engine
    assert {"dp_resource": "data"} in engine  # of the mesh's axes, the one that there is
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(
            np.asarray(other), np.asarray(one), rtol=1e-5, atol=1e-6 * float(jnp.max(jnp.abs(one)))
        )


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({"data", "model"}, {"dp_resource": "data", "tp_resource": "model"}),
        (
            {"replica", "data", "model"},
            {"dp_resource": "replica", "fsdp_resource": "data", "tp_resource": "model"},
        ),
        (set(), {}),
    ],
    ids=["two", "three", "none"],
)
def test_transformer_engine_gets_the_mesh_axes(
    engine: Any, axes: set[str], there: set[str], told: dict[str, str]
) -> None:
    axes.clear()
    axes |= there
    _graded(transformer_engine.multiply_kernels, 1)
    assert engine[0] == told


def test_joined_projections_share_one_amax(engine: Any) -> None:
    (outputs, (into_x, into_kernels, ours)), (found, (of_x, of_kernels, theirs)) = (
        _graded(fp8.multiply_kernels, 3),
        _graded(transformer_engine.multiply_kernels, 3),
    )
    assert (64, 3, 32) in engine
    for one, other in zip(
        jax.tree.leaves((outputs, into_x, into_kernels)),
        jax.tree.leaves((found, of_x, of_kernels)),
        strict=True,
    ):
        np.testing.assert_allclose(
            np.asarray(other), np.asarray(one), rtol=1e-5, atol=1e-6 * float(jnp.max(jnp.abs(one)))
        )
    for tensor in fp8.TENSORS:
        largest = max(float(state[f"{tensor}_amax_history"][0]) for state in ours)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                other[f"{tensor}_amax_history"], np.full(fp8.HISTORY_LENGTH, largest), rtol=1e-6
            )
            np.testing.assert_allclose(other[f"{tensor}_scale"], one[f"{tensor}_scale"], rtol=1e-6)


def test_a_product_with_odd_sizes_falls_back_to_xla_with_a_warning(
    engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x, kernel = jnp.ones((1, 3, 64), jnp.float32), jnp.ones((64, 32), jnp.float32)
    (found,) = transformer_engine.multiply_kernels(x, [kernel], [_state(1)], jnp.float32)
    np.testing.assert_array_equal(
        found, fp8.multiply_kernels(x, [kernel], [_state(1)], jnp.float32)[0]
    )
    assert not [each for each in engine if isinstance(each, tuple)]
    assert (
        "FP8 by XLA instead of Transformer Engine: a product of 3 rows" in capsys.readouterr().err
    )


def test_a_projection_uses_its_fp8_backend(engine: Any) -> None:
    class Projection(nn.Module):
        by: str

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return apply_projections(
                x,
                [Kernel(64, 32, ("embed", "mlp"), nn.initializers.ones, fp8=self.by, name="wi")()],
                jnp.float32,
            )[0]

    x = jnp.ones((2, 16, 64), jnp.float32)
    trees = {
        by: jax.tree.map(jnp.shape, Projection(by).init(jax.random.key(0), x)[fp8.COLLECTION])
        for by in ("xla", "te")
    }
    assert trees["xla"] == trees["te"]  # a checkpoint does not know who computed
    before = len(engine)
    Projection("xla").init(jax.random.key(0), x)
    assert len(engine) == before


class _Attending(nn.Module):
    transposed: bool = False

    @nn.compact
    def __call__(self, query: Any, key: Any, value: Any, relative: Any, mask: Mask) -> Any:
        return transformer_engine.compute_attention(
            query, key, value, relative=relative, mask=mask, transposed=self.transposed
        )


def _attended(depth: int = 16) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(5)
    query, key, value = (
        jnp.asarray(rng.normal(size=(2, length, 2, depth)), jnp.bfloat16) for length in (8, 6, 6)
    )
    return query, key, value, jnp.asarray(rng.normal(size=(1, 2, 8, 6)), jnp.bfloat16)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_attention_gets_the_lengths_and_type_of_the_mask(
    engine: Any, causal: bool, padded: bool, transposed: bool
) -> None:
    del engine
    query, key, value, relative = _attended()
    real = jnp.arange(6)[None] < jnp.array([[6], [4]])
    mask = Mask(valid_keys=real if padded else None, causal=causal)
    expected = attention.compute_plain_attention(
        query,
        key,
        value,
        bias=mask.make_bias(8, 6, relative, query.dtype),
        float32_logits=True,
        drop=lambda weights: weights,
    )

    def turned(x: Any) -> Any:
        return jnp.swapaxes(x, 0, 1) if transposed else x

    found = turned(
        _Attending(transposed).apply(
            {}, *(turned(each) for each in (query, key, value)), relative, mask
        )
    )
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))


def test_attention_without_a_fused_kernel_is_refused(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del engine
    arguments = _attended(depth=256)
    with errors.expect_user_error(errors.UNSUPPORTED, where="ATTENTION", names=("8", "6", "256")):
        _Attending().apply({}, *arguments, Mask(causal=True))
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    with errors.expect_user_error(errors.CONFLICT, where="NVTE_FUSED_ATTN", names="0"):
        _Attending().apply({}, *_attended(), Mask(causal=True))


@pytest.mark.parametrize(
    ("dtype", "mask", "chosen", "says"),
    [
        ("bfloat16", Mask(causal=True), "te", ""),
        ("float32", Mask(causal=True), "xla", "activations in float32"),
        ("bfloat16", Mask(query_segments=1, key_segments=1), "xla", "packed examples"),
        ("bfloat16", Mask(visible=1), "xla", "neither padding nor causal"),
    ],
)
def test_the_implementation_of_attention_follows_the_limits(
    engine: Any, capsys: pytest.CaptureFixture[str], dtype: str, mask: Mask, chosen: str, says: str
) -> None:
    del engine
    assert transformer_engine.choose_implementation(dtype=dtype, mask=mask) == chosen
    said = capsys.readouterr().err
    assert says in said
    assert bool(said) == bool(says)


_SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "emb_dim": 32,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "head_dim": 16,
    "mlp_dim": 64,
    "mlp_activations": ("gelu", "linear"),
    "dropout_rate": 0.0,
    "dtype": "bfloat16",
}


def _logits(*, with_dropout: bool = False, **switches: Any) -> Any:
    rng = np.random.default_rng(2)
    tokens = jnp.asarray(rng.integers(1, 32, (4, 8)), jnp.int32)
    made = network.Transformer(T5Config(**{**_SMALL, **switches}))
    variables = network.Transformer(T5Config(**_SMALL)).init(
        jax.random.key(0), tokens, tokens, tokens, enable_dropout=False
    )
    return made.apply(
        {"params": variables["params"]},
        tokens,
        tokens,
        tokens,
        enable_dropout=with_dropout,
        rngs={"dropout": jax.random.key(1)},
    )


def _apart(one: Any, other: Any) -> float:
    return float(jnp.linalg.norm(one - other) / jnp.linalg.norm(other))


@pytest.mark.parametrize("fuse", [True, False])
def test_a_network_has_the_same_fp8_products(engine: Any, fuse: bool) -> None:
    """The two ways round to FP8 alike, so they are nearer to each other than to no FP8."""
    found, expected = _logits(fp8="te", fuse_qkv=fuse), _logits(fp8="xla", fuse_qkv=fuse)
    assert ((32, 3, 32) in engine) == fuse  # q, k and v of a layer
    assert ((32, 2, 64) in engine) == fuse  # both halves of the gated MLP
    assert _apart(found, expected) < 0.5 * _apart(expected, _logits())


def test_a_network_has_the_same_attention(engine: Any) -> None:
    del engine
    assert _apart(_logits(attention="te"), _logits(float32_attention_logits=True)) < 0.01


@pytest.mark.parametrize("transposed", [False, True])
def test_a_network_with_dropout_and_scaled_logits_has_the_same_attention(
    engine: Any, transposed: bool
) -> None:
    del engine
    how: dict[str, Any] = {
        "with_dropout": True,
        "dropout_rate": 0.25,
        "scale_attn_logits": True,
        "transpose_batch_sequence": transposed,
    }
    exact = _logits(float32_attention_logits=True, **how)
    assert _apart(_logits(attention="te", **how), exact) < 0.01
    assert _apart(_logits(attention="te", **(how | {"scale_attn_logits": False})), exact) > 0.01


@pytest.mark.parametrize("switches", [{"fp8": "te"}, {"attention": "te"}])
def test_the_switches_are_refused_without_transformer_engine(
    monkeypatch: pytest.MonkeyPatch, switches: Any
) -> None:
    monkeypatch.setattr(package, "find_installed_version", lambda: None)
    monkeypatch.setattr(
        package, "explain_absence", lambda: "not asked for when this environment was built"
    )
    with errors.expect_user_error(errors.MISSING, where="Transformer Engine"):
        _logits(**switches)


def test_a_missing_driver_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        raise OSError(f"libcuda.so.1: cannot open shared object file ({name})\nmore of it")

    monkeypatch.setattr(package, "find_installed_version", lambda: "2.20.2")
    monkeypatch.setattr("importlib.import_module", load)
    with errors.expect_user_error(errors.FAILED, where="Transformer Engine") as problem:
        transformer_engine.import_transformer_engine()
    assert "libcuda.so.1" in str(problem.value)
    assert "\n" not in str(problem.value)
