"""Paxml's learner with FP8 state, and gradients of several microbatches in one step.

rosetta.pax.switches sets both. FP8 state is among the variables of Praxis, in the collection
OVERWRITE_WITH_GRADIENT, but is not a parameter. What backpropagation returns for the state is not
a gradient: it is the magnitudes that the products saw (rosetta.nn.fp8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from paxml import learners, sgf, summary_utils
from praxis import base_layer, py_utils

from rosetta.core.errors import INVALID, UNSUPPORTED, UserError
from rosetta.nn import fp8
from rosetta.pax import einsum

if TYPE_CHECKING:
    from collections.abc import Callable


class Learner(learners.Learner):
    """Paxml's Learner for models in FP8.

    FP8 state gets its next value once a step, and enters no norm.
    """

    def __post_init__(self) -> None:
        """Check that the GPUs have FP8.

        Raises:
          UserError: A GPU does not have FP8.
        """
        super().__post_init__()
        fp8.require_fp8(jax.devices())

    def update_states(
        self, grads: Any, states: Any, old_vars: Any, var_weight_hparams: Any
    ) -> tuple[Any, Any]:
        """Return the updates of the variables, and the next states of the optimizer.

        The arguments are those of Paxml's method. For FP8 state the update is its next value.
        """
        updates, next_states = super().update_states(grads, states, old_vars, var_weight_hparams)
        paths = [
            path
            for path, hparams in flatten_dict(var_weight_hparams).items()
            if _is_fp8_state(hparams)
        ]
        flat_vars, flat_grads = flatten_dict(old_vars), flatten_dict(grads)
        previous = unflatten_dict({path: flat_vars[path] for path in paths})
        seen = unflatten_dict({path: flat_grads[path] for path in paths})
        following = flatten_dict(fp8.advance_states(previous, seen, _read_step_count(states)))

        def choose_update(path: Any, update: Any) -> Any:
            return following.get(tuple(_key_name(key) for key in path), update)

        return jax.tree_util.tree_map_with_path(choose_update, updates), next_states

    def apply_gradient(self, old_vars: Any, transformed_grads: Any, var_weight_hparams: Any) -> Any:
        """Return the next values of the variables.

        The arguments are those of Paxml's method. The norms that it writes as summaries are here
        those of the parameters alone.
        """
        trees = (old_vars, transformed_grads, var_weight_hparams)
        masked = [_mask_fp8_state(tree, var_weight_hparams) for tree in trees]
        parameters = super().apply_gradient(*masked)
        for name, norm in summary_utils.l2_mean(parameters, prefix="vars", max_level=20).items():
            base_layer.add_global_summary(name, norm)
        return jax.tree.map(
            lambda hparams, parameter, state: state if _is_fp8_state(hparams) else parameter,
            var_weight_hparams,
            parameters,
            transformed_grads,
        )


def _key_name(key: Any) -> Any:
    """Return the name of a part of a path of a tree, of a dictionary or of an attribute."""
    return getattr(key, "key", getattr(key, "name", None))


def _is_fp8_state(hparams: Any) -> bool:
    """Return whether a variable is FP8 state, by its WeightHParams."""
    return isinstance(hparams, base_layer.WeightHParams) and base_layer.var_overwrite_with_gradient(
        hparams
    )


def _mask_fp8_state(tree: Any, hparams: Any) -> Any:
    """Return a tree of variables with a masked node in the place of FP8 state."""
    return jax.tree.map(
        lambda variable_hparams, leaf: (
            py_utils.BpropMaskedNode() if _is_fp8_state(variable_hparams) else leaf
        ),
        hparams,
        tree,
    )


def _read_step_count(states: Any) -> Any:
    """Return the number of steps by the optimizer's own count, int32 []."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(states):
        if _key_name(path[-1]) == "count":
            return jnp.max(leaf)
    raise UserError(
        "the state of the optimizer has no count of steps, which FP8 needs",
        "the optimizer",
        "choose one that has (Adam, Adafactor), or leave FP8 off",
        kind=UNSUPPORTED,
    )


