"""What is wrong in gin files is one line, without gin's own words around it."""

from __future__ import annotations

import pytest

from rosetta.core.errors import UserError
from tests.support import required_modules

required_modules.need("t5x", "gin")

from rosetta.t5x import gin_evaluation

FILES = ["rosetta/t5x/gin/t5_1_1/tiny.gin", "rosetta/t5x/gin/runs/pretrain.gin"]
SET = ["MODEL_DIR = '/m'", "TRAIN_STEPS = 1", "DATA = 'synthetic'"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [*SET, "network.T5Config.fp8 = 'maybe'"],
            "T5Config.fp8: fp8 is 'maybe'; choose one of: off, xla, te",
        ),
        (SET[1:], "gin configuration: MODEL_DIR is not set; set it: --gin.MODEL_DIR=VALUE"),
    ],
)
def test_one_line(lines: list[str], said: str) -> None:
    with pytest.raises(UserError) as found, gin_evaluation.arguments(FILES, lines):
        pass
    assert str(found.value) == said
