"""Print as JSON what training comes to on each topology, or what it does to a part of the model.

Usage: python -m tests.support.t5x_topologies all|parts FOLDER. test_topology.py runs it with six
virtual devices.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import seqio
from t5x import utils

from rosetta.core.errors import UserError
from rosetta.t5x import checkpoint, checkpoint_manager, model, muon, network, optimizer
from rosetta.t5x.partial_optimizer import restrict_optimizer, split_params
from rosetta.t5x.partitioning import PjitPartitioner
from rosetta.t5x.run.model_config import Lora
from rosetta.t5x.trainer import Trainer

BATCH, LENGTH, SAVED_AT = 8, 16, 2
NAMES = ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")
VOCABULARY = seqio.ByteVocabulary(100)
CONFIG = network.T5Config(
    vocab_size=384,
    dtype="float32",
    emb_dim=32,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    head_dim=16,
    mlp_dim=64,
    mlp_activations=("gelu", "linear"),
    dropout_rate=0.0,
)
ALL: dict[str, Any] = {"devices": 4, "tensor": 2, "microbatches": 2, "fsdp": True}
# Runs that train a part of the model: fields of T5Config, and the value of FREEZE.
PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "frozen": ({}, "encoder"),
    "frozen, fp8": ({"fp8": "xla"}, "encoder"),
    "adapters": ({"lora": Lora(4, 8)}, ""),
    "adapters, fp8": ({"lora": Lora(4, 8), "fp8": "xla"}, ""),
}


def make_batch(step: int, rows: int) -> dict[str, Any]:
    """Return the batch of a step, whose target lengths differ from row to row."""
    drawn = np.random.default_rng(step)
    made = {name: drawn.integers(3, 300, (rows, LENGTH)).astype(np.int32) for name in NAMES}
    lengths = drawn.integers(4, LENGTH + 1, (rows, 1))
    made["decoder_target_tokens"] *= np.arange(LENGTH) < lengths
    return made


class Run:
    """One run on some of the devices: from nothing, or from a checkpoint."""

    def __init__(
        self,
        folder: str,
        devices: int,
        tensor: int = 1,
        microbatches: int = 1,
        *,
        rows: int = BATCH,
        fsdp: bool = False,
        start: str | None = None,
        gradient_dtype: str | None = None,
        make_optimizer: Any = optimizer.adamw,
        **switches: Any,
    ) -> None:
        self.rows = rows
        config = dataclasses.replace(CONFIG, **switches)
        self.partitioner = PjitPartitioner(tensor, devices=jax.devices()[:devices], fsdp=fsdp)
        made = model.EncoderDecoderModel(
            module=network.Transformer(config),
            input_vocabulary=VOCABULARY,
            output_vocabulary=VOCABULARY,
            optimizer_def=make_optimizer(),
        )
        shapes, types = dict.fromkeys(NAMES, (rows, LENGTH)), dict.fromkeys(NAMES, jnp.int32)
        initializer = checkpoint.Initializer(
            made.optimizer_def,
            made.get_initial_variables,
            shapes,
            self.partitioner,
            types,
            config=config,
            vocabulary=VOCABULARY,
            checkpoint=start,
            model_dir=folder,
            optimizer=True,
        )
        self.manager = checkpoint_manager.Manager(
            folder, initializer.global_train_state_shape, self.partitioner, save_dtype="float32"
        )
        state = (
            self.manager.restore(path=start)
            if start
            else initializer.from_scratch(jax.random.PRNGKey(0))
        )
        self.trainer = Trainer(
            model=made,
            train_state=state,
            partitioner=self.partitioner,
            eval_names=[],
            summary_dir=None,
            train_state_axes=initializer.train_state_axes,
            rng=jax.random.PRNGKey(1),
            learning_rate_fn=utils.create_learning_rate_scheduler(
                factors="constant", base_learning_rate=0.01
            ),
            num_microbatches=microbatches,
            gradient_dtype=gradient_dtype,
        )

    def steps(self, last: int) -> list[float]:
        """Train up to and with step `last`; return each step's loss."""
        losses = []
        for step in range(int(self.trainer.train_state.step), last):
            rows = {
                key: jax.device_put(
                    value,
                    jax.sharding.NamedSharding(
                        self.partitioner.mesh, self.partitioner.data_partition_spec
                    ),
                )
                for key, value in make_batch(step, self.rows).items()
            }
            self.trainer.train_state, metrics = self.trainer._partitioned_train_step(
                self.trainer.train_state, rows
            )
            losses.append(float(metrics["loss"].total))
        return losses

    def moments_held(self) -> float:
        """Return the share of the optimizer's state that one device holds."""
        leaves = [
            leaf for leaf in jax.tree.leaves(self.trainer.train_state.param_states) if leaf.ndim
        ]
        held = sum(leaf.addressable_shards[0].data.size for leaf in leaves)
        return float(held / sum(leaf.size for leaf in leaves))

    def params(self) -> Any:
        return jax.device_get(self.trainer.train_state.params)


