"""The names of T5X's classes in gin files that stand for rosetta's classes.

rosetta.t5x.names translates the settings in a run, and gin_reader before a run.
"""

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
_RENAMED_FIELDS = {"num_layers": "num_decoder_layers"}


def translate(selector: str, parameter: str) -> str | None:
    """Return rosetta's name of a parameter, CONFIGURABLE.PARAMETER; None if there is none.

    Args:
      selector: a configurable of T5X with its module, or a method of one.
      parameter: the name of its parameter.
    """
    for upstream_class, rosetta_class in REPLACEMENTS.items():
        if selector == upstream_class or selector.startswith(f"{upstream_class}."):
            is_renamed = upstream_class.endswith("TransformerConfig")
            name = _RENAMED_FIELDS.get(parameter, parameter) if is_renamed else parameter
            return f"{rosetta_class}{selector.removeprefix(upstream_class)}.{name}"
    return None
