"""Compute logits and greedy tokens with an experiment of Pax, from the weights of a checkpoint.

Import this module after `required_modules.need_modules("jax", "paxml")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from paxml import checkpoint_types, trainer_lib
from praxis import base_layer, py_utils

from rosetta.convert import weight_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _make_batch(ids: Any, mask: Any) -> Any:
    """Return the batch of a language model.

    Args:
        ids: Token ids [rows, length].
        mask: 1 for a token and 0 for padding, [rows, length].
    """
    ids, weights = jnp.asarray(ids, jnp.int32), jnp.asarray(mask, jnp.float32)
    return py_utils.NestedMap(
        ids=ids,
        labels=ids,
        paddings=1 - weights,
        weights=weights,
        eval_sample_weights=jnp.ones(len(ids)),
        segment_ids=weights.astype(jnp.int32),
        segment_pos=jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape),
    )


class Model:
    """A model in float32, with the weights of a checkpoint.

    Attributes:
        variables: The variables of the model, which a test may change.
    """

    def __init__(
        self, experiment_class: Any, restore: Path, settings: dict[str, Any], length: int
    ) -> None:
        """Build the model and read the checkpoint, as a run does.

        Args:
            experiment_class: The class of the experiment.
            restore: The CHECKPOINT_RESTORE_PATH.
            settings: Other hyper-parameters.
            length: The tokens of a row.
        """
        if not flags.FLAGS.is_parsed():
            flags.FLAGS(["test"])
        experiment = experiment_class()
        fixed = {
            "FPROP_DTYPE": jnp.float32,
            "MAX_SEQ_LEN": length,
            "CHECKPOINT_RESTORE_PATH": str(restore),
            "ICI_MESH_SHAPE": [1, 1, 1],
            "DCN_MESH_SHAPE": [1, 1, 1],
        }
        for name, value in (settings | fixed).items():
            setattr(experiment, name, value)
        task = base_layer.instantiate(experiment.task())
        self._model = task.model
        batch = _make_batch(np.ones((1, length)), np.ones((1, length)))
        metadata = trainer_lib.create_train_state_metadata(
            task, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
        )
        self._mesh = jax.sharding.Mesh(
            np.array(jax.devices()[:1]).reshape(1, 1, 1), ("replica", "data", "mdl")
        )
        kind = checkpoint_types.CheckpointType.GDA
        with self._mesh:
            state, provenance = trainer_lib.initialize_model_state(
                task,
                jax.random.PRNGKey(0),
                batch,
                checkpoint_type=kind,
                do_init_checkpoint_rules=False,
            )
            state, *_ = task.apply_init_checkpoint_rules(
                state, provenance, metadata.partition_specs, self._mesh, kind
            )
        self.variables = state.mdl_vars
        self._apply = jax.jit(self._compute_predictions)

    def _compute_predictions(self, variables: Any, batch: Any) -> Any:
        key = jax.random.PRNGKey(0)
        return self._model.apply(
            variables,
            batch,
            method=self._model.compute_predictions,
            rngs={"params": key, "random": key},
        ).logits

    def compute_logits(self, ids: Any, mask: Any) -> Any:
        """Return the logits [rows, length, vocabulary]; the arguments are those of a batch."""
        with self._mesh:
            return np.asarray(self._apply(self.variables, _make_batch(ids, mask)))

    def decode_greedily(self, prompts: Any, count: int) -> Any:
        """Return the tokens with the largest logits, computed one by one.

        Args:
            prompts: Token ids [rows, length of a prompt].
            count: The number of tokens.
        """
        rows, start = prompts.shape
        ids = np.concatenate([prompts, np.ones((rows, count), prompts.dtype)], axis=1)
        mask = np.zeros(ids.shape)
        for position in range(start, start + count):
            mask[:, :position] = 1
            logits = self.compute_logits(ids, mask)
            ids[:, position] = logits[:, position - 1].argmax(-1)
        return ids[:, start:]

    def change_variables(self, change: Callable[[str, Any], Any]) -> None:
        """Replace each variable by what a function makes of its path and its value."""
        paths, structure = jax.tree_util.tree_flatten_with_path(self.variables)
        values = [
            change(".".join(str(getattr(key, "key", key)) for key in path), value)
            for path, value in paths
        ]
        self.variables = jax.tree_util.tree_unflatten(structure, values)


def read_bits(folder: Path) -> dict[str, Any]:
    """Return the tensors of a model folder, float32, as their bits."""
    tensors = weight_files.open_tensors(folder)
    return {name: np.asarray(tensor()).view(np.uint32) for name, tensor in tensors.items()}


def measure_error(logits: Any, reference: Any) -> float:
    """Return the largest difference of two logits where no padding is, of the largest logit."""
    is_token = reference["mask"][..., None]
    largest = np.abs(reference["logits"] * is_token).max()
    return float(np.abs((logits - reference["logits"]) * is_token).max() / largest)
