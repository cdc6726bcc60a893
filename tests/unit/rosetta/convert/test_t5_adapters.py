"""LoRA adapters in a checkpoint of T5X are merged into the kernels when it is converted."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("msgpack", "ml_dtypes", "tensorstore")

import numpy as np

from rosetta.convert import t5x_checkpoint, t5x_model
from rosetta.convert.t5_config import Architecture
from rosetta.convert.t5_tensors import list_tensors
from rosetta.t5x.run import checkpoint_record

ARCHITECTURE = Architecture(32, 12, 2, 8, 20, 1, 2, ("gelu", "linear"), logits_via_embedding=False)
RANK, ALPHA = 3, 7.0
TARGETS = ("query", "wi_0")
RECORD = checkpoint_record.Record(
    step=5,
    scale_attn_logits=False,
    config=ARCHITECTURE.as_text(),
    lora={"rank": RANK, "alpha": ALPHA, "targets": list(TARGETS)},
)


def make_arrays() -> dict[str, Any]:
    """Random values of all parameters, and of adapters of the query and wi_0 kernels."""
    drawn = np.random.default_rng(0)
    shapes = {tensor.array: tensor.array_shape for tensor in list_tensors(ARCHITECTURE)}
    for name in list(shapes):
        *owner, module, kind = name.split("/")
        if kind == "kernel" and module in TARGETS:
            inputs, outputs = shapes[name]
            prefix = "/".join([*owner, module])
            shapes |= {f"{prefix}/lora_a": (inputs, RANK), f"{prefix}/lora_b": (RANK, outputs)}
    return {name: drawn.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_checkpoint(folder: Path, record: checkpoint_record.Record) -> Any:
    arrays = make_arrays()
    shapes = {f"target/{name}": values.shape for name, values in arrays.items()}
    with t5x_checkpoint.Writer(folder, 5, shapes, np.dtype(np.float32), record) as writer:
        for name, values in arrays.items():
            writer.write(f"target/{name}", (0,) * values.ndim, values)
    return arrays


@pytest.mark.parametrize("is_scaled", [False, True], ids=["plain", "scaled"])
def test_kernels_are_read_with_their_adapters(is_scaled: bool, tmp_path: Path) -> None:
    record = dataclasses.replace(RECORD, scale_attn_logits=is_scaled)
    arrays = write_checkpoint(tmp_path, record)
    model = t5x_model.T5XModel(tmp_path)
    assert not model.is_native
    assert any("LoRA" in note and f" {1 + 1 + 2 * 3} kernels" in note for note in model.notes)
    merged = 0
    for tensor in list_tensors(ARCHITECTURE):
        expected = arrays[tensor.array].astype(np.float64)
        owner = tensor.array.rpartition("/")[0]
        if f"{owner}/lora_a" in arrays:
            merged += 1
            # peft: W + (alpha / r) B A, for matrices [outputs, inputs].
            product = arrays[f"{owner}/lora_b"].T @ arrays[f"{owner}/lora_a"].T
            expected += ALPHA / RANK * product.T
        if tensor.is_query and is_scaled:
            expected /= np.sqrt(ARCHITECTURE.head_dim)
        if tensor.is_transposed:
            expected = expected.T
        rows = [slice(0, 5), slice(5, tensor.shape[0])]
        found = np.concatenate([model.read(tensor, part) for part in rows])
        tolerance = 1e-6 * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=tensor.name)
    assert merged == 2 + 2 * 3  # of the encoder's layer, and of the decoder's two layers


def test_adapters_without_a_record_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, dataclasses.replace(RECORD, lora=None))
    with errors.expect_user_error(errors.MISSING, where="checkpoint_5", names="rosetta.json"):
        t5x_model.T5XModel(tmp_path)