class Microbatches(sgf.BaseStochasticGradient):
    """The gradient of a batch from its parts, which are computed one after another.

    The result is that of the whole batch. All parts read the same FP8 scales, and the largest of
    the magnitudes that they saw counts. Row r of a batch is in part r modulo the number of parts,
    so each device keeps its rows.

    Attributes:
      count: The number of parts.
      loss_name: The name of the loss among the metrics of the model. A metric is a mean and its
        weight.
      by_weight: Whether the loss of the batch is the mean of the parts weighted by the weight of
        the loss, its tokens. If not, each part counts the same.
    """

    count: int = 1
    loss_name: str = "total_loss"
    by_weight: bool = True

    def grad_fn(
        self,
        loss_fn: Callable[..., Any],
        mdl_vars_grad: Any,
        mdl_vars_nograd_and_inputs: tuple[Any, Any],
        prng_key: Any,
    ) -> tuple[tuple[Any, Any], Any]:
        """Return ((loss, auxiliary values), gradients), as Paxml's StandardGradient does.

        Args:
          loss_fn: The loss and its auxiliary values, from (variables, (other variables, inputs),
            key).
          mdl_vars_grad: The variables that get gradients.
          mdl_vars_nograd_and_inputs: The other variables, and the inputs of the batch.
          prng_key: The key of the step.

        Raises:
          UserError: The batch does not divide into the parts, or the model has metrics of clu.
        """
        fixed_vars, inputs = mdl_vars_nograd_and_inputs
        parts = self._split_batch(inputs)
        keys = jax.random.split(prng_key, self.count)

        def compute_weight(part_and_key: tuple[Any, Any]) -> Any:
            part, key = part_and_key
            return self._read_weight(loss_fn(mdl_vars_grad, (fixed_vars, part), key)[1])

        # XLA only keeps what the weight needs of this forward pass: the sum of the weights of the
        # batch.
        total_weight = jnp.sum(jax.lax.map(compute_weight, (parts, keys)))

        def compute_share(variables: Any, others: Any, key: Any) -> Any:
            """Return the part's share of the loss of the batch, and (its weight, aux)."""
            loss, aux = loss_fn(variables, others, key)
            share = self._read_weight(aux) / jnp.maximum(total_weight, 1e-8)
            share = jax.lax.stop_gradient(share)
            return loss * share, (share, aux)

        def add_part(total: Any, part_and_key: tuple[Any, Any]) -> tuple[Any, Any]:
            part, key = part_and_key
            (loss, (share, aux)), gradients = jax.value_and_grad(compute_share, has_aux=True)(
                mdl_vars_grad, (fixed_vars, part), key
            )
            total = jax.tree_util.tree_map_with_path(_add_gradients, total, gradients)
            return total, (loss, share, aux)

        zeros = jax.tree.map(jnp.zeros_like, mdl_vars_grad)
        gradients, (losses, shares, auxes) = jax.lax.scan(add_part, zeros, (parts, keys))
        aux = sgf.GradAuxInfo(
            aux_info=_merge_aux_info(auxes.aux_info, shares),
            loss_weight=jax.tree.map(lambda leaf: leaf[-1], auxes.loss_weight),
        )
        return (jnp.sum(losses), self.process_aux_info(aux)), gradients

    def _split_batch(self, inputs: Any) -> Any:
        """Return the inputs [rows, ...] as [parts, rows of a part, ...].

        Raises:
          UserError: The rows do not divide into the parts.
        """
        row_counts = sorted({leaf.shape[0] for leaf in jax.tree.leaves(inputs)})
        if len(row_counts) != 1 or row_counts[0] % self.count:
            raise UserError(
                f"a batch of {' or '.join(map(str, row_counts))} rows does not divide into "
                f"{self.count} microbatches",
                "NUM_MICROBATCHES",
                "give a divisor of the batch",
                kind=INVALID,
                value=self.count,
            )
        return jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf.reshape(-1, self.count, *leaf.shape[1:]), 1, 0), inputs
        )

    def _read_weight(self, aux: Any) -> Any:
        """Return the weight of a part's loss, float32 []."""
        if not self.by_weight:
            return jnp.float32(1)
        metrics = aux.aux_info[1]
        return metrics[self.loss_name][1].astype(jnp.float32)


def _merge_aux_info(aux_info: Any, shares: Any) -> tuple[Any, ...]:
    """Return the auxiliary values of a batch from those of its parts, stacked along axis 0.

    Args:
      aux_info: What Paxml's loss function returns beside the loss: the mean loss, metrics,
        updated variables, summaries, values for each example, and metrics of clu.
      shares: The share of each part in the loss, [parts].

    Raises:
      UserError: There are metrics of clu, which cannot be merged.
    """
    mean_loss, metrics, variables, summaries, per_example, clu_metrics = aux_info
    if clu_metrics:
        raise UserError(
            "metrics of clu cannot be merged for a whole batch",
            "NUM_MICROBATCHES",
            "set NUM_MICROBATCHES to 1",
            kind=UNSUPPORTED,
        )
    return (
        jnp.sum(mean_loss * shares),
        jax.tree.map(_average_metric, metrics, is_leaf=lambda node: isinstance(node, tuple)),
        jax.tree.map(lambda leaf: leaf[-1], variables),
        jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), summaries),
        jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), per_example
        ),
        clu_metrics,
    )


def _add_gradients(path: Any, total: Any, gradient: Any) -> Any:
    """Add a part's gradient to the total; of the magnitudes that FP8 saw, keep the larger."""
    if _key_name(path[-1]) in einsum.STATE_NAMES:
        return fp8.combine_microbatches(total, gradient)
    return total + gradient


def _average_metric(metric: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the mean of the parts' means by their weights, and the sum of the weights."""
    value, weight = metric
    total = jnp.sum(weight, axis=0)
    mean = jnp.sum(value * weight, axis=0) / jnp.maximum(total, 1e-8)
    return mean.astype(value.dtype), total
