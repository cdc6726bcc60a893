"""Small T5s, batches for them, and comparisons of trees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.t5x.network import DecoderOnly, T5Config, Transformer

SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "emb_dim": 32,
    "num_heads": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "head_dim": 8,
    "mlp_dim": 64,
    "mlp_activations": ("gelu", "linear"),
    "dropout_rate": 0.0,
}


def config(**others: Any) -> T5Config:
    return T5Config(**{**SMALL, **others})


def tokens(seed: int, length: int, lengths: list[int]) -> Any:
    """Rows of `length` tokens, of which each has the first so many, and then padding."""
    rows = np.random.default_rng(seed).integers(2, SMALL["vocab_size"], (len(lengths), length))
    for row, keep in zip(rows, lengths, strict=True):
        row[keep:] = 0
    return jnp.asarray(rows, jnp.int32)


def batch(inputs: int = 16, targets: int = 12) -> dict[str, Any]:
    """Four examples of several lengths, padded at the end."""
    target = tokens(1, targets, [targets, 8, 3, targets])
    return {
        "encoder_input_tokens": tokens(0, inputs, [inputs, 10, 5, inputs]),
        "decoder_target_tokens": target,
        "decoder_input_tokens": jnp.pad(target[:, :-1], ((0, 0), (1, 0))),
        "decoder_loss_weights": (target > 0).astype(jnp.int32),
    }


def packed() -> dict[str, Any]:
    """Two rows of two examples each."""
    found = batch()
    ids = {
        "encoder": jnp.repeat(jnp.array([[1, 2]]), 8, axis=1),
        "decoder": jnp.repeat(jnp.array([[1, 2]]), 6, axis=1),
    }
    for side, name in (("encoder", "encoder_input_tokens"), ("decoder", "decoder_target_tokens")):
        found[f"{side}_segment_ids"] = jnp.where(found[name] > 0, ids[side], 0)
    return found


def call(module: Any, variables: Any, given: dict[str, Any], **how: Any) -> Any:
    segments = {
        name: given[name]
        for name in ("encoder_segment_ids", "decoder_segment_ids")
        if name in given
    }
    return module.apply(
        variables,
        given["encoder_input_tokens"],
        given["decoder_input_tokens"],
        given["decoder_target_tokens"],
        **segments,
        **{"enable_dropout": False, **how},
    )


def variables(settings: T5Config, given: dict[str, Any] | None = None) -> Any:
    given = given or batch()
    module: Any = Transformer(settings)
    found = module.init(
        jax.random.key(0),
        given["encoder_input_tokens"],
        given["decoder_input_tokens"],
        given["decoder_target_tokens"],
        enable_dropout=False,
    )
    return {kind: tree for kind, tree in found.items() if kind != "params_axes"}


def loss(logits: Any, given: dict[str, Any]) -> Any:
    """Mean cross entropy of tokens that are no padding."""
    each = jnp.take_along_axis(
        jax.nn.log_softmax(logits), given["decoder_target_tokens"][..., None], -1
    )[..., 0]
    weights = given["decoder_loss_weights"]
    return -jnp.sum(each * weights) / jnp.sum(weights)


def evaluated(module: Any, variables_: Any, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Logits where no padding is, the loss, and its gradient by the parameters."""

    def both(params: Any) -> Any:
        logits = call(module, {**variables_, "params": params}, given)
        return loss(logits, given), logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(both, has_aux=True))(
        variables_["params"]
    )
    return logits * given["decoder_loss_weights"][..., None], value, gradient


def close(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Compare two trees leaf by leaf; the message names the leaf."""
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(
            np.asarray(one),
            np.asarray(other),
            rtol=rtol,
            atol=atol,
            err_msg=jax.tree_util.keystr(path),
        )


__all__ = [
    "DecoderOnly",
    "T5Config",
    "Transformer",
    "batch",
    "call",
    "close",
    "config",
    "evaluated",
    "loss",
    "packed",
    "tokens",
    "variables",
]
