"""Trains small experiments by paxml's own step: their sizes, batches to learn from, and what a run has after some steps."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec
from paxml import trainer_lib
from praxis import base_hyperparams, base_layer, py_utils

from rosetta.pax import einsum, glam, gpt, llama

BATCH, LENGTH, VOCABULARY = 8, 32, 512
_SIZE = {
    "NUM_LAYERS": 2,
    "NUM_HEADS": 4,
    "MODEL_DIMS": 64,
    "HIDDEN_DIMS": 128,
    "DIMS_PER_HEAD": 16,
    "VOCAB_SIZE": VOCABULARY,
    "MAX_SEQ_LEN": LENGTH,
    "USE_REPEATED_LAYER": False,
    "FPROP_DTYPE": jnp.float32,
    "ICI_MESH_SHAPE": (1, 1, 1),
    "DCN_MESH_SHAPE": (1, 1, 1),
    "LEARNING_RATE": 1e-2,
    "LR_SCHEDULE": "constant",
    "MAX_STEPS": 100,
}
_FAMILIES: dict[str, Any] = {
    "gpt": (gpt.GPT126M, {}),
    "llama": (llama.LLaMA7B, {}),
    "gqa": (llama.LLaMA7B, {"USE_MQA": True, "NUM_KV_HEADS": 2}),
    "mqa": (llama.LLaMA7B, {"USE_MQA": True, "NUM_KV_HEADS": 1}),
    "glam": (glam.GLaM126M64E, {"NUM_EXPERTS": 4}),
}


def make_experiment(family: str, **given: Any) -> Any:
    """A small experiment of a family; `given` are its hyper-parameters."""
    kind, more = _FAMILIES[family]
    return type(f"Small{family}", (kind,), {"datasets": lambda _: [], **_SIZE, **more, **given})()


def make_batch(step: int, *, padded: bool = True) -> Any:
    """Walks over 32 tokens by steps of 1, 2 or 3 at random; of each row the end is padding."""
    drawn = np.random.default_rng(step)
    walk = (
        3
        + (
            drawn.integers(0, 32, (BATCH, 1))
            + drawn.choice([1, 2, 3], (BATCH, LENGTH + 1), p=[0.5, 0.3, 0.2]).cumsum(axis=1)
        )
        % 32
    ).astype(np.int32)
    lengths = (
        drawn.integers(LENGTH // 2, LENGTH, (BATCH, 1)) if padded else np.full((BATCH, 1), LENGTH)
    )
    real = (np.arange(LENGTH) < lengths).astype(np.float32)
    return py_utils.NestedMap(
        ids=walk[:, :-1] * real.astype(np.int32),
        labels=walk[:, 1:] * real.astype(np.int32),
        paddings=1 - real,
        weights=real,
        segment_ids=real.astype(np.int32),
        segment_pos=(np.arange(LENGTH, dtype=np.int32)[None] * real.astype(np.int32)),
        eval_sample_weights=np.ones(BATCH, np.float32),
    )


class Run:
    """A run of an experiment on as many devices as its mesh has."""

    def __init__(self, made: Any, seed: int = 0, *, start: Any = None) -> None:
        config = made.task()
        self.dtype = config.model.fprop_dtype
        self.task = base_hyperparams.instantiate(config)
        shape = [a * b for a, b in zip(made.ICI_MESH_SHAPE, made.DCN_MESH_SHAPE, strict=True)]
        self.mesh = jax.sharding.Mesh(
            np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape),
            config.model.mesh_axis_names,
        )
        with self.mesh:
            self.hparams = self.task.model.abstract_init_with_metadata(make_batch(0))
            self.state, _ = trainer_lib.initialize_model_state(
                self.task, jax.random.PRNGKey(seed), make_batch(0), do_init_checkpoint_rules=False
            )
            if start is not None:
                self.state = self.state.replace(
                    mdl_vars=_replace_variables(self.state.mdl_vars, start)
                )
            specs = self.task.create_train_state_partition_specs(self.hparams)
            layout = jax.tree.map(
                lambda spec: NamedSharding(self.mesh, spec),
                specs,
                is_leaf=lambda each: isinstance(each, PartitionSpec),
            )
            self.state = jax.tree.map(jax.device_put, self.state, layout)
            self._rows = NamedSharding(self.mesh, PartitionSpec(("replica", "data")))
        self._step = jax.jit(
            functools.partial(
                trainer_lib.train_step_single_learner,
                self.task,
                fprop_dtype=self.dtype,
                var_weight_hparams=self.hparams,
            ),
            out_shardings=(layout, None),
        )
        self.summaries: Any = None

    def steps(self, count: int, make: Any = make_batch) -> list[float]:
        """Train so many steps; return their losses."""
        losses = []
        for _ in range(count):
            rows = jax.tree.map(
                lambda leaf: jax.device_put(leaf, self._rows), make(int(self.state.step))
            )
            with self.mesh:
                self.state, out = self._step(self.state, jax.random.PRNGKey(7), rows)
            self.summaries = out.summary_tensors
            losses.append(float(out.loss))
        return losses

    @property
    def params(self) -> dict[str, np.ndarray]:
        """Its parameters, by name; without FP8 state."""
        return {
            name: leaf
            for name, leaf in self._named().items()
            if not name.endswith(einsum.STATE_NAMES)
        }

    @property
    def fp8(self) -> dict[str, np.ndarray]:
        """Its FP8 state, by name."""
        return {
            name: leaf for name, leaf in self._named().items() if name.endswith(einsum.STATE_NAMES)
        }

    def _named(self) -> dict[str, np.ndarray]:
        return {
            name: np.asarray(leaf)
            for name, leaf in flatten_dict(self.state.mdl_vars["params"], sep="/").items()
        }

    def logits(self, rows: Any) -> np.ndarray:
        """What the model predicts for a batch, [batch, length, vocabulary]."""
        context = base_layer.JaxContext.HParams(do_eval=True)
        with self.mesh, base_layer.JaxContext.new_context(hparams=context):
            made = self.task.model.apply(
                self.state.mdl_vars,
                rows,
                method=self.task.model.compute_predictions,
                mutable=["non_trainable", "summaries", "aux_loss"],
            )
        found: np.ndarray = np.asarray(made[0].logits, np.float32)
        return found


def _replace_variables(variables: Any, start: dict[str, np.ndarray]) -> Any:
    """Variables with those of `start`, as Run.params has them, in place of the ones of the same name."""
    flat = flatten_dict(variables["params"], sep="/")
    return {
        **variables,
        "params": unflatten_dict(
            {**flat, **{name: jnp.asarray(leaf) for name, leaf in start.items() if name in flat}},
            sep="/",
        ),
    }
