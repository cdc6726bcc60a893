"""`rosetta convert t5`: every family from Hugging Face to T5X and back, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("ml_dtypes", "tensorstore")

import ml_dtypes
import numpy as np

from rosetta import cli
from rosetta.convert import (
    layer_file,
    t5_tensors,
    t5x_checkpoint,
    t5x_model,
    torch_file,
    weight_files,
)
from rosetta.data import vocabularies
from rosetta.t5x.run import checkpoint_record
from tests.support import corpora, t5_weights


def convert(*words: object) -> int:
    return cli.main(["convert", "t5", *map(str, words)])


def assert_equal(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert actual[name].tobytes() == tensor.tobytes(), name
        assert actual[name].shape == tensor.shape, name


@pytest.mark.parametrize("family", t5_weights.FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_there_and_back(family: str, dtype: str, tmp_path: Path) -> None:
    config = t5_weights.make_config(family)
    weights = t5_weights.make_weights(
        config, ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
    )
    t5_weights.write_folder(tmp_path / "hf", config, weights, files=3)
    assert convert(tmp_path / "hf", tmp_path / "t5x") == 0
    checkpoint = t5x_checkpoint.Source(tmp_path / "t5x")
    rows = -(-config["vocab_size"] // 128) * 128
    embedding = checkpoint.arrays["target/token_embedder/embedding"]
    assert embedding.shape == (rows, config["d_model"])
    assert not embedding.read()[config["vocab_size"] :].any()
    assert embedding.dtype == np.float32
    assert checkpoint.record is not None
    assert not checkpoint.record.scale_attn_logits
    assert convert(tmp_path / "t5x", tmp_path / "back", "--dtype", dtype) == 0
    assert_equal(t5_weights.read_tensors(tmp_path / "back"), weights)
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    same = {name: written[name] for name in config if name != "model_type"}
    assert same == {name: value for name, value in config.items() if name != "model_type"}
    assert written["scale_decoder_outputs"] is config["tie_word_embeddings"]
    assert (tmp_path / "back" / "README.md").exists()
    assert (tmp_path / "back" / "generation_config.json").exists()
    assert not list(tmp_path.glob(".*"))


def test_the_arrays_are_those_of_the_network(tmp_path: Path) -> None:
    """A matrix is transposed, and gets the name that T5X's network has for it."""
    config = t5_weights.make_config("t5_1_1")
    weights = t5_weights.make_weights(config)
    t5_weights.write_folder(tmp_path / "hf", config, weights)
    assert convert(tmp_path / "hf", tmp_path / "t5x") == 0
    arrays = t5x_checkpoint.Source(tmp_path / "t5x").arrays
    for array_name, tensor_name in {
        "encoder/layers_1/attention/query/kernel": "encoder.block.1.layer.0.SelfAttention.q",
        "encoder/layers_1/mlp/wi_1/kernel": "encoder.block.1.layer.1.DenseReluDense.wi_1",
        "decoder/layers_1/self_attention/out/kernel": "decoder.block.1.layer.0.SelfAttention.o",
        "decoder/layers_1/encoder_decoder_attention/key/kernel": (
            "decoder.block.1.layer.1.EncDecAttention.k"
        ),
        "decoder/layers_0/pre_cross_attention_layer_norm/scale": (
            "decoder.block.0.layer.1.layer_norm"
        ),
        "decoder/layers_0/pre_mlp_layer_norm/scale": "decoder.block.0.layer.2.layer_norm",
        "decoder/relpos_bias/rel_embedding": (
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"
        ),
        "decoder/decoder_norm/scale": "decoder.final_layer_norm",
        "decoder/logits_dense/kernel": "lm_head",
    }.items():
        assert np.array_equal(
            arrays[f"target/{array_name}"].read(), weights[f"{tensor_name}.weight"].T
        ), array_name


def test_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = t5_weights.make_config("t5_1_1")
    weights = t5_weights.make_weights(config)
    t5_weights.write_folder(tmp_path / "hf", config, weights)
    assert convert(tmp_path / "hf", tmp_path / "t5x") == 0
    monkeypatch.setattr(weight_files, "LARGEST_FILE", 20_000)
    assert convert(tmp_path / "t5x", tmp_path / "back") == 0
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 3
    assert_equal(t5_weights.read_tensors(tmp_path / "back"), weights)
    assert convert(tmp_path / "back", tmp_path / "again") == 0


