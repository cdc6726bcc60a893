"""Hugging Face's config.json of a GPT-2 or a GPT-NeoX, and the architecture that it describes.

Sources: transformers, models/{gpt2,gpt_neox}/configuration_*.py, in versions 4.57 and 5.24.
Version 5 has the fields of rotary positions of GPT-NeoX in `rope_parameters`, and reads those of
version 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.convert import rotary_embedding
from rosetta.convert.config_fields import (
    HF_BOOKKEEPING_FIELDS,
    HF_COPIED_FIELDS,
    FieldRules,
    check_fields,
    check_token_fields,
    read_epsilon,
    shorten_value,
)
from rosetta.convert.gpt import GPT2, GPT_NEOX, Architecture
from rosetta.core.errors import CONFLICT, INVALID, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHOOSE_GPT = "convert a GPT-2 or a GPT-NeoX"
_COPY_AGAIN = "download or copy it again"
# Pax's name of an activation -> transformers' name. Praxis' GELU is the approximation by tanh.
HF_ACTIVATIONS = {
    "GELU": "gelu_new",
    "ExactGELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
}
# transformers' name -> Pax's name.
_PAX_ACTIVATIONS = {
    **{hf_name: name for name, hf_name in HF_ACTIVATIONS.items()},
    "gelu_fast": "GELU",
    "gelu_pytorch_tanh": "GELU",
    "gelu_python_tanh": "GELU",
    "gelu_accurate": "GELU",
    "gelu_python": "ExactGELU",
    "swish": "SiLU",
}
_CLASSES = {GPT2: "GPT2LMHeadModel", GPT_NEOX: "GPTNeoXForCausalLM"}
# config.json's name of a size, by the layout and Architecture's name.
_SIZE_FIELDS = {
    GPT2: {
        "layers": "n_layer",
        "dim": "n_embd",
        "heads": "n_head",
        "hidden": "n_inner",
        "vocab": "vocab_size",
        "positions": "n_positions",
    },
    GPT_NEOX: {
        "layers": "num_hidden_layers",
        "dim": "hidden_size",
        "heads": "num_attention_heads",
        "hidden": "intermediate_size",
        "vocab": "vocab_size",
        "positions": "max_position_embeddings",
    },
}
_ACTIVATION_FIELDS = {GPT2: "activation_function", GPT_NEOX: "hidden_act"}
_EPSILON_FIELDS = {GPT2: "layer_norm_epsilon", GPT_NEOX: "layer_norm_eps"}
# The fields of the share of the features that rotary positions turn, and of the base.
_FRACTION_FIELDS = ("rotary_pct", "partial_rotary_factor")
_BASE_FIELDS = ("rope_theta", "rotary_emb_base")
_DEFAULT_FRACTION = 0.25
_DEFAULT_ACTIVATIONS = {GPT2: "gelu_new", GPT_NEOX: "gelu"}
_TIED_BY_DEFAULT = {GPT2: True, GPT_NEOX: False}
_COMMON_FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "auto_map": (),
    "cross_attention_hidden_size": (),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "quantization_config": (),
    "tie_encoder_decoder": (False,),
}
_COMMON_HARMLESS = (
    HF_BOOKKEEPING_FIELDS
    | HF_COPIED_FIELDS
    | frozenset(("classifier_dropout", "decoder_start_token_id", "is_decoder"))
)
_RULES = {
    GPT2: FieldRules(
        "Pax's GPT",
        read=frozenset(
            (
                *_SIZE_FIELDS[GPT2].values(),
                "activation_function",
                "layer_norm_epsilon",
                "model_type",
                "tie_word_embeddings",
            )
        ),
        fixed={
            **_COMMON_FIXED,
            "architectures": (["GPT2LMHeadModel"],),
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
        },
        # n_ctx is an old name of n_positions, and reorder_and_upcast_attn is about float16.
        harmless=_COMMON_HARMLESS
        | frozenset(
            (
                "attn_pdrop",
                "embd_pdrop",
                "n_ctx",
                "reorder_and_upcast_attn",
                "resid_pdrop",
                "summary_activation",
                "summary_first_dropout",
                "summary_proj_to_labels",
                "summary_type",
                "summary_use_proj",
            )
        ),
        remedy=_CHOOSE_GPT,
    ),
    GPT_NEOX: FieldRules(
        "Pax's GPT",
        read=frozenset(
            (
                *_SIZE_FIELDS[GPT_NEOX].values(),
                *_FRACTION_FIELDS,
                *_BASE_FIELDS,
                "hidden_act",
                "layer_norm_eps",
                "model_type",
                "rope_parameters",
                "rope_scaling",
                "tie_word_embeddings",
                "use_parallel_residual",
            )
        ),
        fixed={
            **_COMMON_FIXED,
            "architectures": (["GPTNeoXForCausalLM"],),
            "attention_bias": (True,),
        },
        harmless=_COMMON_HARMLESS - {"max_position_embeddings"}
        | frozenset(("attention_dropout", "hidden_dropout")),
        remedy=_CHOOSE_GPT,
    ),
}


def parse_config(config: Mapping[str, Any], where: str) -> Architecture:
    """Return the architecture that a config.json describes.

    Args:
        config: The fields.
        where: The path of the file, for errors.

    Raises:
        UserError: The model is not a GPT that Pax can compute, or a field is not known, missing or
            not valid. The error names the field.
    """
    layout = config.get("model_type")
    if not isinstance(layout, str) or layout not in _RULES:
        raise UserError(
            f"'model_type' is {shorten_value(layout)}, and one of "
            f"{', '.join(map(repr, _RULES))} is expected",
            where,
            _CHOOSE_GPT,
            kind=UNSUPPORTED,
            value="model_type",
        )
    check_fields(config, _RULES[layout], where)
    check_token_fields(config, where)
    sizes = {name: config.get(field) for name, field in _SIZE_FIELDS[layout].items()}
    if layout == GPT2 and sizes["hidden"] is None and type(sizes["dim"]) is int:
        sizes["hidden"] = 4 * sizes["dim"]
    for name, value in sizes.items():
        if type(value) is not int:
            field = _SIZE_FIELDS[layout][name]
            raise _make_invalid_field_error(field, value, "a whole number", where)
    is_tied = config.get("tie_word_embeddings")
    rotary = _read_rotary_fields(config, where) if layout == GPT_NEOX else {}
    epsilon_field = _EPSILON_FIELDS[layout]
    return Architecture(
        layout=layout,
        **sizes,  # type: ignore[arg-type]
        activation=_read_activation(config, layout, where),
        epsilon=read_epsilon({epsilon_field: 1e-5, **config}, epsilon_field, where),
        is_tied=_TIED_BY_DEFAULT[layout] if is_tied is None else is_tied,
        **rotary,
    ).check(where)


def _make_invalid_field_error(name: str, value: Any, expected: str, where: str) -> UserError:
    """Return the error for a field with a value of another kind than expected."""
    return UserError(
        f"{name!r} is {shorten_value(value)}, and {expected} is expected",
        where,
        _COPY_AGAIN,
        kind=INVALID,
        value=name,
    )


def _read_activation(config: Mapping[str, Any], layout: str, where: str) -> str:
    """Return Pax's name of the activation. Raise UserError if Pax's GPT does not have it."""
    field = _ACTIVATION_FIELDS[layout]
    activation = config.get(field, _DEFAULT_ACTIVATIONS[layout])
    name = _PAX_ACTIVATIONS.get(activation) if isinstance(activation, str) else None
    if name is None:
        raise UserError(
            f"{field!r} is {shorten_value(activation)}, which Pax's GPT does not have",
            where,
            f"choose a model with one of: {', '.join(sorted(_PAX_ACTIVATIONS))}",
            kind=UNSUPPORTED,
            value=field,
        )
    return name


def _read_rotary_fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what config.json of a GPT-NeoX says of rotary positions and of the residual.

    Raises:
        UserError: A field is not valid, two fields contradict each other, or the positions are
            scaled.
    """
    parameters = config.get("rope_parameters")
    fractions = {name: config.get(name) for name in _FRACTION_FIELDS}
    if isinstance(parameters, dict):
        fractions["rope_parameters"] = parameters.get("partial_rotary_factor")
        parameters = {**parameters, "partial_rotary_factor": None}
    # `rope_theta` and `rotary_emb_base` are two names of one field.
    bases = {name: config.get(name) for name in _BASE_FIELDS}
    stated_bases = [
        rotary_embedding.parse_base(base, name, where)
        for name, base in bases.items()
        if base is not None
    ]
    rotary = rotary_embedding.parse_hf_fields(
        {
            "rope_theta": stated_bases[0] if stated_bases else None,
            "rope_parameters": parameters,
            "rope_scaling": config.get("rope_scaling"),
        },
        where,
    )
    if rotary.scaling is not None:
        raise UserError(
            "the rotary positions are scaled, and those of Pax's GPT are not",
            where,
            _CHOOSE_GPT,
            kind=UNSUPPORTED,
            value="rope_scaling",
        )
    stated_fractions = {value for value in fractions.values() if value is not None}
    if len(stated_fractions) > 1 or len(set(stated_bases)) > 1:
        raise UserError(
            f"the fields of rotary positions contradict each other: {fractions | bases}",
            where,
            "remove the fields that are wrong from a copy of the file",
            kind=CONFLICT,
            value="rotary_pct",
        )
    fraction = next(iter(stated_fractions), _DEFAULT_FRACTION)
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise _make_invalid_field_error("rotary_pct", fraction, "a number", where)
    is_parallel = config.get("use_parallel_residual", True)
    if not isinstance(is_parallel, bool):
        raise _make_invalid_field_error(
            "use_parallel_residual", is_parallel, "true or false", where
        )
    return {
        "rotary_fraction": float(fraction),
        "rotary_base": rotary.base,
        "parallel_residual": is_parallel,
    }


def make_config(
    architecture: Architecture, dtype_name: str, ids: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of config.json, which mean the same to transformers 4 and 5.

    Args:
        architecture: The architecture.
        dtype_name: The type of the numbers in the files of weights.
        ids: The ids of special tokens by field. The others are null, because the defaults of
            transformers may be beyond the vocabulary.
    """
    layout = architecture.layout
    sizes = {field: getattr(architecture, name) for name, field in _SIZE_FIELDS[layout].items()}
    fields = {
        "architectures": [_CLASSES[layout]],
        "model_type": layout,
        **sizes,
        _ACTIVATION_FIELDS[layout]: HF_ACTIVATIONS[architecture.activation],
        _EPSILON_FIELDS[layout]: architecture.epsilon,
        "tie_word_embeddings": architecture.is_tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": True,
        "torch_dtype": dtype_name,
        **ids,
    }
    if layout == GPT2:
        return fields | {
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        }
    return fields | {
        "attention_bias": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "rotary_pct": architecture.rotary_fraction,
        "rotary_emb_base": architecture.rotary_base,
        "use_parallel_residual": architecture.parallel_residual,
    }
