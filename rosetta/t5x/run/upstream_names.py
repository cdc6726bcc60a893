"""Upstream's names in gin files that stand for ours; rosetta.t5x.names carries the values over."""

from __future__ import annotations

_NETWORKS = (
    "t5x.contrib.gpu.t5.network",
    "t5x.examples.t5.network",
    "t5x.examples.scalable_t5.network",
)
REPLACEMENTS = {
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


def translate(selector: str, parameter: str) -> str | None:
    """Return our name of a parameter, CONFIGURABLE.PARAMETER, or None if the parameter has no other
    name.

    Args:
      selector: a configurable with its module, or a method of one.
      parameter: of the configurable.
    """
    for theirs, ours in REPLACEMENTS.items():
        if selector == theirs or selector.startswith(f"{theirs}."):
            is_renamed = theirs.endswith("TransformerConfig")
            name = _OTHER_FIELD.get(parameter, parameter) if is_renamed else parameter
            return f"{ours}{selector[len(theirs) :]}.{name}"
    return None
