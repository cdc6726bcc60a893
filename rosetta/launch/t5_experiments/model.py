"""The model that the options of t5-experiments name, as a network of T5X in gin."""

from __future__ import annotations

import ast
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.convert import json_documents, t5_config
from rosetta.core.errors import MISSING, UNKNOWN, UNSUPPORTED, UserError
from rosetta.t5x.run import gin_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.convert.t5_config import Architecture

_DROPOUT = 0.1  # of the public T5 in Hugging Face's config.json
# --base_model -> family and size of the gin files, and the size whose preset fits.
_BASE_MODELS = {
    "t5-small": ("t5_1_0", "small", "small"),
    "t5-base": ("t5_1_0", "base", "base"),
    "t5-large": ("t5_1_0", "large", "large"),
    "t5-3b": ("t5_1_0", "3B", "xl"),
    "t5-11b": ("t5_1_0", "11B", "xxl"),
    **{
        f"google/t5-v1_1-{size}": ("t5_1_1", size, size)
        for size in ("small", "base", "large", "xl", "xxl")
    },
}
_MODEL_CLASSES = (
    "transformers:T5ForConditionalGeneration",
    "modeling_t5:T5ForConditionalGeneration",
)
# Fields of t5-experiments' own networks in its model_configs, and what they ask for.
_OWN_FIELDS = {
    "encoder_self_attention_layer": "an attention layer of its own",
    "decoder_self_attention_layer": "an attention layer of its own",
    "decoder_cross_attention_layer": "an attention layer of its own",
    "num_cdq_heads": "an attention layer of its own",
    "num_memory_tokens": "memory tokens",
    "sparse_config_cls": "sparse attention",
    "sparse_attention": "sparse attention",
}
_OTHER_CLASSES = "; or write the network in flax, and name it in gin"
_PLAIN_LAYER = "modeling_t5:T5Attention"
# Size -> the width of its model, which is the widest for which its preset is taken.
_WIDTHS = {"tiny": 64, "small": 512, "base": 768, "large": 1024, "xl": 2048}


@dataclass(frozen=True)
class Network:
    """A network in gin.

    Attributes:
        size: The value of T5_SIZE, whose preset sets flags of XLA.
        gin: The lines that describe the network.
        dropout_rate: The dropout in training.
        description: What to show for the option.
    """

    size: str
    gin: tuple[str, ...]
    dropout_rate: float
    description: str


def check_model_class(
    name: str, classes: Sequence[str] = _MODEL_CLASSES, *, remedy: str = _OTHER_CLASSES
) -> None:
    """Check that --model_cls names a network that is here.

    Args:
        name: The class.
        classes: The classes of transformers and of t5-experiments whose network is here.
        remedy: What else to do, for the error.

    Raises:
        UserError: The class is another one.
    """
    if name not in classes:
        raise UserError(
            f"{name!r} is a class of PyTorch, and T5X does not run it",
            "--model_cls",
            f"give one of: {', '.join(classes)}{remedy}",
            kind=UNSUPPORTED,
            value=name,
        )


def read_model_document(file: Path, where: str) -> dict[str, Any]:
    """Return the fields of a config.json.

    Raises:
        UserError: The file does not exist, or is not a JSON object.
    """
    if not file.is_file():
        raise UserError(
            "the file does not exist", f"{where} {file}", "check the path", kind=MISSING
        )
    return json_documents.read_document(file)


def choose_network(values: dict[str, Any]) -> Network:
    """Return the network that --model_cfg or --base_model names.

    Args:
        values: The values of all options.

    Raises:
        UserError: The model is not known, or T5X has no such network.
    """
    if values["model_cfg"]:
        return read_network(Path(os.path.expanduser(values["model_cfg"])), "--model_cfg")
    name = values["base_model"]
    if name not in _BASE_MODELS:
        raise UserError(
            f"{name!r} is not a known model",
            "--base_model",
            f"choose one of: {', '.join(_BASE_MODELS)}; or give its config.json: --model_cfg FILE",
            kind=UNKNOWN,
            value=name,
        )
    family, size, preset_size = _BASE_MODELS[name]
    file = gin_files.find_model_file(family, size, "--base_model")
    return Network(preset_size, (f"include '{file}'",), _DROPOUT, file)


def read_network(file: Path, where: str) -> Network:
    """Return the network that Hugging Face's config.json describes.

    Args:
        file: The file.
        where: The option, for errors.

    Raises:
        UserError: The file does not describe a T5 that T5X can train.
    """
    document = read_model_document(file, where)
    fields: dict[str, Any] = {}
    for name, value in document.items():
        if name in _OWN_FIELDS and value != _PLAIN_LAYER and value is not None:
            raise UserError(
                f"{name!r} is {value!r}: {_OWN_FIELDS[name]}, which the network here does not have",
                f"{where} {file}",
                "leave the field out of a copy of the file to train a plain T5",
                kind=UNSUPPORTED,
                value=name,
            )
        if name not in _OWN_FIELDS:
            fields[name] = value
    config = t5_config.parse_config(fields, str(file))
    architecture = config.architecture
    if config.ties_embedding and not architecture.logits_via_embedding:
        raise UserError(
            "the output layer is the embedding without a scale, which T5X's network does not have",
            f"{where} {file}",
            "set tie_word_embeddings to false in a copy of the file",
            kind=UNSUPPORTED,
            value="tie_word_embeddings",
        )
    return make_network(architecture)


def read_recorded_network(config: Mapping[str, str]) -> Network:
    """Return the network of a checkpoint.

    Args:
        config: The fields of T5Config as texts, as the record of the checkpoint has them.
    """
    values: dict[str, Any] = {}
    for item in dataclasses.fields(t5_config.Architecture):
        if item.name in config:
            text = config[item.name]
            values[item.name] = text if item.type == "str" else ast.literal_eval(text)
    return make_network(t5_config.Architecture(**values))


def make_network(architecture: Architecture) -> Network:
    """Return the network of an architecture."""
    values = dataclasses.asdict(architecture)
    dropout_rate = values.pop("dropout_rate")
    layers = f"{architecture.num_encoder_layers} + {architecture.num_decoder_layers}"
    return describe_network(values, (*_WIDTHS, "xxl"), dropout_rate, layers)


def describe_network(
    values: Mapping[str, Any], sizes: Sequence[str], dropout_rate: float, layers: object
) -> Network:
    """Return the network of fields of T5Config.

    Args:
        values: The fields.
        sizes: The sizes of its family.
        dropout_rate: The dropout in training.
        layers: The number of its layers, to show.
    """
    width = values["emb_dim"]
    lines = (
        "from rosetta.t5x import network",
        "network.T5Config:",
        *(f"  {name} = {value!r}" for name, value in values.items()),
    )
    description = f"network.T5Config: {layers} layers, {width} features"
    return Network(choose_size(width, sizes), lines, dropout_rate, description)


def choose_size(width: int, sizes: Sequence[str]) -> str:
    """Return the first size whose preset fits the width of a model, or the last size."""
    return next((size for size in sizes if width <= _WIDTHS.get(size, width)), sizes[-1])
