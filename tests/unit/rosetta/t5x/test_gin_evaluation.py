"""What is wrong in gin files is one line, without gin's own words around it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("t5x", "gin")

from rosetta.t5x import gin_evaluation

FILES = ["rosetta/t5x/gin/t5_1_1/tiny.gin", "rosetta/t5x/gin/runs/pretrain.gin"]
SET = ["MODEL_DIR = '/m'", "TRAIN_STEPS = 1", "DATA = 'synthetic'"]


@pytest.mark.parametrize(
    ("lines", "kind", "facts"),
    [
        (
            [*SET, "network.T5Config.fp8 = 'maybe'"],
            errors.INVALID,
            {"where": "T5Config.fp8", "value": "maybe", "remedy": "off, xla, te"},
        ),
        (SET[1:], errors.MISSING, {"value": "MODEL_DIR", "remedy": "--gin.MODEL_DIR=VALUE"}),
    ],
)
def test_a_wrong_configuration_is_one_line(
    lines: list[str], kind: str, facts: dict[str, Any]
) -> None:
    with errors.expect_user_error(kind, **facts), gin_evaluation.arguments(FILES, lines):
        pass
