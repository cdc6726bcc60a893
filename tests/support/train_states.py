"""Train states of one small kernel, for tests of checkpoints: no network, nothing to compile."""

from __future__ import annotations

from typing import Any

import flax
import jax
import jax.numpy as jnp
from flax.linen.partitioning import AxisMetadata
from t5x import train_state

from rosetta.nn import fp8
from rosetta.t5x import optimizer


class Model:
    """As much of a T5X model as an initializer asks for."""

    def __init__(self, rows: int = 8, *, with_fp8: bool = False, name: str = "kernel") -> None:
        self.rows, self.with_fp8, self.name = rows, with_fp8, name
        self.optimizer_def = optimizer.adamw()

    def get_initial_variables(
        self, rng: Any = None, input_shapes: Any = None, input_types: Any = None
    ) -> Any:
        del rng, input_shapes, input_types
        params = {
            "dense": {self.name: jnp.arange(self.rows * 4, dtype=jnp.float32).reshape(self.rows, 4)}
        }
        axes = {"dense": {f"{self.name}_axes": AxisMetadata(names=("embed", "mlp"))}}
        made = {"params": params, "params_axes": axes}
        if self.with_fp8:
            state = {
                "dense": {"kernel_scale": jnp.full(1, 3.0), "kernel_amax_history": jnp.full(4, 5.0)}
            }
            made |= {fp8.COLLECTION: state, f"{fp8.COLLECTION}_axes": fp8.make_axes_metadata(state)}
        return flax.core.freeze(made)

    def state(self, step: int) -> Any:
        """Return a train state at a step, whose moments are no longer zero."""
        made = train_state.FlaxOptimTrainState.create(
            self.optimizer_def, self.get_initial_variables()
        )
        moved = jax.tree.map(lambda leaf: leaf + 1 if leaf.ndim else leaf, made.param_states)
        made = made.replace(
            _optimizer=made._optimizer.replace(
                state=made._optimizer.state.replace(param_states=moved)
            )
        )
        return made.replace_step(jnp.int32(step))