def largest_difference(left: Any, right: Any) -> float:
    """Return the largest difference of two trees' values."""
    return max(
        float(np.max(np.abs(one - other)))
        for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def resume_elsewhere(folder: str, make_optimizer: Any) -> dict[str, list[float]]:
    """Return the losses of a run on four devices, and of one device that resumes from it."""
    whole = Run(f"{folder}/whole", **ALL, make_optimizer=make_optimizer)
    whole.steps(SAVED_AT)
    whole.manager.save(whole.trainer.train_state)
    whole.manager.close()
    start = f"{folder}/whole/checkpoint_{SAVED_AT}"
    resumed = Run(f"{folder}/one", 1, start=start, make_optimizer=make_optimizer)
    return {"whole": whole.steps(SAVED_AT + 2), "resumed": resumed.steps(SAVED_AT + 2)}


def find_resume_error(folder: str, start: str, make_optimizer: Any) -> str:
    """Return the kind of error of a run that resumes with another optimizer; "" for none."""
    try:
        Run(folder, 1, start=start, make_optimizer=make_optimizer)
    except UserError as error:
        return str(error.kind)
    return ""


def train_part(folder: str, name: str, gradient_dtype: str | None) -> dict[str, Any]:
    """Train one of PARTS on four devices.

    Returns:
      The losses, and the largest changes of the frozen and of the trained parameters.
    """
    switches, patterns = PARTS[name]

    def make_optimizer() -> Any:
        return restrict_optimizer(optimizer.adamw(), patterns, adapters_only="lora" in switches)

    run = Run(
        f"{folder}/{name}/{gradient_dtype}",
        4,
        microbatches=2,
        fsdp=True,
        gradient_dtype=gradient_dtype,
        make_optimizer=make_optimizer,
        **switches,
    )
    trained, frozen = split_params(make_optimizer(), run.params())
    losses = run.steps(3)
    trained_after, frozen_after = split_params(make_optimizer(), run.params())
    return {
        "losses": losses,
        "frozen": largest_difference(frozen, frozen_after),
        "trained": largest_difference(trained, trained_after),
    }


def train_parts(folder: str) -> None:
    """Train each of PARTS with float32 gradients, and with GRADIENT_DTYPE=bfloat16."""
    results = {}
    for name in PARTS:
        results[name] = [train_part(folder, name, dtype) for dtype in (None, "bfloat16")]
    print(json.dumps(results))


def main(folder: str) -> None:
    begun = Run(f"{folder}/begun", **ALL)
    found: dict[str, Any] = {"begun": begun.steps(SAVED_AT), "moments": begun.moments_held()}
    begun.manager.save(begun.trainer.train_state)
    begun.manager.close()
    found["goes on"] = begun.steps(SAVED_AT + 2)
    start = f"{folder}/begun/checkpoint_{SAVED_AT}"
    plain = Run(f"{folder}/one", 1, start=start)
    found["one"], found["moments of one"] = plain.steps(SAVED_AT + 2), plain.moments_held()
    found["two"] = Run(f"{folder}/two", 2, microbatches=2, start=start).steps(SAVED_AT + 2)
    for dtype in ("float32", "bfloat16"):
        other = Run(
            f"{folder}/{dtype}", 4, microbatches=2, fsdp=True, start=start, gradient_dtype=dtype
        )
        found[dtype] = other.steps(SAVED_AT + 2)
        found[f"apart {dtype}"] = largest_difference(other.params(), plain.params())
    found["tensor"] = Run(f"{folder}/tensor", **ALL, start=start, gradient_dtype="float32").steps(
        SAVED_AT + 2
    )
    # Twelve rows, of which each of six devices has two.
    found["one on another batch"] = Run(f"{folder}/one12", 1, rows=12, start=start).steps(
        SAVED_AT + 2
    )
    six = Run(f"{folder}/six", 6, rows=12, fsdp=True, start=start)
    found["six"], found["moments of six"] = six.steps(SAVED_AT + 2), six.moments_held()
    six.manager.save(six.trainer.train_state)
    six.manager.close()
    found["six goes on"] = six.steps(SAVED_AT + 3)
    found["one after six"] = Run(
        f"{folder}/again", 1, rows=12, start=f"{folder}/six/checkpoint_{SAVED_AT + 2}"
    ).steps(SAVED_AT + 3)
    found["six once"] = Run(
        f"{folder}/once",
        6,
        microbatches=2,
        rows=12,
        fsdp=True,
        start=start,
        gradient_dtype="float32",
    ).steps(SAVED_AT + 2)
    for name, make_optimizer in (("adamw_rms", optimizer.adamw_rms), ("muon", muon.muon)):
        found[name] = resume_elsewhere(f"{folder}/{name}", make_optimizer)
        found[f"adamw to {name}"] = find_resume_error(f"{folder}/to_{name}", start, make_optimizer)
    print(json.dumps(found))


if __name__ == "__main__":
    {"all": main, "parts": train_parts}[sys.argv[1]](sys.argv[2])
