"""The rotary embedding in Hugging Face's config.json, and in the hyper-parameters of Pax's LLaMA.

config.json has the fields `rope_theta` and `rope_scaling` in transformers 4, and `rope_parameters`
in transformers 5.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from rosetta.convert.config_fields import FieldRules, check_fields, shorten_value
from rosetta.core.errors import CONFLICT, INVALID, UNSUPPORTED, UserError
from rosetta.nn.rotary_positions import DEFAULT_BASE, RotaryEmbedding, Scaling, is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHOOSE_MODEL = "convert a LLaMA or a Mistral"
_COPY_AGAIN = "download or copy it again"
_TYPE_FIELDS = ("rope_type", "type")
# config.json's names of the numbers of a Scaling, in the order of its fields.
_SCALING_FIELDS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
# The fields within rope_parameters and rope_scaling, by the type.
_RULES = {
    rope_type: FieldRules(
        "the converter",
        read=frozenset(("rope_theta", *_TYPE_FIELDS, *scaling_fields)),
        fixed={"partial_rotary_factor": (1,)},
        harmless=frozenset(),
        remedy=_CHOOSE_MODEL,
    )
    for rope_type, scaling_fields in {"default": (), "llama3": _SCALING_FIELDS}.items()
}


def make_fdl_settings(rotary: RotaryEmbedding) -> dict[str, Any]:
    """Return the hyper-parameters of Pax's LLaMA that differ from LLaMA-2's."""
    settings: dict[str, Any] = {}
    if rotary.base != DEFAULT_BASE:
        settings["ROPE_THETA"] = rotary.base
    if rotary.scaling is not None:
        settings["ROPE_SCALING"] = list(astuple(rotary.scaling))
    return settings


def make_hf_fields(rotary: RotaryEmbedding) -> dict[str, Any]:
    """Return the fields of config.json, which transformers 4 and 5 read alike."""
    fields: dict[str, Any] = {"rope_theta": rotary.base}
    if rotary.scaling is not None:
        numbers = dict(zip(_SCALING_FIELDS, astuple(rotary.scaling), strict=True))
        fields["rope_scaling"] = {"rope_type": "llama3", **numbers}
    return fields


def parse_hf_fields(config: Mapping[str, Any], where: str) -> RotaryEmbedding:
    """Return the rotary embedding that a config.json describes.

    Args:
        config: The fields of the file.
        where: The path of the file, for the error.

    Raises:
        UserError: The type is not known, a number is not valid, or two fields contradict each
            other.
    """
    bases = {"rope_theta": config.get("rope_theta")}
    scalings: dict[str, Scaling | None] = {}
    for name in ("rope_parameters", "rope_scaling"):
        rotary = config.get(name)
        if rotary is None:
            continue
        if not isinstance(rotary, dict):
            raise UserError(
                f"{name!r} is {shorten_value(rotary)}, and a JSON object is expected",
                where,
                _COPY_AGAIN,
                kind=INVALID,
                value=name,
            )
        scalings[name] = _parse_scaling(rotary, f"{where}, {name}")
        bases[f"{name}.rope_theta"] = rotary.get("rope_theta")
    base_values = {
        parse_base(base, name, where) for name, base in bases.items() if base is not None
    }
    if len(base_values) > 1 or len(set(scalings.values())) > 1:
        raise UserError(
            "'rope_theta', 'rope_scaling' and 'rope_parameters' contradict each other",
            where,
            "remove the fields that are wrong from a copy of the file",
            kind=CONFLICT,
            value="rope_parameters",
        )
    return RotaryEmbedding(
        next(iter(base_values), DEFAULT_BASE), next(iter(scalings.values()), None)
    )


def _parse_scaling(rotary: Mapping[str, Any], where: str) -> Scaling | None:
    """Return the scaling that a field describes, None for the type 'default'."""
    types = [rotary[name] for name in _TYPE_FIELDS if rotary.get(name) is not None]
    unknown = [rope_type for rope_type in types if rope_type not in [*_RULES]]
    if unknown or len({*map(str, types)}) > 1:
        raise UserError(
            f"the rotary embedding is of the type {shorten_value(types[-1])}, and Pax's LLaMA has "
            f"{' or '.join(map(repr, _RULES))}",
            where,
            _CHOOSE_MODEL,
            kind=UNSUPPORTED,
            value=types[-1],
        )
    rope_type = types[0] if types else "default"
    check_fields(rotary, _RULES[rope_type], where)
    if rope_type == "default":
        return None
    return Scaling(*(rotary.get(name) for name in _SCALING_FIELDS)).check(where)  # type: ignore[arg-type]


def parse_base(base: Any, name: str, where: str) -> float:
    """Return the base of the wavelengths.

    Args:
        base: The value.
        name: The name of the field, for the error.
        where: The file, for the error.

    Raises:
        UserError: The value is not a number above 1.
    """
    if not is_number(base) or base <= 1:
        raise UserError(
            f"{name!r} is {shorten_value(base)}, and a number above 1 is expected",
            where,
            _COPY_AGAIN,
            kind=INVALID,
            value=name,
        )
    return float(base)