def test_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that are read and written in several blocks are the same."""
    monkeypatch.setattr(t5_tensors, "_BLOCK_VALUES", 200)
    config = t5_weights.make_config("mt5")
    weights = t5_weights.make_weights(config)
    t5_weights.write_folder(tmp_path / "hf", config, weights)
    assert convert(tmp_path / "hf", tmp_path / "t5x") == 0
    assert convert(tmp_path / "t5x", tmp_path / "back") == 0
    assert_equal(t5_weights.read_tensors(tmp_path / "back"), weights)


def test_pytorch_files(tmp_path: Path) -> None:
    config = t5_weights.make_config("t5_1_0")
    weights = t5_weights.make_weights(config)
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    copies = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    tensors = weights | dict.fromkeys(copies, weights["shared.weight"])
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[unused] = np.zeros((32, 4), np.float32)
    writer = torch_file.Writer(
        folder / "pytorch_model.bin",
        {name: tensor.shape for name, tensor in tensors.items()},
        np.dtype("<f4"),
    )
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()
    assert convert(folder, tmp_path / "t5x") == 0
    assert convert(tmp_path / "t5x", tmp_path / "back") == 0
    assert_equal(t5_weights.read_tensors(tmp_path / "back"), weights)


def _write_checkpoint(
    folder: Path, arrays: dict[str, Any], record: checkpoint_record.Record | None
) -> None:
    shapes = {f"target/{name}": array.shape for name, array in arrays.items()}
    with t5x_checkpoint.Writer(folder, 3, shapes, np.dtype("<f4"), record) as writer:
        for name, array in arrays.items():
            writer.write(f"target/{name}", (0,) * array.ndim, np.ascontiguousarray(array))


def _stack_layers(arrays: dict[str, Any], heads: int) -> dict[str, Any]:
    """The arrays as T5X's scalable_t5 has them: heads apart, and layers along the second axis."""
    stacked = {name: array for name, array in arrays.items() if "/layers_" not in name}
    for side in ("encoder", "decoder"):
        count = len({name.split("/")[1] for name in arrays if name.startswith(f"{side}/layers_")})
        for name in [name for name in arrays if name.startswith(f"{side}/layers_0/")]:
            rest = name.removeprefix(f"{side}/layers_0/")
            layers = []
            for layer in range(count):
                array = arrays[f"{side}/layers_{layer}/{rest}"]
                if rest.endswith(("query/kernel", "key/kernel", "value/kernel")):
                    array = array.reshape(array.shape[0], heads, -1)
                elif rest.endswith("out/kernel"):
                    array = array.reshape(heads, -1, array.shape[1])
                layers.append(array)
            stacked[f"{side}/{side}/{rest}"] = np.stack(layers, 1)
    return stacked


@pytest.mark.parametrize("block_bytes", [0, 512, 1 << 26])
@pytest.mark.parametrize("family", ["umt5", "t5_1_1"])
def test_stacked_layers(
    family: str, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the same whether small stacks are decoded into a file, in blocks, or not."""
    if block_bytes:
        monkeypatch.setattr(t5x_model, "_SMALL_STACK", 0)
        monkeypatch.setattr(layer_file, "_BLOCK_BYTES", block_bytes)
    config = t5_weights.make_config(family)
    weights = t5_weights.make_weights(config)
    t5_weights.write_folder(tmp_path / "hf", config, weights)
    assert convert(tmp_path / "hf", tmp_path / "t5x") == 0
    source = t5x_checkpoint.Source(tmp_path / "t5x")
    arrays = {
        name.removeprefix("target/"): array.read()
        for name, array in source.arrays.items()
        if name.startswith("target/")
    }
    stacked = _stack_layers(arrays, config["num_heads"])
    assert len(stacked) < len(arrays)
    _write_checkpoint(tmp_path / "stacked", stacked, source.record)
    assert convert(tmp_path / "stacked", tmp_path / "back") == 0
    assert_equal(t5_weights.read_tensors(tmp_path / "back"), weights)
    assert convert(tmp_path / "stacked", tmp_path / "separate", "--to", "t5x") == 0
    again = t5x_checkpoint.Source(tmp_path / "separate").arrays
    assert_equal({name: again[f"target/{name}"].read() for name in arrays}, arrays)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("family", "exact"), [("ul2", True), ("t5_1_1", False)])
def test_scaled_attention_is_folded(
    family: str, exact: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A head of 256 is divided by 16; one of 8 by the root of 8, with a line on the rounding."""
    config = t5_weights.make_config(family)
    weights = t5_weights.make_weights(config)
    t5_weights.write_folder(tmp_path / "hf", config, weights)
    assert convert(tmp_path / "hf", tmp_path / "t5x") == 0
    path = tmp_path / "t5x" / "checkpoint_0" / checkpoint_record.RECORD_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"scale_attn_logits": True}))
    capsys.readouterr()
    assert convert(tmp_path / "t5x", tmp_path / "back") == 0
    out = capsys.readouterr().out
    exported = t5_weights.read_tensors(tmp_path / "back")
    root = np.float32(config["d_kv"]) ** np.float32(0.5)
    for name, tensor in weights.items():
        if name.endswith("Attention.q.weight"):
            assert np.array_equal(exported[name], tensor / root), name
            assert np.array_equal(exported[name] * root, tensor) is exact or not exact
        else:
            assert np.array_equal(exported[name], tensor), name
    assert ("e-0" in out) is not exact


@pytest.mark.parametrize("sentinels", [None, 7])
def test_an_import_records_its_vocabulary(sentinels: int | None, tmp_path: Path) -> None:
    sentencepiece: Any = required_modules.need_modules("sentencepiece")
    config = t5_weights.make_config("t5_1_1")
    t5_weights.write_folder(tmp_path / "hf", config, t5_weights.make_weights(config))
    with (tmp_path / "hf" / "spiece.model").open("wb") as body:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpora.make_sentences(300)),
            model_writer=body,
            vocab_size=60,
            hard_vocab_limit=False,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
        )
    if sentinels is not None:
        settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": sentinels}
        (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(settings))
    assert convert(tmp_path / "hf", tmp_path / "t5x") == 0
    record = t5x_checkpoint.Source(tmp_path / "t5x").record
    assert record is not None
    vocabulary = vocabularies.load_vocabulary(str(tmp_path / "hf"))
    assert vocabulary.extra_ids == (100 if sentinels is None else sentinels)
    assert record.vocabulary == vocabulary.fingerprint()
    # So an export is refused with another number of sentinels.
    model = tmp_path / "hf" / "spiece.model"
    words = ("--vocab", model, "--extra-ids", 9, "--vocab-size", 256)
    assert convert(tmp_path / "t5x", tmp_path / "other", *words) == 2
