"""Gradients that leave a device once a step, in the type one chooses.

Left to itself, XLA adds gradients up over the data axes where each arises: in the type of that
product, and once for every microbatch. Here each group of devices sums its own microbatches, and
what it has is added up over the groups at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax.linen import partitioning as flax_partitioning
from jax import lax
from jax.sharding import PartitionSpec
from t5x.trainer import merge_metrics

from rosetta.core.errors import CONFLICT, INVALID, UNSUPPORTED, UserError
from rosetta.core.variables import choices
from rosetta.nn import fallback_notice
from rosetta.nn.mesh_axes import list_axis_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from rosetta.t5x.run.model_config import T5Config

SETTING = "GRADIENT_DTYPE (Trainer.gradient_dtype)"


def check_support(dtype: str | None, factor: Any, partitioner: Any, config: T5Config) -> None:
    """UserError where gradients cannot be added up in `dtype`, or the loss is no sum over its
    tokens.

    Args:
      dtype: one of choices.GRADIENT_TYPES, or None: nothing is asked for.
      factor: the model's loss_normalizing_factor.
      partitioner: of the run.
      config: of the model.
    """
    if dtype is None:
        return
    if dtype not in choices.GRADIENT_TYPES:
        raise UserError(
            f"gradient_dtype is {dtype!r}",
            "Trainer.gradient_dtype",
            f"choose one of: {', '.join(choices.GRADIENT_TYPES)}, or None",
            kind=INVALID,
            value=dtype,
        )
    if factor is not None and not isinstance(factor, int | float):
        raise UserError(
            f"gradient_dtype needs a loss that is a sum over tokens, not {factor}",
            "LOSS_NORMALIZING_FACTOR",
            "give a number or None, or set gradient_dtype = None",
            kind=CONFLICT,
            value=factor,
        )
    if not partitioner.data_axes:
        raise UserError(
            "the batch lies over no axis of the mesh", SETTING, "leave it unset", kind=UNSUPPORTED
        )
    if "te" in (config.fp8, config.attention):
        raise UserError(
            "Transformer Engine adds up over the devices by itself",
            SETTING,
            "leave it unset, or set ENABLE_TE=0",
            kind=CONFLICT,
        )
    if config.attention != "xla" and partitioner.mesh.size > partitioner.data_mesh_size:
        raise UserError(
            (
                f"with models split over devices XLA cannot place {config.attention}'s attention "
                "inside it"
            ),
            SETTING,
            "leave it unset, or set ATTENTION=xla or TP_SIZE=1",
            kind=UNSUPPORTED,
        )


def reduce_over_data(
    gradients: Callable[..., Any], partitioner: Any, dtype: str, axes: Any
) -> Callable[..., Any]:
    """Return `gradients` computed by each group of devices on its rows of the batch, and added up
    in `dtype`.

    Args:
      gradients: (params, state, batch, rng) -> (gradients, metrics, what FP8 has seen), all sums
        over the batch, or largest values.
      partitioner: of the run: its mesh, and the rules of which the data axes are none inside.
      dtype: of the sum over the groups. What it gives is float32 again, and where the optimizer's
        state is spread over the groups, so is it.
      axes: the parameters' layout, a tree of PartitionSpec.

    Dropout's masks differ from those without it: every group draws its own.
    """
    mesh, over, groups = partitioner.mesh, partitioner.data_axes, partitioner.data_mesh_size
    split_models = mesh.size > groups
    # Where no model is split nothing is left to XLA, for whose partitioning cuDNN's attention has
    # no rule inside such a function.
    rules = (
        [
            (name, None if set(list_axis_names(axis)) & set(over) else axis)
            for name, axis in partitioner.logical_axis_rules
        ]
        if split_models
        else []
    )
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if on_cpu and dtype == "bfloat16":
        fallback_notice.warn_once(
            "gradients",
            "rounded to bfloat16 and added up in float32: XLA adds no bfloat16 between CPUs",
        )

    def total(leaf: Any, spread: PartitionSpec) -> Any:
        leaf = leaf.astype(dtype)
        leaf = leaf.astype(jnp.float32) if on_cpu else leaf
        scattered: tuple[str, ...] = ()
        for dimension, part in enumerate(spread):
            if part:
                scattered = list_axis_names(part)
                leaf = lax.psum_scatter(leaf, scattered, scatter_dimension=dimension, tiled=True)
        rest = tuple(axis for axis in over if axis not in scattered)
        return (lax.psum(leaf, rest) if rest else leaf).astype(jnp.float32)

    def reduced(params: Any, state: Any, batch: Any, rng: Any) -> Any:
        # Over an axis that is left to XLA, a scatter would first gather: with tensor parallelism
        # each takes its part of the whole sum.
        replicated, split = PartitionSpec(), PartitionSpec(over)
        spread = (
            jax.tree.map(lambda _: replicated, params)
            if split_models
            else partitioner.over_data(axes, params)
        )

        def local(params: Any, state: Any, batch: Any, rng: Any) -> Any:
            with flax_partitioning.axis_rules(rules):
                found, metrics, seen = gradients(
                    params, state, batch, jax.random.fold_in(rng, lax.axis_index(over))
                )
            largest = jax.tree.map(lambda leaf: lax.pmax(leaf, over), seen)
            return (
                jax.tree.map(total, found, spread),
                jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], metrics),
                largest,
            )

        # Unchecked, as otherwise JAX itself adds up the gradients of what all groups share, in the
        # type it has.
        found, metrics, seen = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(replicated, replicated, split, replicated),
            out_specs=(spread, split, replicated),
            axis_names=set(over) if split_models else set(mesh.axis_names),
            check_vma=False,
        )(params, state, batch, rng)
        first = jax.tree.map(lambda leaf: leaf[0], metrics)
        metrics = lax.fori_loop(
            1,
            groups,
            lambda index, sums: merge_metrics(
                sums, jax.tree.map(lambda leaf: leaf[index], metrics)
            ),
            first,
        )
        return found, metrics, seen

    return reduced
