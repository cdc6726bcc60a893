"""Sums of gradients over the devices, once a step and in a chosen type (see trainer).

By default, XLA adds each gradient up over the data axes where the gradient arises: in the type of
that matrix product, and once for each microbatch. Here each group of devices that shares a model
sums the gradients of its own microbatches. Their sum over the groups is computed at the end.
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
from rosetta.nn import fallback_notice, sharded_parameters
from rosetta.nn.mesh_axes import list_axis_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from rosetta.t5x.run.model_config import T5Config

SETTING = "GRADIENT_DTYPE (Trainer.gradient_dtype)"


def check_support(dtype: str | None, factor: Any, partitioner: Any, config: T5Config) -> None:
    """Check that gradients can be added up in a type.

    Args:
      dtype: one of choices.GRADIENT_TYPES; None leaves the sums to XLA.
      factor: the model's loss_normalizing_factor.
      partitioner: the run's partitioner.
      config: the network's configuration.

    Raises:
      UserError: the type is not valid, the loss is not a sum over tokens, or another setting rules
        out such sums.
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
            "no axis of the mesh divides the batch", SETTING, "leave it unset", kind=UNSUPPORTED
        )
    if "te" in (config.fp8, config.attention):
        raise UserError(
            "Transformer Engine adds gradients up over the devices itself",
            SETTING,
            "leave it unset, or set ENABLE_TE=0",
            kind=CONFLICT,
        )
    if config.attention != "xla" and partitioner.mesh.size > partitioner.data_mesh_size:
        raise UserError(
            (
                f"XLA cannot compute {config.attention}'s attention inside it if models are split "
                "over devices"
            ),
            SETTING,
            "leave it unset, or set ATTENTION=xla or TP_SIZE=1",
            kind=UNSUPPORTED,
        )


def reduce_over_data(
    gradients: Callable[..., Any], partitioner: Any, dtype: str, axes: Any
) -> Callable[..., Any]:
    """Return a function like `gradients` that each group of devices computes on its own rows.

    Every group draws its own dropout masks. They differ from those without this function.

    Args:
      gradients: (params, frozen params, state, batch, rng) -> (gradients, metrics, FP8 statistics).
        Gradients and metrics are sums over the batch, the statistics are maxima.
      partitioner: the run's partitioner.
      dtype: the type of the sum over the groups. The result is float32 again. If the optimizer's
        state is spread over the groups, the result is spread in the same way.
      axes: the layout of `params`, a tree of PartitionSpec.
    """
    mesh = partitioner.mesh
    data_axes = partitioner.data_axes
    groups = partitioner.data_mesh_size
    split_models = mesh.size > groups
    # If no model is split, nothing is left for XLA to partition. XLA has no rule to partition
    # cuDNN's attention inside such a function.
    rules: list[tuple[str, Any]] = []
    if split_models:
        rules = [
            (name, None if set(list_axis_names(axis)) & set(data_axes) else axis)
            for name, axis in partitioner.logical_axis_rules
        ]
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if on_cpu and dtype == "bfloat16":
        fallback_notice.warn_once(
            "gradients",
            "rounded to bfloat16 and added up in float32: XLA cannot add bfloat16 between CPUs",
        )

    def add_over_groups(leaf: Any, spread: PartitionSpec) -> Any:
        leaf = leaf.astype(dtype)
        leaf = leaf.astype(jnp.float32) if on_cpu else leaf
        scattered: tuple[str, ...] = ()
        for dimension, part in enumerate(spread):
            if part:
                scattered = list_axis_names(part)
                leaf = lax.psum_scatter(leaf, scattered, scatter_dimension=dimension, tiled=True)
        other_axes = tuple(axis for axis in data_axes if axis not in scattered)
        if other_axes:
            leaf = lax.psum(leaf, other_axes)
        return leaf.astype(jnp.float32)

    def reduced(params: Any, frozen: Any, state: Any, batch: Any, rng: Any) -> Any:
        replicated, split = PartitionSpec(), PartitionSpec(data_axes)
        # A scatter over an axis that is left to XLA would gather first. With tensor parallelism,
        # each device takes its part of the whole sum instead.
        if split_models:
            spread = jax.tree.map(lambda _: replicated, params)
        else:
            spread = partitioner.make_gradient_layout(axes, params)

        def local(params: Any, frozen: Any, state: Any, batch: Any, rng: Any) -> Any:
            # The parameters are whole here: JAX gathers sharded ones before the function.
            with flax_partitioning.axis_rules(rules), sharded_parameters.use_layouts(None):
                group_rng = jax.random.fold_in(rng, lax.axis_index(data_axes))
                group_gradients, metrics, statistics = gradients(
                    params, frozen, state, batch, group_rng
                )
            maxima = jax.tree.map(lambda leaf: lax.pmax(leaf, data_axes), statistics)
            return (
                jax.tree.map(add_over_groups, group_gradients, spread),
                jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], metrics),
                maxima,
            )

        # With check_vma, JAX itself would add up the gradients of the parameters that all groups
        # share, in the type that they have.
        summed, metrics, statistics = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(replicated, replicated, replicated, split, replicated),
            out_specs=(spread, split, replicated),
            axis_names=set(data_axes) if split_models else set(mesh.axis_names),
            check_vma=False,
        )(params, frozen, state, batch, rng)
        first = jax.tree.map(lambda leaf: leaf[0], metrics)
        metrics = lax.fori_loop(
            1,
            groups,
            lambda index, sums: merge_metrics(
                sums, jax.tree.map(lambda leaf: leaf[index], metrics)
            ),
            first,
        )
        return summed, metrics, statistics

    return reduced
