"""Gradients that leave a device once a step, in the type one chooses.

Left to itself, XLA adds gradients up over the data axis where each arises: in the type of that product, and once for every microbatch.
Here each group of devices sums its own microbatches, and what it has is added up over the groups at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax.linen import partitioning as flax_partitioning
from jax import lax
from jax.sharding import PartitionSpec
from t5x.trainer import merge_metrics

from rosetta.errors import UserError
from rosetta.nn import route

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = ("float32", "bfloat16")
AXIS = "data"


def check(dtype: str | None, factor: Any, partitioner: Any, attention: str = "xla") -> None:
    """UserError where gradients cannot be added up in `dtype`, or the loss is no sum over its tokens.

    Args:
      dtype: one of DTYPES, or None: nothing is asked for.
      factor: the model's loss_normalizing_factor.
      partitioner: of the run.
      attention: who computes it.
    """
    if dtype is None:
        return
    if dtype not in DTYPES:
        raise UserError(f"gradient_dtype is {dtype!r}", "Trainer.gradient_dtype", f"choose one of: {', '.join(DTYPES)}, or None")
    if factor is not None and not isinstance(factor, int | float):
        raise UserError(f"gradient_dtype needs a loss that is a sum over tokens, not {factor}", "LOSS_NORMALIZING_FACTOR", "give a number or None, or set gradient_dtype = None")
    if AXIS not in partitioner.mesh.axis_names:
        raise UserError("the mesh has no axis named data", "Trainer.gradient_dtype", "set it to None")
    if attention != "xla" and partitioner.mesh.size > partitioner.mesh.shape[AXIS]:
        raise UserError(f"with models split over devices XLA cannot place {attention}'s attention inside it", "GRADIENT_DTYPE (Trainer.gradient_dtype)", "leave it unset, or set ATTENTION=xla or TP_SIZE=1")


def over_data(gradients: Callable[..., Any], partitioner: Any, dtype: str, axes: Any) -> Callable[..., Any]:
    """Return `gradients` computed by each group of devices on its rows of the batch, and added up in `dtype`.

    Args:
      gradients: (params, state, batch, rng) -> (gradients, metrics, what FP8 has seen), all sums over the batch, or largest values.
      partitioner: of the run: its mesh, and the rules of which the data axis is none inside.
      dtype: of the sum over the groups. What it gives is float32 again, and where the optimizer's state is spread over the groups, so is it.
      axes: the parameters' layout, a tree of PartitionSpec.

    Dropout's masks differ from those without it: every group draws its own.
    """
    mesh = partitioner.mesh
    split_models = mesh.size > mesh.shape[AXIS]
    # Where no model is split nothing is left to XLA, for whose partitioning cuDNN's attention has no rule inside such a function.
    rules = [(name, None if axis == AXIS else axis) for name, axis in partitioner.logical_axis_rules] if split_models else []
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if on_cpu and dtype == "bfloat16":
        route.say("gradients", "rounded to bfloat16 and added up in float32: XLA adds no bfloat16 between CPUs")

    def total(leaf: Any, dimension: int) -> Any:
        leaf = leaf.astype(dtype)
        leaf = leaf.astype(jnp.float32) if on_cpu else leaf
        whole = lax.psum(leaf, AXIS) if dimension < 0 else lax.psum_scatter(leaf, AXIS, scatter_dimension=dimension, tiled=True)
        return whole.astype(jnp.float32)

    def reduced(params: Any, state: Any, batch: Any, rng: Any) -> Any:
        # Over an axis that is left to XLA, a scatter would first gather: with tensor parallelism each takes its part of the whole sum.
        dimensions = jax.tree.map(lambda found: -1 if split_models else found, partitioner.data_dimensions(axes, params))

        def local(params: Any, state: Any, batch: Any, rng: Any) -> Any:
            with flax_partitioning.axis_rules(rules):
                found, metrics, seen = gradients(params, state, batch, jax.random.fold_in(rng, lax.axis_index(AXIS)))
            largest = jax.tree.map(lambda leaf: lax.pmax(leaf, AXIS), seen)
            return jax.tree.map(total, found, dimensions), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], metrics), largest

        replicated, split = PartitionSpec(), PartitionSpec(AXIS)
        summed = jax.tree.map(lambda dimension: PartitionSpec(*[None] * dimension, AXIS) if dimension >= 0 else replicated, dimensions)
        # Unchecked, as otherwise JAX itself adds up the gradients of what all groups share, in the type it has.
        found, metrics, seen = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(replicated, replicated, split, replicated),
            out_specs=(summed, split, replicated),
            axis_names={AXIS} if split_models else set(mesh.axis_names),
            check_vma=False,
        )(params, state, batch, rng)
        first = jax.tree.map(lambda leaf: leaf[0], metrics)
        metrics = lax.fori_loop(1, mesh.shape[AXIS], lambda index, sums: merge_metrics(sums, jax.tree.map(lambda leaf: leaf[index], metrics)), first)
        return found, metrics, seen

    return reduced
