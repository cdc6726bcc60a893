"""An optimizer of a part of the parameters: the others are frozen.

A frozen parameter gets no gradient, has no state in the optimizer, and never changes. With low-rank
adapters (see rosetta.nn.lora), everything but the adapters is frozen.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import flax
from flax.serialization import from_state_dict, to_state_dict
from flax.traverse_util import flatten_dict, unflatten_dict
from t5x import optimizers

from rosetta.core.errors import CONFLICT, UNKNOWN, UserError
from rosetta.nn import lora
from rosetta.t5x.run.partial_training import check_patterns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SETTING = "FREEZE"


def restrict_optimizer(optimizer: Any, patterns: str | None, *, adapters_only: bool) -> Any:
    """Return an optimizer of the parameters that are not frozen.

    Args:
      optimizer: the OptimizerDef for all parameters; None for none.
      patterns: the regular expressions of frozen parameters, separated by commas, see find_frozen;
        None for none.
      adapters_only: whether all parameters but those of low-rank adapters are frozen.

    Returns:
      `optimizer` itself if nothing is frozen.

    Raises:
      UserError: a pattern is not a regular expression.
    """
    expressions = check_patterns(patterns or "")
    if optimizer is None or not (expressions or adapters_only):
        return optimizer
    return PartialOptimizer(optimizer, tuple(expressions), adapters_only=adapters_only)


def find_frozen(
    names: Iterable[str], patterns: Sequence[str], *, adapters_only: bool = False
) -> set[str]:
    """Return the names of the frozen parameters.

    A pattern freezes a parameter if it matches the whole name of the parameter or of a part of the
    model that has it. `encoder` freezes all parameters of the encoder, and none of the decoder's
    attention to the encoder.

    Args:
      names: the names of all parameters, for example encoder/layers_0/mlp/wo/kernel.
      patterns: regular expressions.
      adapters_only: whether all parameters but those of low-rank adapters are frozen.

    Raises:
      UserError: a pattern matches nothing, or all parameters are frozen.
    """
    names = list(names)
    owners = {name: _list_owners(name) for name in names}
    frozen = {name for name in names if adapters_only and not lora.is_adapter(name)}
    for pattern in patterns:
        matched = {
            name for name in names if any(re.fullmatch(pattern, owner) for owner in owners[name])
        }
        if not matched:
            raise _make_unknown_error(pattern, owners)
        frozen |= matched
    if len(frozen) == len(names):
        raise UserError(
            "every parameter is frozen, and nothing is left to train",
            f"{SETTING}={','.join(patterns)}",
            "name fewer parts of the model",
            kind=CONFLICT,
        )
    return frozen


def _list_owners(name: str) -> list[str]:
    """Return the name of a parameter, and of each part of the model that has it."""
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _make_unknown_error(pattern: str, owners: dict[str, list[str]]) -> UserError:
    """Return the error for a pattern that matches nothing; it has the nearest names."""
    known = dict.fromkeys(owner for names in owners.values() for owner in names)
    # The last part of a name is what people remember: relpos_bias for encoder/relpos_bias.
    near = difflib.get_close_matches(pattern, known, 3, 0.6) or [
        owner
        for owner in known
        if difflib.get_close_matches(pattern, [owner.rpartition("/")[2]], 1, 0.8)
    ]
    if not near:
        near = [owner for owner in known if "/" not in owner]
    return UserError(
        "matches no parameter of the model",
        f"{SETTING}={pattern}",
        f"the nearest names: {', '.join(near[:3])}",
        kind=UNKNOWN,
        value=pattern,
    )


class PartialOptimizer(optimizers.OptimizerDef):
    """An OptimizerDef that gives another one only the parameters that are trained.

    Its state is that of the other optimizer, without the entries of frozen parameters.

    Args:
      optimizer: the other optimizer.
      patterns: see find_frozen.
      adapters_only: see find_frozen.
    """

    def __init__(self, optimizer: Any, patterns: tuple[str, ...], *, adapters_only: bool) -> None:
        super().__init__(optimizer.hyper_params)
        self._optimizer = optimizer
        self._patterns = patterns
        self._adapters_only = adapters_only

    def __getattr__(self, name: str) -> Any:
        # T5X asks with hasattr whether an optimizer wants to know the axes of the parameters.
        if name == "set_param_axes" and hasattr(self._optimizer, name):
            return self._set_param_axes
        raise AttributeError(name)

    def split(self, params: Any) -> tuple[Any, Any]:
        """Return the parameters that are trained, and the frozen ones.

        Args:
          params: a tree of parameters, or of anything that belongs to them.
        """
        flat = flatten_dict(flax.core.unfreeze(params), sep="/")
        frozen = find_frozen(flat, self._patterns, adapters_only=self._adapters_only)
        trained = {name: leaf for name, leaf in flat.items() if name not in frozen}
        rest = {name: leaf for name, leaf in flat.items() if name in frozen}
        return _nest_like(params, trained), _nest_like(params, rest)

    def init_state(self, params: Any) -> Any:
        """Return the state before the first step."""
        return self._optimizer.init_state(self.split(params)[0])

    def update_hyper_params(self, **overrides: Any) -> Any:
        """Return the hyper-parameters of the other optimizer with changes."""
        return self._optimizer.update_hyper_params(**overrides)

    def apply_gradient(
        self, hyper_params: Any, params: Any, state: Any, grads: Any
    ) -> tuple[Any, Any]:
        """Return the new parameters and the new state.

        Args:
          hyper_params: of the other optimizer.
          params: all parameters.
          state: the optimizer's state.
          grads: the gradients of the parameters that are trained.
        """
        trained, frozen = self.split(params)
        trained, state = self._optimizer.apply_gradient(hyper_params, trained, state, grads)
        return merge_params(trained, frozen), state

    def derive_logical_axes(self, optimizer: Any, param_logical_axes: Any) -> Any:
        """Return the optimizer with the names of the axes in place of all arrays."""
        axes = self._optimizer.derive_logical_axes(
            optimizers.Optimizer(self._optimizer, optimizer.state, self.split(optimizer.target)[0]),
            self.split(param_logical_axes)[0],
        )
        return optimizer.replace(state=axes.state, target=param_logical_axes)

    def state_dict(self, target: Any, state: Any) -> Any:
        """Return all parameters and the optimizer's state as a nested dict."""
        part = self._optimizer.state_dict(self.split(target)[0], state)
        return to_state_dict({"target": to_state_dict(target), "state": part["state"]})

    def restore_state(self, opt_target: Any, opt_state: Any, state_dict: Any) -> tuple[Any, Any]:
        """Return all parameters and the optimizer's state from a nested dict."""
        trained = self.split(opt_target)[0]
        part = {"target": self.split(state_dict["target"])[0], "state": state_dict["state"]}
        _, state = self._optimizer.restore_state(trained, opt_state, part)
        return from_state_dict(opt_target, state_dict["target"]), state

    def _set_param_axes(self, axes: Any) -> None:
        """Give the other optimizer the axes of the parameters that are trained."""
        hyper_params = self._optimizer.hyper_params
        rules = getattr(hyper_params, "logical_factor_rules", None)  # of Adafactor
        if rules is not None and lora.RANK_AXIS not in rules:
            self._optimizer.hyper_params = hyper_params.replace(
                logical_factor_rules={**rules, lora.RANK_AXIS: "none"}
            )
        self._optimizer.set_param_axes(self.split(axes)[0])


def merge_params(trained: Any, frozen: Any) -> Any:
    """Return one tree of two, which PartialOptimizer.split has made."""
    flat = {
        **flatten_dict(flax.core.unfreeze(trained), sep="/"),
        **flatten_dict(flax.core.unfreeze(frozen), sep="/"),
    }
    return _nest_like(trained, flat)


def _nest_like(tree: Any, flat: dict[str, Any]) -> Any:
    """Return a nested dict of leaves by their paths, as a FrozenDict if `tree` is one."""
    nested = unflatten_dict(flat, sep="/")
    return flax.core.freeze(nested) if isinstance(tree, flax.core.FrozenDict) else nested


def split_params(optimizer: Any, params: Any) -> tuple[Any, Any]:
    """Return the parameters that an optimizer trains, and the frozen ones; {} if none is frozen.

    Args:
      optimizer: any OptimizerDef.
      params: a tree of parameters, or of anything that belongs to them.
    """
    if isinstance(optimizer, PartialOptimizer):
        return optimizer.split(params)
    return params, {}
