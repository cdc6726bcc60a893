"""The class and the fields of the network that a run trains, as its gin files set them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.not_known import NOT_KNOWN
from rosetta.t5x.run.gin_text import Reference

if TYPE_CHECKING:
    from rosetta.t5x.run.gin_reader import Configuration

T5_CONFIG = "rosetta.t5x.network.T5Config"
DECODER_ONLY = "rosetta.t5x.network.DecoderOnly"
ENCODER_ONLY = "rosetta.t5x.network.EncoderOnly"
_NETWORKS = ("rosetta.t5x.network.Transformer", DECODER_ONLY, ENCODER_ONLY)
_MODELS = (
    "rosetta.t5x.model.EncoderDecoderModel",
    "rosetta.t5x.model.DecoderOnlyModel",
    "rosetta.t5x.encoder_model.EncoderModel",
)


def find_model(configuration: Configuration) -> str | None:
    """Return the full name of the class of the run's model.

    It is None if the model is not one of rosetta's, or if the gin files leave it open.
    """
    train_model = "__main__.train.model"
    model = configuration.value(train_model if configuration.binds(train_model) else "MODEL")
    if not isinstance(model, Reference) or model not in map(Reference, _MODELS):
        return None
    return model.name


def find_network(configuration: Configuration) -> str | None:
    """Return the full name of the class of the run's network; None as find_model does."""
    model = find_model(configuration)
    network = configuration.value(f"{model}.module")
    if not isinstance(network, Reference) or network not in map(Reference, _NETWORKS):
        return None
    if configuration.value(f"{network.name}.config") != Reference(T5_CONFIG):
        return None
    return network.name


def read_field(configuration: Configuration, field: str) -> object:
    """Return the value of a field of T5Config; NOT_KNOWN if the gin files leave it open."""
    if find_network(configuration) is None:
        return NOT_KNOWN
    return configuration.value(f"{T5_CONFIG}.{field}")


def read_count(configuration: Configuration, field: str) -> int | None:
    """Return the value of a field if it is a whole number; None for anything else."""
    value = read_field(configuration, field)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
