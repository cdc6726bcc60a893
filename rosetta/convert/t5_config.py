"""The configuration of a T5, and Hugging Face's config.json for it.

T5 1.0, T5 1.1, mT5, byT5, umT5, Flan-T5, the LM-adapted T5 and UL2 differ in the values of an
`Architecture`, and in nothing else.

Sources: transformers, models/{t5,mt5,umt5}/configuration_*.py and modeling_*.py, in versions 4.57
and 5.24. They agree on what a network computes, except for the output layer:

    transformers 4: `tie_word_embeddings` decides whether the embedding is also the kernel of the
        logits, and whether the hidden vectors are scaled by d_model^-0.5 before it.
    transformers 5: the kernel is the embedding unless the file has another `lm_head.weight`.
        T5 and umT5 are scaled unless `tie_word_embeddings` is false, or `scale_decoder_outputs` is.
        mT5 is never scaled. A file that transformers 5 wrote always has `tie_word_embeddings` true.
"""

from __future__ import annotations

import ast
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rosetta.convert.config_fields import (
    HF_BOOKKEEPING_FIELDS,
    FieldRules,
    check_fields,
    shorten_value,
)
from rosetta.core.errors import CONFLICT, DIFFERS, INVALID, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

BUCKETS = 32  # of the relative positions
_FARTHEST = 128  # the relative position from which on all share a bucket
_EPSILON = 1e-6  # of the norms
_MT5_ROWS = 250112  # rows of the embedding of mT5
# Limits far above any T5. With them, a list of all tensors fits into memory.
_MAX_LAYERS = 10_000
_MAX_SIZE = 1 << 31
_CHOOSE_T5 = "convert a T5, mT5, byT5, umT5, Flan-T5 or UL2"
_COPY_AGAIN = "download or copy it again"
# T5Config's name of an activation -> transformers' name. Flax's gelu is the approximation by tanh.
HF_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu_new",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "leaky_relu": "leaky_relu",
    "linear": "linear",
}
# transformers' name -> T5Config's name.
_T5X_ACTIVATIONS = {
    **{hf_name: name for name, hf_name in HF_ACTIVATIONS.items() if name != "swish"},
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_python_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu_accurate": "gelu",
}
# config.json's name of a size -> T5Config's name.
_SIZE_FIELDS = {
    "vocab_size": "vocab_size",
    "d_model": "emb_dim",
    "num_heads": "num_heads",
    "d_kv": "head_dim",
    "d_ff": "mlp_dim",
    "num_layers": "num_encoder_layers",
    "num_decoder_layers": "num_decoder_layers",
}
_DEFAULT_PROJECTIONS = {"t5": "relu", "mt5": "gated-gelu", "umt5": "gated-gelu"}
_CLASSES = {
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}
_ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
_RULES = FieldRules(
    "T5",
    read=frozenset(
        (
            *_SIZE_FIELDS,
            "dense_act_fn",
            "dropout_rate",
            "eos_token_id",
            "feed_forward_proj",
            "is_gated_act",
            "model_type",
            "scale_decoder_outputs",
            "tie_word_embeddings",
            "transformers_version",
        )
    ),
    fixed={
        "add_cross_attention": (False,),
        "architectures": (
            *([name] for name in _CLASSES.values()),
            *([name] for name in _ENCODER_CLASSES.values()),
            ["T5WithLMHeadModel"],  # the class's name before transformers 3
        ),
        "auto_map": (),
        "cross_attention_hidden_size": (),
        "decoder_start_token_id": (0,),  # T5X begins each target with 0
        "is_decoder": (False,),
        "is_encoder_decoder": (True, False),
        "layer_norm_epsilon": (_EPSILON,),
        "pad_token_id": (0,),  # T5X masks 0
        "pruned_heads": ({},),
        "quantization_config": (),
        "relative_attention_max_distance": (_FARTHEST,),
        "relative_attention_num_buckets": (BUCKETS,),
        "tie_encoder_decoder": (False,),
    },
    # n_positions, output_past and scalable_attention are on old files, and no version reads them.
    harmless=HF_BOOKKEEPING_FIELDS
    | frozenset(
        (
            "bos_token_id",
            "classifier_dropout",
            "initializer_factor",
            "n_positions",
            "output_past",
            "scalable_attention",
        )
    ),
    remedy=_CHOOSE_T5,
)


