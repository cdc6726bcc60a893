"""Gin settings typed for upstream's classes act on ours, where a run is ours: nobody's own gin file
falls silent.

Importing this module from a gin file is enough. The settings are carried over once all files and
bindings are read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import gin

if TYPE_CHECKING:
    from collections.abc import Mapping

_NETWORKS = (
    "t5x.contrib.gpu.t5.network",
    "t5x.examples.t5.network",
    "t5x.examples.scalable_t5.network",
)
OURS = {
    "t5x.partitioning.PjitPartitioner": "rosetta.t5x.partitioning.PjitPartitioner",
    "t5x.partitioning.standard_logical_axis_rules": (
        "rosetta.t5x.partitioning.standard_logical_axis_rules"
    ),
    "t5x.trainer.Trainer": "rosetta.t5x.trainer.Trainer",
    "t5x.models.EncoderDecoderModel": "rosetta.t5x.model.EncoderDecoderModel",
    "t5x.models.DecoderOnlyModel": "rosetta.t5x.model.DecoderOnlyModel",
    "t5x.examples.decoder_only.network.TransformerConfig": "rosetta.t5x.network.T5Config",
    **{f"{module}.T5Config": "rosetta.t5x.network.T5Config" for module in _NETWORKS},
}
_OTHER_FIELD = {"num_layers": "num_decoder_layers"}


def carried(config: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bindings of ours that bindings of upstream's classes stand for.

    Args:
      config: gin's own table, (scope, selector) -> {parameter: value}.

    Whoever binds upstream's name means to override the run's files, which bind ours only: the value
    wins.
    """
    found: dict[str, Any] = {}
    for (scope, selector), values in config.items():
        theirs = next(
            (name for name in OURS if selector == name or selector.startswith(f"{name}.")), None
        )
        if theirs is None:
            continue
        ours = OURS[theirs] + selector.removeprefix(theirs)
        for parameter, value in values.items():
            name = (
                _OTHER_FIELD.get(parameter, parameter)
                if theirs.endswith("TransformerConfig")
                else parameter
            )
            found[f"{scope}/{ours}.{name}" if scope else f"{ours}.{name}"] = value
    return found


@gin.config.register_finalize_hook
def _carry_over(config: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    bindings = carried(config)
    if bindings and not any(selector.startswith("rosetta.t5x.") for _, selector in config):
        return {}  # a run of upstream's alone
    for name in bindings:
        print(
            f"rosetta: {name} takes the value that was set by upstream's name for it",
            file=sys.stderr,
            flush=True,
        )
    return bindings
