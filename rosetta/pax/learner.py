"""paxml's learner with FP8 state that is no parameter, and gradients of several microbatches in one
step.

FP8 state lives among praxis' variables, marked OVERWRITE_WITH_GRADIENT. What backpropagation
returns for it is what was seen (rosetta.nn.fp8).
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
    """Upstream's Learner for models in FP8: their state gets its next value once a step, and enters
    no norm. Refuses cards without FP8.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        fp8.require_fp8(jax.devices())

    def update_states(
        self, grads: Any, states: Any, old_vars: Any, var_weight_hparams: Any
    ) -> tuple[Any, Any]:
        """As upstream's; FP8 state gets its next value where upstream's would get its gradient."""
        transformed, following = super().update_states(grads, states, old_vars, var_weight_hparams)
        marked = [
            path
            for path, hparams in flatten_dict(var_weight_hparams).items()
            if _is_fp8_state(hparams)
        ]
        before, seen = (
            {path: flatten_dict(tree)[path] for path in marked} for tree in (old_vars, grads)
        )
        after = flatten_dict(
            fp8.advance_states(
                unflatten_dict(before), unflatten_dict(seen), _read_step_count(states)
            )
        )

        def next_of(path: Any, leaf: Any) -> Any:
            return after.get(
                tuple(getattr(key, "key", getattr(key, "name", None)) for key in path), leaf
            )

        return jax.tree_util.tree_map_with_path(next_of, transformed), following

    def apply_gradient(self, old_vars: Any, transformed_grads: Any, var_weight_hparams: Any) -> Any:
        """As upstream's, whose norms of the variables are here those of the parameters."""
        masked = [
            _mask_fp8_state(tree, var_weight_hparams)
            for tree in (old_vars, transformed_grads, var_weight_hparams)
        ]
        parameters = super().apply_gradient(*masked)
        for name, norm in summary_utils.l2_mean(parameters, prefix="vars", max_level=20).items():
            base_layer.add_global_summary(name, norm)
        return jax.tree.map(
            lambda hparams, new, state: state if _is_fp8_state(hparams) else new,
            var_weight_hparams,
            parameters,
            transformed_grads,
        )


def _is_fp8_state(hparams: Any) -> bool:
    return isinstance(hparams, base_layer.WeightHParams) and base_layer.var_overwrite_with_gradient(
        hparams
    )


def _mask_fp8_state(tree: Any, hparams: Any) -> Any:
    return jax.tree.map(
        lambda each, leaf: py_utils.BpropMaskedNode() if _is_fp8_state(each) else leaf,
        hparams,
        tree,
    )


def _read_step_count(states: Any) -> Any:
    """Return how many steps an optimizer has made, int32 [], by its own count."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(states):
        if getattr(path[-1], "key", getattr(path[-1], "name", "")) == "count":
            return jnp.max(leaf)
    raise UserError(
        "its state has no count of steps",
        "the optimizer",
        "choose one that has (Adam, Adafactor), or leave FP8 off",
        kind=UNSUPPORTED,
    )


class Microbatches(sgf.BaseStochasticGradient):
    """The gradient over a batch from that of parts of it, one after another, as if it were computed
    at once.

    All parts read the same FP8 scales, and of what they saw the largest counts. Row r of a batch is
    in part r modulo the number of parts, so that each device keeps its rows.

    Attributes:
      count: how many parts.
      loss_name: the loss among the model's metrics, each a mean and its weight.
      by_weight: the batch's loss is the mean of the parts' by this weight (by tokens); else each
        part counts the same.
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
        """Return ((loss, what goes with it), gradients) as upstream's StandardGradient does."""
        fixed, inputs = mdl_vars_nograd_and_inputs
        rows = {leaf.shape[0] for leaf in jax.tree.leaves(inputs)}
        if len(rows) != 1 or next(iter(rows)) % self.count:
            raise UserError(
                (
                    f"a batch of {' or '.join(map(str, sorted(rows)))} rows does not divide into "
                    f"{self.count} microbatches"
                ),
                "NUM_MICROBATCHES",
                "give a divisor of the batch",
                kind=INVALID,
                value=self.count,
            )
        parts = jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf.reshape(-1, self.count, *leaf.shape[1:]), 1, 0), inputs
        )
        keys = jax.random.split(prng_key, self.count)

        def weight(part: Any, key: Any) -> Any:
            return self._weight(loss_fn(mdl_vars_grad, (fixed, part), key)[1])

        # Of this forward pass XLA keeps what the weight takes: the sum of the batch's own weights.
        whole = jnp.sum(jax.lax.map(lambda each: weight(*each), (parts, keys)))

        def share(variables: Any, rest: Any, key: Any) -> Any:
            loss, aux = loss_fn(variables, rest, key)
            portion = jax.lax.stop_gradient(self._weight(aux) / jnp.maximum(whole, 1e-8))
            return loss * portion, (portion, aux)

        def body(total: Any, each: tuple[Any, Any]) -> tuple[Any, Any]:
            part, key = each
            (loss, (portion, aux)), found = jax.value_and_grad(share, has_aux=True)(
                mdl_vars_grad, (fixed, part), key
            )
            return jax.tree_util.tree_map_with_path(_add_gradients, total, found), (
                loss,
                portion,
                aux,
            )

        zeros = jax.tree.map(jnp.zeros_like, mdl_vars_grad)
        gradients, (losses, portions, auxes) = jax.lax.scan(body, zeros, (parts, keys))
        mean_loss, scalars, variables, summaries, per_example, metrics = auxes.aux_info
        if metrics:
            raise UserError(
                "a model with clu's metrics has none for a whole batch",
                "NUM_MICROBATCHES",
                "set it to 1",
                kind=UNSUPPORTED,
            )
        whole_info = (
            jnp.sum(mean_loss * portions),
            jax.tree.map(_average_metric, scalars, is_leaf=lambda each: isinstance(each, tuple)),
            jax.tree.map(lambda leaf: leaf[-1], variables),
            jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), summaries),
            jax.tree.map(
                lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), per_example
            ),
            metrics,
        )
        aux = sgf.GradAuxInfo(
            aux_info=whole_info, loss_weight=jax.tree.map(lambda leaf: leaf[-1], auxes.loss_weight)
        )
        return (jnp.sum(losses), self.process_aux_info(aux)), gradients

    def _weight(self, aux: Any) -> Any:
        return (
            aux.aux_info[1][self.loss_name][1].astype(jnp.float32)
            if self.by_weight
            else jnp.float32(1)
        )


def _add_gradients(path: Any, total: Any, found: Any) -> Any:
    """Add gradients up; of what FP8 saw keep the larger, by the name of the variable."""
    name = getattr(path[-1], "key", getattr(path[-1], "name", ""))
    return fp8.combine_microbatches(total, found) if name in einsum.STATE_NAMES else total + found


def _average_metric(metric: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the mean of the parts' means by their weights, and the sum of the weights."""
    value, weight = metric
    total = jnp.sum(weight, axis=0)
    return (jnp.sum(value * weight, axis=0) / jnp.maximum(total, 1e-8)).astype(value.dtype), total
