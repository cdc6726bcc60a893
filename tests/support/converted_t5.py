"""Compute with the checkpoints that `rosetta convert t5 --to t5x` writes. Needs JAX and Flax."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from rosetta.convert import t5x_checkpoint
from rosetta.t5x.run import gin_files, gin_reader, network_fields
from rosetta.t5x.run.model_config import T5Config
from tests.support import hugging_face_t5, small_t5


@functools.cache
def read_checkpoint(folder: Path) -> tuple[T5Config, Any]:
    """Return the configuration and the parameters of a converted checkpoint."""
    configuration = gin_reader.read_configuration([folder / "model.gin"], [gin_files.ROOT])
    fields = {
        name: configuration.value(f"{network_fields.T5_CONFIG}.{name}")
        for name in (field.name for field in dataclasses.fields(T5Config))
        if configuration.binds(f"{network_fields.T5_CONFIG}.{name}")
    }
    arrays = t5x_checkpoint.Source(folder).arrays
    params = {
        tuple(name.split("/")[1:]): jnp.asarray(array.read())
        for name, array in arrays.items()
        if name.startswith("target/")
    }
    return T5Config(**fields), unflatten_dict(params)  # type: ignore[arg-type]


def compute_logits(config: T5Config, params: Any, reference: Any) -> Any:
    """Return the logits of the rows that Hugging Face's model has, [batch, length, vocabulary]."""
    batch = {
        "encoder_input_tokens": jnp.asarray(reference["inputs"], jnp.int32),
        "decoder_input_tokens": jnp.asarray(reference["decoder"], jnp.int32),
        "decoder_target_tokens": jnp.asarray(reference["targets"], jnp.int32),
    }
    module = small_t5.Transformer(config)
    logits = jax.jit(lambda tree: small_t5.apply_network(module, {"params": tree}, batch))(params)
    return logits[..., : reference["logits"].shape[-1]]


def decode_greedily(config: T5Config, params: Any, reference: Any) -> Any:
    """Return the tokens with the largest logits, computed one by one with the cache of keys."""
    module, length = small_t5.Transformer(config), hugging_face_t5.GREEDY_TOKENS
    inputs = jnp.asarray(reference["inputs"], jnp.int32)
    variables = {"params": params}
    encoded = module.apply(variables, inputs, enable_dropout=False, method=module.encode)
    options: dict[str, Any] = {
        "enable_dropout": False,
        "decode": True,
        "mutable": ["cache"],
        "method": module.decode,
    }
    empty = jnp.ones((len(inputs), length), jnp.int32)
    _, made = module.apply(variables, encoded, inputs, empty, empty, **options)

    def compute_step(cache: Any, token: Any) -> Any:
        logits, changed = module.apply(
            {**variables, "cache": cache},
            encoded,
            inputs,
            token,
            token,
            max_decode_length=length,
            **options,
        )
        known = logits[:, 0, : reference["logits"].shape[-1]]
        return changed["cache"], jnp.argmax(known, axis=-1).astype(jnp.int32)[:, None]

    step = jax.jit(compute_step)
    cache, token, tokens = made["cache"], empty[:, :1] * 0, []
    for _ in range(length):
        cache, token = step(cache, token)
        tokens.append(token)
    return np.concatenate(tokens, axis=1)
