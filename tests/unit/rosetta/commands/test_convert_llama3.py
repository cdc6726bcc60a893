"""`rosetta convert llama` with LLaMA 3 and Mistral: what it writes, and what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("ml_dtypes", "tensorstore")

import numpy as np

from rosetta import cli
from rosetta.convert import huggingface, meta_llama, pax_llama, zarr_arrays
from rosetta.convert.llama import ModelSizes
from rosetta.nn.rotary_positions import RotaryEmbedding, Scaling
from tests.support import llama_weights

SIZES = llama_weights.MODELS["groups"]
SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA31 = RotaryEmbedding(500_000.0, Scaling(8.0, 1.0, 4.0, 8192))


def convert(*words: object) -> int:
    return cli.main(["convert", "llama", *map(str, words)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a model of Hugging Face."""
    meta = llama_weights.write_meta_folder(
        tmp_path / "meta", SIZES, llama_weights.make_weights(SIZES)
    )
    assert convert(meta, tmp_path / "source", "--to", "hf", "--dtype", "float32") == 0
    return tmp_path / "source"


def set_fields(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_llama_3_1_there_and_back(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_fields(source, rope_theta=500000.0, rope_scaling=SCALING)
    capsys.readouterr()
    assert convert(source, tmp_path / "pax") == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "--fdl.ROPE_THETA=500000.0" in line
    assert "--fdl.ROPE_SCALING=[8.0,1.0,4.0,8192]" in line
    words = ["--rope-theta", "500000", "--rope-scaling", "8,1,4,8192"]
    assert convert(tmp_path / "pax", tmp_path / "hf", "--to", "hf", *words) == 0
    assert huggingface.Source(tmp_path / "hf").sizes.rotary == LLAMA31
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["rope_scaling"] == SCALING
    with errors.expect_reported_error(errors.UNSUPPORTED, where="--to meta"):
        assert convert(source, tmp_path / "out", "--to", "meta") == 2


def test_the_base_is_in_metas_files(source: Path, tmp_path: Path) -> None:
    set_fields(source, rope_theta=500000.0)
    assert convert(source, tmp_path / "out", "--to", "meta") == 0
    assert meta_llama.Source(tmp_path / "out").sizes.rotary == RotaryEmbedding(500_000.0)


@pytest.mark.parametrize(
    ("window", "positions"), [(None, 4096), (1024, 1024), (8192, 4096), ("default", 4096)]
)
def test_mistral(
    window: Any,
    positions: int,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    set_fields(source, **fields, rope_theta=1e6)
    if window != "default":
        set_fields(source, sliding_window=window)
    capsys.readouterr()
    assert convert(source, tmp_path / "out", "--to", "hf") == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["max_position_embeddings"] == positions
    shown = capsys.readouterr().out
    number = 4096 if window == "default" else window
    assert ("text" in shown) == (number is not None)
    assert number is None or f"{number:,}" in shown


def test_mistral_has_eight_key_heads_by_default(source: Path, tmp_path: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    del config["num_key_value_heads"]
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    (source / "config.json").write_text(json.dumps(config))
    with errors.expect_reported_error(errors.UNSUPPORTED, where="config.json", names="8"):
        assert convert(source, tmp_path / "out") == 2


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window": "4096"}, "sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures"),
    ],
)
def test_a_mistral_that_is_not_understood_is_refused(
    fields: dict[str, Any], fact: str, source: Path, tmp_path: Path
) -> None:
    set_fields(source, model_type="mistral", architectures=["MistralForCausalLM"])
    set_fields(source, **fields)
    with errors.collect_errors() as ended:
        assert convert(source, tmp_path / "out") == 2
    assert ended[0].value == fact
    assert not list(tmp_path.glob("*out*"))


def test_heads_that_pax_cannot_compute_are_refused(tmp_path: Path) -> None:
    sizes = ModelSizes(layers=1, dim=32, heads=4, kv_heads=4, head_dim=16, hidden=48, vocab=96)
    tensors = llama_weights.make_weights(sizes)
    dtype = next(iter(tensors.values())).dtype
    (tmp_path / "source").mkdir()
    huggingface.write_model(tmp_path / "source", sizes, tensors.items(), dtype)
    with errors.expect_reported_error(errors.UNSUPPORTED, value="head_dim"):
        assert convert(tmp_path / "source", tmp_path / "out") == 2
    assert convert(tmp_path / "source", tmp_path / "out", "--to", "hf") == 0


@pytest.mark.parametrize("stated", ["8,1,4", "8,1,4,x", "8,1,4,-1", "8,4,4,8192", "0.5,1,4,8192"])
def test_a_scaling_that_is_not_valid_is_refused(stated: str, source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "pax") == 0
    words = ["--to", "hf", "--rope-scaling", stated]
    with errors.collect_errors():
        assert convert(tmp_path / "pax", tmp_path / "out", *words) == 2
    assert not list(tmp_path.glob("*out*"))


def test_states_of_the_optimizer_and_of_fp8_are_named(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(source, tmp_path / "pax") == 0
    state = tmp_path / "pax" / "checkpoints" / "checkpoint_00000000" / "state"
    layer = "params.lm.transformer.x_layers_0.self_attention"
    for name in (
        f"opt_states_0.m.{layer}.post.w",
        f"mdl_vars.{layer}.post.einsum.input_amax_history",
        f"mdl_vars.{layer}.post.einsum.kernel_scale",
    ):
        store = zarr_arrays.create_array(state / name, (4,), [4], "<f4")
        store.write(np.ones(4, np.float32)).result()
    capsys.readouterr()
    assert convert(tmp_path / "pax", tmp_path / "hf", "--to", "hf", "--json") == 0
    dropped = json.loads(capsys.readouterr().out)["result"]["dropped"]
    assert any("FP8" in line and "2" in line for line in dropped)
    assert any("optimizer" in line and "1" in line for line in dropped)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert all(line in card for line in dropped)
    assert "checkpoint_00000000" in card
    store = zarr_arrays.create_array(state / f"mdl_vars.{layer}.post.b", (4,), [4], "<f4")
    store.write(np.ones(4, np.float32)).result()
    with errors.expect_reported_error(errors.UNSUPPORTED, value=f"mdl_vars.{layer}.post.b"):
        assert convert(tmp_path / "pax", tmp_path / "again", "--to", "hf") == 2


def test_the_tokenizer_of_another_folder(source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "pax") == 0
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    words = ["--to", "hf", "--tokenizer", tokenizer]
    with errors.expect_reported_error(errors.MISSING, where="--tokenizer"):
        assert convert(tmp_path / "pax", tmp_path / "hf", *words) == 2
    (tokenizer / "tokenizer.json").write_text("{}")
    (tokenizer / "generation_config.json").write_text('{"eos_token_id": [128001, 128009]}')
    assert convert(tmp_path / "pax", tmp_path / "hf", *words) == 0
    assert (tmp_path / "hf" / "tokenizer.json").read_text() == "{}"
    for file in ("config.json", "generation_config.json"):
        document = json.loads((tmp_path / "hf" / file).read_text())
        assert document["eos_token_id"] == [128001, 128009]
        assert document["bos_token_id"] == 1
    assert pax_llama.Source(tmp_path / "pax").sizes == SIZES
