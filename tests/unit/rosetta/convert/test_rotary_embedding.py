"""The rotary embedding in config.json: both versions of transformers, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("numpy", "ml_dtypes")

import numpy as np

from rosetta.convert import rotary_embedding
from rosetta.nn.rotary_positions import RotaryEmbedding, Scaling

NUMBERS: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA31 = RotaryEmbedding(500_000.0, Scaling(8.0, 1.0, 4.0, 8192))


def test_frequencies_of_llama_3_1() -> None:
    head_dim = 128
    scaled = LLAMA31.compute_frequencies(head_dim)
    for pair, frequency in enumerate(scaled):
        plain = 500_000.0 ** (-2 * pair / head_dim)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4:
            expected = plain
        elif wavelength > 8192:
            expected = plain / 8
        else:
            smooth = (8192 / wavelength - 1) / 3
            expected = (1 - smooth) * plain / 8 + smooth * plain
        assert frequency == pytest.approx(expected, rel=1e-12)
    ratios = scaled / RotaryEmbedding(500_000.0).compute_frequencies(head_dim)
    is_between = (ratios < 0.999) & (ratios > 0.126)
    assert is_between.any()
    np.testing.assert_allclose(ratios[0], 1)
    np.testing.assert_allclose(ratios[-1], 1 / 8)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", **NUMBERS}},
        {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", **NUMBERS}},
        {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", **NUMBERS}},
        rotary_embedding.make_hf_fields(LLAMA31),
    ],
)
def test_both_versions_of_the_fields_are_read(fields: dict[str, Any]) -> None:
    assert rotary_embedding.parse_hf_fields(fields, "config.json") == LLAMA31


def test_fields_that_are_not_set_are_those_of_llama_2() -> None:
    assert rotary_embedding.parse_hf_fields({}, "config.json") == RotaryEmbedding()
    assert rotary_embedding.make_fdl_settings(RotaryEmbedding()) == {}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, errors.UNSUPPORTED),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, errors.UNSUPPORTED),
        ({"rope_scaling": {"rope_type": ["llama3"]}}, errors.UNSUPPORTED),
        (
            {"rope_scaling": {"type": "default", "rope_type": "llama3", **NUMBERS}},
            errors.UNSUPPORTED,
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, errors.INVALID),
        ({"rope_scaling": {"rope_type": "llama3", **NUMBERS, "factor": 0.5}}, errors.INVALID),
        (
            {"rope_scaling": {"rope_type": "llama3", **NUMBERS, "low_freq_factor": 4.0}},
            errors.INVALID,
        ),
        ({"rope_scaling": {"rope_type": "llama3", **NUMBERS, "beta": 1}}, errors.UNSUPPORTED),
        ({"rope_theta": "5e5"}, errors.INVALID),
        ({"rope_theta": 0}, errors.INVALID),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, errors.CONFLICT),
        (
            {
                "rope_parameters": {"rope_type": "default"},
                "rope_scaling": {"rope_type": "llama3", **NUMBERS},
            },
            errors.CONFLICT,
        ),
    ],
)
def test_what_pax_cannot_compute_is_refused(fields: dict[str, Any], kind: str) -> None:
    with errors.expect_user_error(kind, where="config.json"):
        rotary_embedding.parse_hf_fields(fields, "config.json")
