"""EncoderOnly against an encoder written in NumPy, for each kind of positions and norms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.core.errors import INVALID, TOO_BIG
from rosetta.t5x import network
from rosetta.t5x.network import T5Config
from tests.support import errors

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "emb_dim": 24,
    "num_heads": 3,
    "head_dim": 8,
    "mlp_dim": 32,
    "num_encoder_layers": 2,
    "num_decoder_layers": 0,
    "logits_via_embedding": True,
}
BERT: dict[str, Any] = {
    **SIZES,
    "mlp_activations": ("gelu_exact",),
    "use_biases": True,
    "norm": "layer",
    "norm_epsilon": 1e-12,
    "token_types": 2,
    "max_positions": 20,
    "head": "mlm",
    "sentence_head": True,
    "scale_attn_logits": True,
}
TOKENS = np.random.default_rng(0).integers(3, 40, (3, 18))
TOKENS[1, 11:] = 0
TYPES = ((np.arange(18) > 7) & (TOKENS > 0)).astype(np.int32)


def make_params(config: T5Config) -> Any:
    """Return random parameters in which norms and biases matter."""
    module = network.EncoderOnly(config)
    shapes = jax.eval_shape(
        lambda: module.init(jax.random.key(0), jnp.asarray(TOKENS), enable_dropout=False)
    )["params"]
    rng = np.random.default_rng(1)
    params: Any = jax.tree.map(
        lambda leaf: rng.normal(0.3, 0.4, leaf.shape).astype(np.float32), shapes
    )
    if config.positions == "relative" and config.relative_bias == "stack":
        params["encoder"]["relpos_bias"]["rel_embedding"] *= 8  # else it hardly shows
    return params


def compute(config: T5Config, params: Any, tokens: Any = TOKENS) -> Any:
    module = network.EncoderOnly(config)
    types = jnp.asarray(TYPES) if config.token_types else None
    apply = jax.jit(
        lambda tree: module.apply(
            {"params": tree}, jnp.asarray(tokens), types, enable_dropout=False
        )
    )
    return apply(params)


class NumpyEncoder:
    """The encoder of a config, from the papers: see rosetta.t5x.run.model_config.T5Config."""

    def __init__(self, config: T5Config, params: Any) -> None:
        self.config = config
        self.params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def norm(self, x: Any, weights: Any) -> Any:
        epsilon = self.config.norm_epsilon
        if self.config.norm == "rms":
            return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + epsilon) * weights["scale"]
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt(np.mean(centered**2, -1, keepdims=True) + epsilon)
        return scaled * weights["scale"] + weights["bias"]

    def dense(self, x: Any, weights: Any) -> Any:
        return x @ weights["kernel"] + weights.get("bias", 0)

    def rotate(self, x: Any) -> Any:
        """Turn x [batch, length, heads, features] as complex numbers."""
        half = x.shape[-1] // 2
        numbers = x[..., :half] + 1j * x[..., half:]
        speeds = 10_000.0 ** -(np.arange(half) / half)
        numbers = numbers * np.exp(1j * np.arange(x.shape[1])[:, None, None] * speeds)
        return np.concatenate([numbers.real, numbers.imag], axis=-1)

    def bias(self, length: int) -> Any:
        """Return T5's bias of relative positions [heads, length, length], bucket by bucket."""
        table = self.params["encoder"]["relpos_bias"]["rel_embedding"]
        values = np.zeros((table.shape[0], length, length))
        for query, key in itertools.product(range(length), repeat=2):
            distance = key - query
            bucket = 16 if distance > 0 else 0
            distance = abs(distance)
            if distance < 8:
                bucket += distance
            else:
                bucket += min(15, 8 + int(math.log(distance / 8) / math.log(128 / 8) * 8))
            values[:, query, key] = table[:, bucket]
        return values

    def attend(self, x: Any, weights: Any) -> Any:
        config, (batch, length, _) = self.config, x.shape
        heads = (batch, length, config.num_heads, config.head_dim)
        query, key, value = (
            self.dense(x, weights[name]).reshape(heads) for name in ("query", "key", "value")
        )
        if config.positions == "rotary":
            query, key = self.rotate(query), self.rotate(key)
        logits = np.einsum("bqhd,bkhd->bhqk", query, key)
        if config.scale_attn_logits:
            logits = logits / math.sqrt(config.head_dim)
        if config.positions == "relative":
            logits = logits + self.bias(length)
        logits = np.where((TOKENS > 0)[:, None, None, :], logits, -np.inf)
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores = scores / scores.sum(-1, keepdims=True)
        attended = np.einsum("bhqk,bkhd->bqhd", scores, value).reshape(batch, length, -1)
        return self.dense(attended, weights["out"])

    def activate(self, x: Any) -> Any:
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    def mlp(self, x: Any, weights: Any) -> Any:
        return self.dense(self.activate(self.dense(x, weights["wi"])), weights["wo"])

    def __call__(self) -> tuple[Any, Any]:
        """Return the logits of the tokens and of the pairs of texts."""
        config, encoder = self.config, self.params["encoder"]
        table = self.params["token_embedder"]["embedding"]
        x = table[TOKENS]
        if config.positions == "absolute":
            x = x + encoder["position_embedder"]["embedding"][: x.shape[1]]
        x = self.norm(x + encoder["type_embedder"]["embedding"][TYPES], encoder["embedding_norm"])
        for number in range(config.num_encoder_layers):
            layer = encoder[f"layers_{number}"]
            if config.norm_order == "pre":
                x = x + self.attend(
                    self.norm(x, layer["pre_attention_layer_norm"]), layer["attention"]
                )
                x = x + self.mlp(self.norm(x, layer["pre_mlp_layer_norm"]), layer["mlp"])
            else:
                x = x + self.attend(x, layer["attention"])
                x = self.norm(x, layer["post_attention_layer_norm"])
                x = self.norm(x + self.mlp(x, layer["mlp"]), layer["post_mlp_layer_norm"])
        if config.norm_order == "pre":
            x = self.norm(x, encoder["encoder_norm"])
        head, row = self.params["masked_head"], self.params["row_head"]
        hidden = self.norm(self.activate(self.dense(x, head["dense"])), head["norm"])
        pooled = np.tanh(self.dense(x[:, 0], row["pooler"]))
        return hidden @ table.T + head["logits_bias"], self.dense(pooled, row["sentence_output"])


