"""Weights of Hugging Face are converted once, and errors of the converter reach the user."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("tensorstore", "ml_dtypes")

import numpy as np

from rosetta import cli
from rosetta.convert import pax_llama
from rosetta.launch import hub_inputs
from tests.support import llama_weights, t5_weights

VARIABLE = "INITIAL_CHECKPOINT_PATH"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    config = t5_weights.make_config("t5_1_1")
    return t5_weights.write_folder(tmp_path / "model", config, t5_weights.make_weights(config))


def _resolve(folder: Path) -> Path:
    return Path(hub_inputs.resolve_weights(VARIABLE, str(folder)))


def test_paths_of_t5x_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_3").mkdir()
    variables = {
        VARIABLE: str(tmp_path),
        "CHECKPOINT_PATH": "gs://t5-data/checkpoint_1",
        "CHECKPOINT_RESTORE_PATH": "relative",
        "VOCAB": "byte",
        "VOCAB_PATH": "/data/a.model",
        "DATA": "hf:owner/name",
    }
    assert hub_inputs.resolve_variables(variables) == variables


def test_a_folder_is_converted_once(model: Path) -> None:
    out = _resolve(model)
    assert (out / "checkpoint_0").is_dir()
    state = (out / "checkpoint_0").stat()
    assert _resolve(model) == out
    assert (out / "checkpoint_0").stat() == state
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"dropout_rate": 0.25}))
    assert _resolve(model) != out  # another model


def test_a_llama_becomes_a_checkpoint_of_pax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    sizes = llama_weights.MODELS["groups"]
    weights = llama_weights.make_weights(sizes)
    meta = llama_weights.write_meta_folder(tmp_path / "meta", sizes, weights)
    model = tmp_path / "hf"
    assert cli.main(["convert", "llama", str(meta), str(model), "--to", "hf"]) == 0
    checkpoint = hub_inputs.resolve_weights("CHECKPOINT_RESTORE_PATH", str(model))
    source = pax_llama.Source(Path(checkpoint))
    assert source.sizes == sizes
    for name, tensor in weights.items():
        assert np.array_equal(source.read(name), tensor.astype(np.float32)), name


def test_one_of_many_processes_converts(model: Path, tmp_path: Path) -> None:
    with concurrent.futures.ProcessPoolExecutor(3) as pool:
        folders = set(pool.map(_resolve, [model] * 3))
    assert len(folders) == 1
    assert len(list((tmp_path / "home" / "converted").glob("*-t5x"))) == 1


def test_an_error_of_the_converter_is_one_line(model: Path, tmp_path: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with errors.expect_user_error(errors.DAMAGED, where=f"{VARIABLE}={model}"):
        _resolve(model)
    assert not list((tmp_path / "home" / "converted").glob("*-t5x"))


def test_the_weights_of_another_architecture_are_refused(model: Path) -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where=f"CHECKPOINT_RESTORE_PATH={model}"):
        hub_inputs.resolve_weights("CHECKPOINT_RESTORE_PATH", str(model))
