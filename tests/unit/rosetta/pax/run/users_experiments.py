"""Experiments as users write them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rosetta.pax import configs, gpt
from rosetta.pax.data import SyntheticDataset
from tests.unit.rosetta.pax.run import users_constants as constants
from tests.unit.rosetta.pax.run.users_constants import STEPS, Wide


class Synthetic126M(configs.Synthetic126M):
    """Has the name of one of rosetta's, and other values."""

    NUM_LAYERS = 3
    MAX_STEPS = STEPS


class Pile5B(Wide, configs.Pile5B):
    """A mixin before ours wins over it."""

    ICI_MESH_SHAPE: Any = [1, constants.PARTS, 1]  # noqa: RUF012 (as users write it)
    HIDDEN_DIMS = 4 * Wide.MODEL_DIMS


class Computed(gpt.GPT126M, SyntheticDataset):
    """Values that Python computes when the class is made."""

    NUM_LAYERS = int(math.log2(256))
    VOCAB_SIZE = -(-50257 // 128) * 128
    LEARNING_RATE = 6e-4 / math.sqrt(2)
    NUM_HEADS, MODEL_DIMS = 4, 256
    if STEPS > 10:
        MAX_STEPS = 20
    PERCORE_BATCH_SIZE = next(rows for rows in range(1, 9) if rows % 2 == 0)


class Properties(gpt.GPT126M, SyntheticDataset):
    """Values that an instance computes from others."""

    @property
    def HIDDEN_DIMS(self) -> int:  # type: ignore[override]  # noqa: N802 (a hyper-parameter)
        return 4 * self.MODEL_DIMS

    def __init__(self) -> None:
        self.NUM_LAYERS = 5


@dataclasses.dataclass
class Fields(gpt.GPT126M, SyntheticDataset):
    """Values that are fields."""

    NUM_LAYERS: int = 7
    ICI_MESH_SHAPE: Any = dataclasses.field(default_factory=lambda: [1, 2, 1])
    MAX_STEPS: int = dataclasses.field(default=STEPS)