@dataclass(frozen=True)
class Architecture:
    """What decides the shapes of a T5's tensors, and what the network computes from them.

    The names and meanings are those of `rosetta.t5x.network.T5Config`.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    num_encoder_layers: int
    num_decoder_layers: int
    mlp_activations: tuple[str, ...]
    logits_via_embedding: bool
    relative_bias: str = "stack"
    dropout_rate: float = 0.1

    @property
    def is_gated(self) -> bool:
        """Whether the MLP multiplies two projections."""
        return len(self.mlp_activations) > 1

    def check(self, where: str) -> Architecture:
        """Check that the sizes are those of a possible T5, and return the architecture.

        Args:
            where: The file or folder that states the sizes, for the error.

        Raises:
            UserError: A size is not a whole number, or is out of bounds.
        """
        for name in _SIZE_FIELDS.values():
            value = getattr(self, name)
            maximum = _MAX_LAYERS if name.endswith("layers") else _MAX_SIZE
            minimum = 0 if name == "num_decoder_layers" else 1
            if type(value) is not int or not minimum <= value <= maximum:
                raise UserError(
                    f"not valid for a T5: {name} is {shorten_value(value)}",
                    where,
                    "choose the folder of a complete T5",
                    kind=UNSUPPORTED,
                    value=name,
                )
        return self

    def as_text(self) -> dict[str, str]:
        """Return the fields as the record of a checkpoint has them."""
        return {name: str(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class HuggingFaceConfig:
    """What a config.json says.

    Attributes:
        architecture: The architecture. `logits_via_embedding` is whether the hidden vectors are
            scaled; the tensors decide whether the output layer is the embedding.
        ties_embedding: Whether the file says that the output layer is the embedding.
        written_by_5: Whether transformers 5 wrote the file.
        notes: Lines for the user.
    """

    architecture: Architecture
    ties_embedding: bool
    written_by_5: bool
    notes: tuple[str, ...]


def parse_config(config: Mapping[str, Any], where: str) -> HuggingFaceConfig:
    """Return what the fields of a config.json say.

    Args:
        config: The fields.
        where: The path of the file, for errors.

    Raises:
        UserError: The model is not a T5, or a field is not known, missing or not valid.
    """
    model_type = config.get("model_type")
    if model_type not in _CLASSES:
        raise UserError(
            f"'model_type' is {shorten_value(model_type)}, and a T5 has one of "
            f"{', '.join(map(repr, _CLASSES))}",
            where,
            _CHOOSE_T5,
            kind=UNSUPPORTED,
            value="model_type",
        )
    check_fields(config, _RULES, where)
    sizes = {name: config.get(field) for field, name in _SIZE_FIELDS.items()}
    is_encoder = config.get("architectures") in [[name] for name in _ENCODER_CLASSES.values()]
    if is_encoder:
        sizes["num_decoder_layers"] = 0
    elif config.get("is_encoder_decoder") is False:
        raise UserError(
            "'is_encoder_decoder' is false, and the class is not that of an encoder",
            where,
            _CHOOSE_T5,
            kind=UNSUPPORTED,
            value="is_encoder_decoder",
        )
    if sizes["num_decoder_layers"] is None:
        sizes["num_decoder_layers"] = sizes["num_encoder_layers"]
    dropout_rate = config.get("dropout_rate", 0.1)
    if isinstance(dropout_rate, bool) or not isinstance(dropout_rate, (int, float)):
        raise _make_invalid_field_error("dropout_rate", dropout_rate, "a number", where)
    ties_embedding, scales, is_from_5 = _read_output_layer(config, where)
    architecture = Architecture(
        **sizes,  # type: ignore[arg-type]
        mlp_activations=_read_activations(config, where),
        logits_via_embedding=scales or is_encoder,
        relative_bias="layer" if model_type == "umt5" else "stack",
        dropout_rate=dropout_rate,
    ).check(where)
    notes = []
    end_token = config.get("eos_token_id", 1)
    if end_token != 1:
        notes.append(
            f"eos_token_id is {shorten_value(end_token)}: only the model's own vocabulary fits"
        )
    return HuggingFaceConfig(architecture, ties_embedding, is_from_5, tuple(notes))


def _make_invalid_field_error(name: str, value: Any, expected: str, where: str) -> UserError:
    """Return the error for a field with a value of another kind than expected."""
    return UserError(
        f"{name!r} is {shorten_value(value)}, and {expected} is expected",
        where,
        _COPY_AGAIN,
        kind=INVALID,
        value=name,
    )


def _read_output_layer(config: Mapping[str, Any], where: str) -> tuple[bool, bool, bool]:
    """Return what config.json says of the output layer; see the top of the module.

    Returns:
        Whether the embedding is the output layer, whether the hidden vectors are scaled before it,
        and whether transformers 5 wrote the file.

    Raises:
        UserError: A field is not valid, or the versions of transformers disagree on the file.
    """
    is_mt5 = config["model_type"] == "mt5"
    for name in ("tie_word_embeddings", "scale_decoder_outputs"):
        if not isinstance(config.get(name), (bool, type(None))):
            raise _make_invalid_field_error(name, config[name], "true or false", where)
    version = config.get("transformers_version")
    major = re.match(r"\d+", version) if isinstance(version, str) else None
    tied, scaled = config.get("tie_word_embeddings"), config.get("scale_decoder_outputs")
    is_from_5 = (major is not None and int(major[0]) >= 5) or (scaled is False and tied is True)
    if tied is None:
        tied = not is_mt5
    if scaled and not tied:
        raise UserError(
            "'scale_decoder_outputs' is true and 'tie_word_embeddings' is false: transformers 4 "
            "does not scale the logits, and transformers 5 does",
            where,
            "set both to the same value",
            kind=CONFLICT,
            value="scale_decoder_outputs",
        )
    if not is_mt5:
        return tied, tied if scaled is None else scaled, is_from_5
    if tied and major is None:
        raise UserError(
            "'tie_word_embeddings' is true for an mT5: transformers 4 scales its logits, "
            "transformers 5 does not, and 'transformers_version' is not set",
            where,
            "add the field with the version that wrote the model",
            kind=CONFLICT,
            value="tie_word_embeddings",
        )
    return tied, tied and not is_from_5, is_from_5


def _read_activations(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the activations of the MLP, as T5Config has them.

    Raises:
        UserError: The activation is not known, or T5X computes another one.
    """
    projection = config.get("feed_forward_proj") or _DEFAULT_PROJECTIONS[config["model_type"]]
    if not isinstance(projection, str):
        raise _make_invalid_field_error("feed_forward_proj", projection, "a text", where)
    first, _, last = projection.rpartition("-")
    # These two fields win over feed_forward_proj if a file has them.
    activation = config.get("dense_act_fn") or last
    if projection == "gated-gelu" and config.get("dense_act_fn") is None:
        activation = "gelu_new"
    is_gated = config.get("is_gated_act")
    if not isinstance(is_gated, (bool, type(None))):
        raise _make_invalid_field_error("is_gated_act", is_gated, "true or false", where)
    if first not in {"", "gated"}:
        raise _make_invalid_field_error(
            "feed_forward_proj", projection, "'relu', 'gated-gelu' or the like", where
        )
    name = _T5X_ACTIVATIONS.get(activation) if isinstance(activation, str) else None
    if name is None:
        raise UserError(
            f"the activation is {shorten_value(activation)}, which T5X's networks do not have",
            where,
            f"choose a model with one of: {', '.join(sorted(_T5X_ACTIVATIONS))}",
            kind=UNSUPPORTED,
            value=activation,
        )
    if is_gated is None:
        is_gated = first == "gated"
    return (name, "linear") if is_gated else (name,)


