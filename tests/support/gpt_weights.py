"""A small GPT of random weights in the files of Hugging Face."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import huggingface_gpt
from rosetta.convert.gpt import GPT2, GPT_NEOX, Architecture, list_tensors

if TYPE_CHECKING:
    from pathlib import Path

_GPT2 = Architecture(
    layout=GPT2,
    layers=2,
    dim=32,
    heads=4,
    hidden=48,
    vocab=96,
    positions=20,
    activation="GELU",
    epsilon=1e-5,
    is_tied=True,
)
ARCHITECTURES = {
    "gpt2": _GPT2,
    "untied": dataclasses.replace(_GPT2, is_tied=False, activation="ReLU"),
    "neox": dataclasses.replace(
        _GPT2,
        layout=GPT_NEOX,
        is_tied=False,
        activation="ExactGELU",
        rotary_fraction=0.25,
        parallel_residual=True,
    ),
}
IDS = {"bos_token_id": 1, "eos_token_id": 2}


def make_tensors(architecture: Architecture) -> dict[str, Any]:
    """Return the tensors by name, float32. The scales of norms are between 0.5 and 2."""
    rng = np.random.default_rng(0)
    tensors = {}
    for tensor in list_tensors(architecture):
        values = rng.normal(size=tensor.shape) * 0.1
        if tensor.is_norm_scale:
            values = rng.uniform(0.5, 2, tensor.shape)
        tensors[tensor.name] = values.astype(np.float32)
    return tensors


def write_folder(folder: Path, architecture: Architecture) -> Path:
    """Write a model folder, and return it."""
    folder.mkdir()
    tensors = make_tensors(architecture)
    dtype = np.dtype("<f4")
    huggingface_gpt.write_model(folder, architecture, tensors.values(), dtype, IDS)
    return folder
