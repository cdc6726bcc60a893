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


def make_config(**others: Any) -> T5Config:
    return T5Config(**{**SMALL, **others})


def make_tokens(seed: int, length: int, lengths: list[int]) -> Any:
    """Rows of `length` tokens, of which each has the first so many, and then padding."""
    rows = np.random.default_rng(seed).integers(2, SMALL["vocab_size"], (len(lengths), length))
    for row, keep in zip(rows, lengths, strict=True):
        row[keep:] = 0
    return jnp.asarray(rows, jnp.int32)


def make_batch(inputs: int = 16, targets: int = 12) -> dict[str, Any]:
    """Four examples of several lengths, padded at the end."""
    target = make_tokens(1, targets, [targets, 8, 3, targets])
    return {
        "encoder_input_tokens": make_tokens(0, inputs, [inputs, 10, 5, inputs]),
        "decoder_target_tokens": target,
        "decoder_input_tokens": jnp.pad(target[:, :-1], ((0, 0), (1, 0))),
        "decoder_loss_weights": (target > 0).astype(jnp.int32),
    }


def make_packed_batch() -> dict[str, Any]:
    """Two rows of two examples each."""
    found = make_batch()
    ids = {
        "encoder": jnp.repeat(jnp.array([[1, 2]]), 8, axis=1),
        "decoder": jnp.repeat(jnp.array([[1, 2]]), 6, axis=1),
    }
    for side, name in (("encoder", "encoder_input_tokens"), ("decoder", "decoder_target_tokens")):
        found[f"{side}_segment_ids"] = jnp.where(found[name] > 0, ids[side], 0)
    return found


def apply_network(module: Any, variables: Any, given: dict[str, Any], **how: Any) -> Any:
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


def initialize_variables(settings: T5Config, given: dict[str, Any] | None = None) -> Any:
    given = given or make_batch()
    module: Any = Transformer(settings)
    found = module.init(
        jax.random.key(0),
        given["encoder_input_tokens"],
        given["decoder_input_tokens"],
        given["decoder_target_tokens"],
        enable_dropout=False,
    )
    return {kind: tree for kind, tree in found.items() if kind != "params_axes"}


def compute_loss(logits: Any, given: dict[str, Any]) -> Any:
    """Mean cross entropy of tokens that are no padding."""
    each = jnp.take_along_axis(
        jax.nn.log_softmax(logits), given["decoder_target_tokens"][..., None], -1
    )[..., 0]
    weights = given["decoder_loss_weights"]
    return -jnp.sum(each * weights) / jnp.sum(weights)


def compute_loss_and_gradient(
    module: Any, variables_: Any, given: dict[str, Any], **how: Any
) -> tuple[Any, Any, Any]:
    """Logits where no padding is, the loss, and its gradient by the parameters."""

    def both(params: Any) -> Any:
        logits = apply_network(module, {**variables_, "params": params}, given, **how)
        return compute_loss(logits, given), logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(both, has_aux=True))(
        variables_["params"]
    )
    return logits * given["decoder_loss_weights"][..., None], value, gradient


def assert_trees_close(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
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
    "apply_network",
    "assert_trees_close",
    "compute_loss",
    "compute_loss_and_gradient",
    "initialize_variables",
    "make_batch",
    "make_config",
    "make_packed_batch",
    "make_tokens",
]
