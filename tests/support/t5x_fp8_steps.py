"""Run with four virtual devices by test_trainer.py: prints as JSON what FP8 training comes to, by microbatches, scanning, fusing and devices."""

from __future__ import annotations

import functools
import json
import sys
from typing import Any
from unittest import mock

import flax
import jax
import jax.numpy as jnp
import numpy as np
import seqio
from flax import traverse_util
from t5x import train_state, utils

from rosetta.nn import fp8, gradient_kernels, mlp_kernels
from rosetta.t5x import model, network, optimizer
from rosetta.t5x.partitioning import PjitPartitioner
from rosetta.t5x.trainer import Trainer

BATCH, LENGTH = 8, 16
LEARNING = 200  # steps
SHAPES = dict.fromkeys(
    ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens"), (BATCH, LENGTH)
)
VOCABULARY = seqio.ByteVocabulary(100)
SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "emb_dim": 32,
    "num_heads": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "head_dim": 16,
    "mlp_dim": 64,
    "mlp_activations": ("gelu", "linear"),
    "dropout_rate": 0.0,
}


def make_batch(step: int) -> dict[str, Any]:
    """A batch of sequences that count up from a random start: something to learn."""
    drawn = np.random.default_rng(step)
    rows = (drawn.integers(3, 250, (BATCH, 1)) + np.arange(LENGTH)).astype(np.int32)
    return {
        "encoder_input_tokens": rows,
        "decoder_target_tokens": rows,
        "decoder_input_tokens": np.pad(rows[:, :-1], ((0, 0), (1, 0))),
    }


def make_random_walks(step: int) -> dict[str, Any]:
    """A batch of walks over 32 tokens with steps of 1, 2 or 3 at random: as of text, no model knows the next token, and 1.03 nats of loss remain.

    Runs that learn to the end differ by what chance makes of rounding; here they come to the same.
    """
    drawn = np.random.default_rng(step)
    rows = [
        (
            3
            + (
                drawn.integers(0, 32, (BATCH, 1))
                + drawn.choice([1, 2, 3], (BATCH, LENGTH), p=[0.5, 0.3, 0.2]).cumsum(axis=1)
            )
            % 32
        ).astype(np.int32)
        for _ in range(2)
    ]
    return {
        "encoder_input_tokens": rows[0],
        "decoder_target_tokens": rows[1],
        "decoder_input_tokens": np.pad(rows[1][:, :-1], ((0, 0), (1, 0))),
    }


def decay_learning_rate(step: Any) -> Any:
    return 0.003 * jnp.minimum(1.0, step / 20) * (1 - step / LEARNING)


@functools.cache
def initialize_variables(fp8: str) -> Any:
    """The first parameters, which no other switch changes, and the FP8 state."""
    made = network.Transformer(network.T5Config(**SIZES, fp8=fp8))
    return _make_model(made).get_initial_variables(
        jax.random.key(0), SHAPES, dict.fromkeys(SHAPES, jnp.int32)
    )


def _make_model(module: Any) -> Any:
    return model.EncoderDecoderModel(
        module=module,
        input_vocabulary=VOCABULARY,
        output_vocabulary=VOCABULARY,
        optimizer_def=optimizer.adamw(),
    )


def make_trainer(
    microbatches: int = 1,
    devices: int = 1,
    gradient_dtype: str | None = None,
    rate: Any = lambda _: 0.003,
    **switches: Any,
) -> Trainer:
    settings = network.T5Config(**{**SIZES, "dtype": "float32", "fp8": "xla", **switches})
    made = _make_model(network.Transformer(settings))
    partitioner = PjitPartitioner(1, devices=jax.devices()[:devices])
    initializer = utils.TrainStateInitializer(
        made.optimizer_def,
        made.get_initial_variables,
        SHAPES,
        partitioner,
        dict.fromkeys(SHAPES, jnp.int32),
    )
    return Trainer(
        model=made,
        train_state=train_state.FlaxOptimTrainState.create(
            made.optimizer_def, jax.tree.map(jnp.copy, initialize_variables(settings.fp8))
        ),
        partitioner=partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(1),
        num_microbatches=microbatches,
        gradient_dtype=gradient_dtype,
        learning_rate_fn=rate,
    )


def train_steps(made: Trainer, steps: int, batch: Any = make_batch) -> list[float]:
    losses = []
    for step in range(steps):
        made.train_state, metrics = made._partitioned_train_step(made.train_state, batch(step))
        losses.append(float(metrics["loss_per_nonpadding_target_token"].compute_value().value))
    return losses


def summarize_fp8_state(made: Trainer) -> dict[str, Any]:
    """The FP8 state: all scales, and of histories the newest two values and whether the rest is still empty."""
    flat = traverse_util.flatten_dict(
        flax.core.unfreeze(made.train_state.flax_mutables[fp8.COLLECTION]), sep="/"
    )
    return {
        name: [
            *np.asarray(leaf)[:2].tolist(),
            float(np.abs(leaf[2:]).max()) if leaf.shape[0] > 2 else 0.0,
        ]
        for name, leaf in flat.items()
    }


STEPS: dict[str, Any] = {
    "plain": {},
    "2 microbatches": {"microbatches": 2},
    "4 microbatches": {"microbatches": 4},
    "scanned": {"scan_layers": True},
    "4 devices": {"devices": 4},
    "4 devices, 2 microbatches, one reduction": {
        "devices": 4,
        "microbatches": 2,
        "gradient_dtype": "float32",
    },
    "fused": {"fuse_qkv": True},
    "kernel, scanned": {
        "fuse_qkv": True,
        "fused_geglu": True,
        "fused_qkv_gradients": True,
        "scan_layers": True,
        "remat": "minimal",
    },
    "kernel, 4 devices, 2 microbatches": {
        "fuse_qkv": True,
        "fused_geglu": True,
        "fused_qkv_gradients": True,
        "devices": 4,
        "microbatches": 2,
    },
    "kernel, 4 devices, one reduction": {
        "fuse_qkv": True,
        "fused_geglu": True,
        "fused_qkv_gradients": True,
        "devices": 4,
        "gradient_dtype": "float32",
    },
}


def count_calls(module: Any, name: str) -> Any:
    """Return a context with a mock that counts the calls of a module's function."""
    return mock.patch.object(module, name, wraps=getattr(module, name))


def main(what: str) -> None:
    if what == "state":
        found: dict[str, Any] = {}
        for name, how in STEPS.items():
            made = make_trainer(**how)
            with (
                count_calls(mlp_kernels, "apply_unit") as units,
                count_calls(gradient_kernels, "join_gradients") as joins,
            ):
                losses = train_steps(made, 2)
            found[name] = {
                "losses": losses,
                "state": summarize_fp8_state(made),
                "kernels": [units.call_count, joins.call_count],
            }
    else:
        found = {
            kind: train_steps(
                make_trainer(
                    rate=decay_learning_rate,
                    dtype="bfloat16",
                    fuse_qkv=True,
                    scan_layers=True,
                    fp8=kind,
                ),
                LEARNING,
                make_random_walks,
            )
            for kind in ("off", "xla")
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