def parse_activations(text: str, where: str) -> tuple[str, ...]:
    """Return the activations of the MLP from a text such as "gelu,linear".

    Args:
        text: Names with commas, or a tuple of Python as the record of a checkpoint has it.
        where: The option or the file, for the error.

    Raises:
        UserError: A name is not known.
    """
    names: tuple[Any, ...] = tuple(part.strip() for part in text.split(","))
    if text.lstrip().startswith(("(", "[")):
        try:
            names = tuple(ast.literal_eval(text))
        except (ValueError, SyntaxError, TypeError):
            names = (text,)
    unknown = [name for name in names if name not in HF_ACTIVATIONS]
    if unknown or len(names) not in {1, 2} or names[1:] not in {(), ("linear",)}:
        raise UserError(
            f"{text!r} has no counterpart in transformers",
            where,
            f"give one of {', '.join(HF_ACTIVATIONS)}; followed by ',linear' if it is gated",
            kind=UNSUPPORTED,
            value=text,
        )
    return names


def check_record(config: Mapping[str, str], architecture: Architecture, where: str) -> None:
    """Check that the record of a checkpoint and the shapes of its arrays agree.

    Args:
        config: The record's fields of T5Config, as text; older records lack some.
        architecture: What the shapes say.
        where: The checkpoint, for the error.

    Raises:
        UserError: They do not agree.
    """
    for name, value in architecture.as_text().items():
        if name not in {"mlp_activations", "dropout_rate"} and config.get(name, value) != value:
            raise UserError(
                f"{name} is {value} by the arrays, and {config[name]} by the record",
                where,
                "copy the checkpoint and its record again",
                kind=DIFFERS,
                value=name,
            )


