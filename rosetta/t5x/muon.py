"""Muon for the kernels of a network, and AdamW for all its other parameters.

Muon (Jordan et al., 2024) moves a matrix by its momentum with all singular values set to about 1.
optax computes it. This module says which parameters are matrices, and which of their dimensions
are rows and columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import optax
from t5x import optimizers

from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.t5x import gradient_norm, optimizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Dimensions that number matrices of equal shape: the layers of a scanned stack, and kernels that
# one parameter holds side by side.
_BATCH_AXES = ("layers", "stack")
_INNER_AXIS = "embed"  # the features that layers exchange
_VOCABULARY_AXIS = "vocab"
# The root mean square of AdamW's updates. Liu et al. (2025, section 2.2) give those of Muon the
# same, so that the rate and the weight decay of AdamW suit both.
_UPDATE_RMS = 0.2


class MuonOptimizer(optimizer.ScheduledOptimizer):
    """Muon for kernels and AdamW for other parameters, with the trainer's learning rate.

    T5X tells it the names of the parameters' dimensions before it makes the state.

    Args:
      clip_norm: the largest global norm of the gradients; None clips nothing.
      **settings: of optax.contrib.muon.
    """

    def __init__(self, clip_norm: float | None, **settings: Any) -> None:
        self._dimension_numbers: dict[tuple[str, ...], Any] | None = None
        clipping = (
            optax.identity() if clip_norm is None else gradient_norm.clip_by_global_norm(clip_norm)
        )
        super().__init__(
            optax.chain(
                clipping,
                optax.contrib.muon(
                    1.0,
                    muon_weight_dimension_numbers=self._find_dimension_numbers,
                    consistent_rms=_UPDATE_RMS,
                    **settings,
                ),
            )
        )

    def set_param_axes(self, param_logical_axes: Any) -> None:
        """Set the names of the parameters' dimensions, a tree of PartitionSpec. T5X calls it."""
        self._dimension_numbers = {
            _read_path(path): choose_dimension_numbers(_read_path(path)[-1], axes)
            for path, axes in jax.tree_util.tree_leaves_with_path(
                param_logical_axes, is_leaf=lambda node: isinstance(node, tuple)
            )
        }

    def _find_dimension_numbers(self, params: Any) -> Any:
        """Return a tree of optax's dimension numbers for a tree of parameters."""
        if self._dimension_numbers is None:
            raise ValueError("Muon needs the names of the dimensions: call set_param_axes first")
        numbers = self._dimension_numbers
        return jax.tree_util.tree_map_with_path(lambda path, _: numbers[_read_path(path)], params)


def _read_path(path: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of a path of JAX."""
    return tuple(str(getattr(key, "key", key)) for key in path)


def choose_dimension_numbers(name: str, axes: Sequence[str | None]) -> Any:
    """Return which dimensions of a parameter are the rows and columns of a matrix.

    The features that layers exchange are one side, and all other dimensions the other side: heads
    and head size together are the outputs of a query kernel. Layers of a scanned stack are matrices
    of their own.

    Args:
      name: the parameter's name, for example "kernel".
      axes: the logical names of its dimensions.

    Returns:
      optax's MuonDimensionNumbers. None if AdamW trains the parameter: embeddings, the kernel of
      the logits, norms, biases, and kernels of which rows and columns cannot be told apart.
    """
    if name != "kernel" or _VOCABULARY_AXIS in axes:
        return None
    matrix = [index for index, axis in enumerate(axes) if axis not in _BATCH_AXES]
    if len(matrix) < 2:
        return None
    if len(matrix) == 2 or axes[matrix[0]] == _INNER_AXIS:
        inputs, outputs = matrix[:1], matrix[1:]
    elif axes[matrix[-1]] == _INNER_AXIS:
        inputs, outputs = matrix[:-1], matrix[-1:]
    else:
        return None
    return optax.contrib.MuonDimensionNumbers(tuple(inputs), tuple(outputs))


def _derive_state_axes(state: Any, params_axes: Any) -> Any:
    """Return the layout of the state of Muon: that of the parameters for the momentum."""
    derive = optimizers.OptaxStatePartitionRules.derive_params_axes
    return optax.contrib.MuonState(count=None, mu=derive(state.mu, params_axes), ns_coeffs=None)


def muon(
    *,
    beta: float = 0.95,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    **others: Any,
) -> MuonOptimizer:
    """Return Muon for kernels, and AdamW for other parameters.

    Both have Nesterov momentum. The updates of Muon are scaled to the size of those of AdamW, by
    0.2 times the root of the larger side of the matrix, so that a learning rate of AdamW suits
    both.

    Args:
      beta: decay of Muon's momentum.
      b1: decay of the first moment of AdamW.
      b2: decay of the second moment of AdamW.
      eps: the value that is added to divisors.
      weight_decay: each step subtracts it times the learning rate and the parameter, for all
        parameters.
      clip_norm: the largest global norm of the gradients; None clips nothing.
      **others: further settings of optax.contrib.muon, for example ns_steps.

    Raises:
      UserError: the installed optax has no Muon for arrays of more than two dimensions.
    """
    if not hasattr(optax.contrib, "MuonDimensionNumbers"):
        raise UserError(
            f"optax {optax.__version__} has no Muon for kernels of more than two dimensions",
            "OPTIMIZER=muon",
            "install optax 0.2.6 or newer, or choose OPTIMIZER=adamw",
            kind=UNSUPPORTED,
            value=optax.__version__,
        )
    rules: Mapping[Any, Any] = optimizers.OptaxStatePartitionRules._RULES  # noqa: SLF001 (T5X's table, to which new optimizers are to be added)
    rules.setdefault(optax.contrib.MuonState, _derive_state_axes)  # type: ignore[attr-defined]
    return MuonOptimizer(
        clip_norm,
        beta=beta,
        adam_b1=b1,
        adam_b2=b2,
        eps=eps,
        weight_decay=weight_decay,
        adam_weight_decay=weight_decay,
        **others,
    )