def measure_error(made: Any, expected: Any) -> float:
    difference = np.abs(np.asarray(made) - expected)
    if expected.ndim == 3:
        difference = difference[TOKENS > 0]
    return float(difference.max() / np.abs(expected).max())


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("positions", ["absolute", "relative", "rotary", "none"])
def test_outputs_are_those_of_numpy(positions: str, order: str) -> None:
    config = T5Config(**BERT, positions=positions, norm_order=order)
    params = make_params(config)
    made, expected = compute(config, params), NumpyEncoder(config, params)()
    for output, values in zip(made, expected, strict=True):
        assert measure_error(output, values) < 2e-5
    # The reference sees what changes: the other order, and other positions.
    changed = {"absolute": "none", "relative": "none", "rotary": "none", "none": "rotary"}
    other = NumpyEncoder(T5Config(**BERT, positions=changed[positions], norm_order=order), params)
    assert measure_error(made[0], other()[0]) > 1e-3


def test_the_layout_of_activations_changes_nothing() -> None:
    config = T5Config(**BERT, positions="rotary", norm_order="post")
    params = make_params(config)
    transposed = T5Config(
        **BERT, positions="rotary", norm_order="post", transpose_batch_sequence=True, fuse_qkv=True
    )
    for first, second in zip(compute(config, params), compute(transposed, params), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("owner", ["stack", "layer"])
def test_sparse_attention_that_sees_all_is_dense(owner: str) -> None:
    """A window over the whole row hides nothing, so only the way of computing differs."""
    fields = {**BERT, "positions": "relative", "relative_bias": owner}
    dense = T5Config(**fields)
    sparse = T5Config(**fields, sparse_attention={"block": 4, "num_sliding_window_blocks": 9})
    params = make_params(sparse) if owner == "layer" else make_params(dense)
    for expected, made in zip(compute(dense, params), compute(sparse, params), strict=True):
        limit = 2e-5 * np.abs(expected).max()
        is_token = TOKENS > 0 if expected.ndim == 3 else ...
        np.testing.assert_allclose(made[is_token], expected[is_token], rtol=0, atol=limit)


def test_more_tokens_than_positions() -> None:
    config = T5Config(**{**BERT, "max_positions": 17}, positions="absolute", norm_order="post")
    with errors.expect_user_error(TOO_BIG):
        make_params(config)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"positions": "learned"}, INVALID),
        ({"norm": "batch"}, INVALID),
        ({"norm_order": "both"}, INVALID),
        ({"head": "decoder"}, INVALID),
        ({"head": "classification"}, "missing"),
        ({"head": "mlm", "loss_chunks": 2}, INVALID),
        ({"token_types": -1}, INVALID),
    ],
)
def test_fields_that_are_not_valid(changes: dict[str, Any], kind: str) -> None:
    with errors.expect_user_error(kind):
        T5Config(**{**SIZES, **changes})


@pytest.mark.parametrize("cls", [network.Transformer, network.DecoderOnly])
def test_networks_with_a_decoder_refuse_what_they_do_not_have(cls: Any) -> None:
    for changes in ({"use_biases": True}, {"positions": "rotary"}, {"num_decoder_layers": 0}):
        config = T5Config(**{**SIZES, "num_decoder_layers": 1, **changes})
        with errors.expect_user_error(INVALID):
            cls(config).init(jax.random.key(0), *[jnp.ones((1, 4), jnp.int32)] * 3)