def choose_model_type(architecture: Architecture) -> str:
    """Return the `model_type` of transformers under which others look for the model.

    The classes of T5 and mT5 compute the same unless the embedding is the output layer.
    """
    if architecture.relative_bias == "layer":
        return "umt5"
    is_mt5 = (
        architecture.vocab_size == _MT5_ROWS
        and architecture.mlp_activations == ("gelu", "linear")
        and (not architecture.logits_via_embedding or not architecture.num_decoder_layers)
    )
    return "mt5" if is_mt5 else "t5"


def make_config(architecture: Architecture, dtype_name: str) -> dict[str, Any]:
    """Return the fields of config.json, which mean the same to transformers 4 and 5.

    Args:
        architecture: The architecture.
        dtype_name: The type of the numbers in the files of weights.
    """
    model_type = choose_model_type(architecture)
    classes = _CLASSES if architecture.num_decoder_layers else _ENCODER_CLASSES
    activation = HF_ACTIVATIONS[architecture.mlp_activations[0]]
    projection = activation
    if architecture.is_gated:
        projection = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
    sizes = {field: getattr(architecture, name) for field, name in _SIZE_FIELDS.items()}
    return {
        "architectures": [classes[model_type]],
        "model_type": model_type,
        **sizes,
        "feed_forward_proj": projection,
        "dense_act_fn": activation,
        "is_gated_act": architecture.is_gated,
        "tie_word_embeddings": architecture.logits_via_embedding,
        "scale_decoder_outputs": architecture.logits_via_embedding,
        "relative_attention_num_buckets": BUCKETS,
        "relative_attention_max_distance": _FARTHEST,
        "layer_norm_epsilon": _EPSILON,
        "dropout_rate": architecture.dropout_rate,
        "initializer_factor": 1.0,
        "is_encoder_decoder": architecture.num_decoder_layers > 0,
        "use_cache": architecture.num_decoder_layers > 0,
        **make_generation_config(),
        "torch_dtype": dtype_name,
    }


def make_generation_config() -> dict[str, Any]:
    """Return the fields of generation_config.json: the ids that T5X's models use."""
    return {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
