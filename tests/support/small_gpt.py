"""A GPT so small that all its texts can be listed, in a checkpoint of Pax.

The logits of its random weights differ by about 1. Import this module after
`required_modules.need_modules("jax", "paxml", "tensorstore")`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import pax_gpt
from rosetta.convert.gpt import GPT2, Architecture, list_tensors
from rosetta.inference import model_files
from rosetta.inference.pax_model import PaxModel
from rosetta.pax import configs
from tests.support import pax_logits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ARCHITECTURE = Architecture(
    layout=GPT2,
    layers=1,
    dim=16,
    heads=2,
    hidden=16,
    vocab=6,
    positions=16,
    activation="GELU",
    epsilon=1e-5,
    is_tied=False,
)
END = 1
_ROW_STEP = 32  # the number of texts is padded to a multiple, so that few programs are compiled


def write_checkpoint(folder: Path, **changes: Any) -> Path:
    """Write a checkpoint with its record, and return the folder."""
    architecture = dataclasses.replace(ARCHITECTURE, **changes)
    rng = np.random.default_rng(0)
    tensors = [
        rng.normal(size=tensor.shape).astype(np.float32) * (1 if tensor.layer is None else 0.5)
        for tensor in list_tensors(architecture)
    ]
    pax_gpt.write_checkpoint(folder, architecture, tensors, repeated=False)
    return folder


def open_model(folder: Path) -> PaxModel:
    """Return the model of a checkpoint, in float32."""
    files = model_files.find_model_files(str(folder))
    return PaxModel(model_files.make_experiment(files, None, (), "float32"), files.checkpoint)


class Reference:
    """The probabilities of the next token, computed from whole texts and without a cache."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        architecture = dataclasses.replace(ARCHITECTURE, **changes)
        self._length = architecture.positions
        self._model = pax_logits.Model(
            configs.Synthetic126M,
            folder / "checkpoints",
            architecture.make_fdl_settings(),
            self._length,
        )

    def compute_logits(self, texts: Sequence[Sequence[int]]) -> Any:
        """Return the logits of the token after each text, [texts, vocabulary] in float64."""
        count = -(-len(texts) // _ROW_STEP) * _ROW_STEP
        rows: Any = np.zeros((2, count, self._length), np.int32)
        ids, mask = rows
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        logits = self._model.compute_logits(ids, mask).astype(np.float64)
        return np.stack([logits[row, len(text) - 1] for row, text in enumerate(texts)])
