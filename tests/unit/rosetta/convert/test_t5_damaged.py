"""`rosetta convert t5` refuses damaged and odd input in one line, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("ml_dtypes", "tensorstore")

import numpy as np

from rosetta import cli
from rosetta.convert import t5x_checkpoint, zarr_arrays
from rosetta.t5x.run import checkpoint_record
from tests.support import t5_weights

CONFIG = t5_weights.make_config("t5_1_1")
WEIGHTS = t5_weights.make_weights(CONFIG)
TIED = t5_weights.make_config("t5_1_0")
QUERY = "encoder.block.0.layer.0.SelfAttention.q.weight"


def convert(*words: object) -> int:
    return cli.main(["convert", "t5", *map(str, words)])


def refuse(
    source: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    *words: str,
    **facts: Any,
) -> None:
    """Convert what has to be refused: one line, and nothing written."""
    folder = source.parent
    before = sorted(folder.rglob("*"))
    capsys.readouterr()
    with errors.expect_reported_error(kind, **facts):
        assert convert(source, folder / "out", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return t5_weights.write_folder(tmp_path / "hf", CONFIG, WEIGHTS, files=2)


def _truncate(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    os.truncate(path, path.stat().st_size - 4)


def _lengthen(folder: Path) -> None:
    with (folder / "model-00002-of-00002.safetensors").open("ab") as file:
        file.write(b"\0\0\0\0")


def _damage_header(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[8] = ord("[")
    path.write_bytes(data)


def _lose_file(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").unlink()


def _leave_folder(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    weight_map[QUERY] = "../hf2/model.safetensors"
    index.write_text(json.dumps({"weight_map": weight_map}))


def _damage_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": [1]}')


def _repeat_tensor(folder: Path) -> None:
    t5_weights.write_tensors(folder / "model-00001-of-00002.safetensors", WEIGHTS)


def _add_file(folder: Path) -> None:
    t5_weights.write_tensors(folder / "model-3.safetensors", {"a": np.ones(3, np.float32)})


def _add_other_format(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"")


def _add_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def _cut_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text()[:-5])


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (_truncate, errors.DAMAGED),
        (_lengthen, errors.DAMAGED),
        (_damage_header, errors.DAMAGED),
        (_lose_file, errors.MISSING),
        (_leave_folder, errors.MISSING),
        (_damage_index, errors.DAMAGED),
        (_repeat_tensor, errors.CONFLICT),
        (_add_file, errors.CONFLICT),
        (_add_other_format, errors.CONFLICT),
        (_add_adapter, errors.UNSUPPORTED),
        (_cut_config, errors.DAMAGED),
    ],
)
def test_damaged_files(
    damage: Callable[[Path], None], kind: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(model)
    refuse(model, capsys, kind)


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"extra.weight": np.ones((2, 2), np.float32)}, errors.UNSUPPORTED, "extra.weight"),
        (
            {"encoder.block.3.layer.0.layer_norm.weight": np.ones(24, np.float32)},
            errors.UNSUPPORTED,
            "encoder.block.3.layer.0.layer_norm.weight",
        ),
        ({QUERY: None}, errors.MISSING, QUERY),
        ({QUERY: np.ones((24, 32), np.float32)}, errors.DIFFERS, QUERY),
        ({"lm_head.weight": None}, errors.MISSING, "lm_head.weight"),
        ({"shared.weight": None}, errors.MISSING, "shared.weight"),
        (
            {"encoder.embed_tokens.weight": np.ones((128, 24), np.float32)},
            errors.CONFLICT,
            "encoder.embed_tokens.weight",
        ),
        (
            {"lm_head.weight": np.ones((127, 24), np.float32)},
            errors.DIFFERS,
            "lm_head.weight",
        ),
    ],
)
def test_other_tensors(
    changes: dict[str, Any],
    kind: str,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tensors = {name: tensor for name, tensor in (WEIGHTS | changes).items() if tensor is not None}
    folder = t5_weights.write_folder(tmp_path / "hf", CONFIG, tensors)
    refuse(folder, capsys, kind, value=name)


def test_the_unused_bias_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    folder = t5_weights.write_folder(
        tmp_path / "hf", CONFIG, WEIGHTS | {name: np.ones((32, 4), np.float32)}
    )
    assert convert(folder, tmp_path / "t5x") == 0
    assert name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "longt5"),
        ("model_type", None),
        ("architectures", ["T5EncoderModel"]),
        ("architectures", ["T5ForSequenceClassification"]),
        ("feed_forward_proj", "gated-gelu_10"),
        ("feed_forward_proj", "gated-mish"),
        ("feed_forward_proj", "gelu"),
        ("dense_act_fn", "gelu"),
        ("dense_act_fn", "quick_gelu"),
        ("relative_attention_num_buckets", 64),
        ("relative_attention_max_distance", 256),
        ("layer_norm_epsilon", 1e-5),
        ("decoder_start_token_id", 2),
        ("pad_token_id", 3),
        ("is_encoder_decoder", False),
        ("is_decoder", True),
        ("tie_encoder_decoder", True),
        ("quantization_config", {"bits": 4}),
        ("encoder_attention_type", "local"),
        ("something_of_2031", 0),
        ("num_layers", 10**9),
        ("d_model", 24.0),
        ("num_heads", True),
        ("vocab_size", "128"),
    ],
)
def test_other_models(
    field: str, value: Any, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    refuse(model, capsys, errors.UNSUPPORTED)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("feed_forward_proj", "local-gelu"),
        ("feed_forward_proj", 3),
        ("is_gated_act", "yes"),
        ("tie_word_embeddings", "no"),
        ("scale_decoder_outputs", 1),
        ("dropout_rate", "0.1"),
    ],
)
def test_invalid_fields(
    field: str, value: Any, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    refuse(model, capsys, errors.INVALID, names=field)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "I8", "F64"])
def test_other_types(dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = t5_weights.write_folder(tmp_path / "hf", CONFIG, WEIGHTS)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header[QUERY]["dtype"] = dtype
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + length :])
    refuse(folder, capsys, errors.UNSUPPORTED, value=dtype)


def test_float16_is_read_and_what_it_cannot_hold_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    halves: dict[str, Any] = {name: tensor.astype(np.float16) for name, tensor in WEIGHTS.items()}
    t5_weights.write_folder(tmp_path / "half", CONFIG, halves)
    assert convert(tmp_path / "half", tmp_path / "t5x") == 0
    assert convert(tmp_path / "t5x", tmp_path / "back", "--dtype", "float16") == 0
    back = t5_weights.read_tensors(tmp_path / "back")
    assert all(np.array_equal(back[name], tensor) for name, tensor in halves.items())
    large = WEIGHTS | {QUERY: np.full((32, 24), 1e6, np.float32)}
    t5_weights.write_folder(tmp_path / "large", CONFIG, large)
    assert convert(tmp_path / "large", tmp_path / "large-t5x") == 0
    refuse(tmp_path / "large-t5x", capsys, errors.TOO_BIG, "--dtype", "float16", value=QUERY)


class _Program:
    """An object whose pickle would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_with_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("pytorch_model/data.pkl", pickle.dumps({"a": _Program(tmp_path / "ran")}))
    capsys.readouterr()
    assert convert(folder, tmp_path / "out") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


# The last two columns: whether lm_head.weight is there, and whether it differs from the embedding.
@pytest.mark.parametrize(
    ("fields", "has_output", "differs", "kind", "is_tied"),
    [
        ({"tie_word_embeddings": True}, False, False, "", True),
        ({"tie_word_embeddings": True}, True, False, "", True),
        ({"tie_word_embeddings": True}, True, True, errors.CONFLICT, None),
        ({}, False, False, "", True),
        ({"tie_word_embeddings": False}, True, True, "", False),
        ({"tie_word_embeddings": False}, False, False, errors.MISSING, None),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, True, True, "", False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False, False, "", False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, False, False, "", True),
        (
            {"tie_word_embeddings": False, "scale_decoder_outputs": True},
            True,
            True,
            errors.CONFLICT,
            None,
        ),
        ({"model_type": "mt5"}, True, True, "", False),
        ({"model_type": "mt5", "tie_word_embeddings": True}, False, False, errors.CONFLICT, None),
        (
            {
                "model_type": "mt5",
                "tie_word_embeddings": True,
                "transformers_version": "4.57.6",
            },
            False,
            False,
            "",
            True,
        ),
        (
            {"model_type": "mt5", "tie_word_embeddings": True, "transformers_version": "5.24.0"},
            False,
            False,
            "",
            False,
        ),
        (
            {"model_type": "mt5", "tie_word_embeddings": True, "transformers_version": "5.24.0"},
            True,
            True,
            "",
            False,
        ),
    ],
)
def test_output_layer(
    fields: dict[str, Any],
    has_output: bool,
    differs: bool,
    kind: str,
    is_tied: bool | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What each version of transformers writes about its output layer is understood."""
    config = {name: value for name, value in CONFIG.items() if name != "tie_word_embeddings"}
    tensors = {name: tensor for name, tensor in WEIGHTS.items() if name != "lm_head.weight"}
    if has_output:
        tensors["lm_head.weight"] = WEIGHTS["lm_head.weight" if differs else "shared.weight"]
    folder = t5_weights.write_folder(tmp_path / "hf", config | fields, tensors)
    if kind:
        refuse(folder, capsys, kind)
        return
    assert convert(folder, tmp_path / "t5x") == 0
    arrays = t5x_checkpoint.Source(tmp_path / "t5x").arrays
    kernel = arrays.get("target/decoder/logits_dense/kernel")
    assert (kernel is None) is is_tied
    if kernel is not None:
        expected = tensors.get("lm_head.weight", tensors["shared.weight"])
        assert np.array_equal(kernel.read(), expected.T)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    t5_weights.write_folder(tmp_path / "hf", CONFIG, WEIGHTS)
    assert convert(tmp_path / "hf", tmp_path / "t5x") == 0
    shutil.rmtree(tmp_path / "hf")
    return tmp_path / "t5x"


def _rewrite(folder: Path, change: Callable[[dict[str, Any]], Any], **record: Any) -> Path:
    """Write the checkpoint anew, with other arrays or another record."""
    source = t5x_checkpoint.Source(folder)
    arrays = {
        name: array.read() for name, array in source.arrays.items() if name.startswith("target/")
    }
    change(arrays)
    assert source.record is not None
    fields = vars(source.record) | record
    new = checkpoint_record.Record(**fields)
    shapes = {name: array.shape for name, array in arrays.items()}
    out = folder.with_name("changed")
    with t5x_checkpoint.Writer(out, 0, shapes, np.dtype("<f4"), new) as writer:
        for name, array in arrays.items():
            writer.write(name, (0,) * array.ndim, array)
    shutil.rmtree(folder)
    return out


def test_decoder_only(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def drop_encoder(arrays: dict[str, Any]) -> None:
        for name in [name for name in arrays if name.startswith("target/encoder/")]:
            del arrays[name]

    refuse(_rewrite(checkpoint, drop_encoder), capsys, errors.UNSUPPORTED)


def test_other_arrays(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "decoder/adapter/kernel"
    changed = _rewrite(
        checkpoint, lambda arrays: arrays.update({f"target/{name}": np.ones(2, "f4")})
    )
    refuse(changed, capsys, errors.UNSUPPORTED, value=name)


def test_a_missing_array(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "decoder/layers_1/mlp/wo/kernel"
    changed = _rewrite(checkpoint, lambda arrays: arrays.pop(f"target/{name}"))
    refuse(changed, capsys, errors.MISSING, value=name)


def test_a_record_of_another_model(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = t5x_checkpoint.Source(checkpoint)
    assert source.record is not None
    config = source.record.config | {"mlp_dim": "41"}
    changed = _rewrite(checkpoint, lambda _: None, config=config)
    refuse(changed, capsys, errors.DIFFERS, value="mlp_dim")


def test_no_record(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "checkpoint_0" / checkpoint_record.RECORD_FILE).unlink()
    refuse(checkpoint, capsys, errors.MISSING)


@pytest.mark.parametrize("dtype", ["<f8", "<i4"])
def test_an_array_of_another_type(
    dtype: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A conversion would have to round such values."""
    name = "encoder/layers_0/attention/query/kernel"
    folder = checkpoint / "checkpoint_0" / "state" / f"target/{name}".replace("/", ".")
    shape = zarr_arrays.read_array_folder(folder.parent, folder.name).shape
    shutil.rmtree(folder)
    zarr_arrays.create_array(folder, shape, shape, dtype).write(np.ones(shape, dtype)).result()
    refuse(checkpoint, capsys, errors.UNSUPPORTED, value=name)


@pytest.mark.parametrize("activations", ["gelu,gelu", "softplus", "('elu', 'linear')"])
def test_activations_that_transformers_lacks(
    activations: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(checkpoint, capsys, errors.UNSUPPORTED, "--activations", activations)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("--to", "t5x"), errors.CONFLICT),
        (("--step", "3"), errors.CONFLICT),
        (("--extra-ids", "3"), errors.CONFLICT),
        (("--vocab-size", "100000"), errors.TOO_BIG),
        (("--activations", "relu"), errors.UNSUPPORTED),
    ],
)
def test_options(
    words: tuple[str, ...], kind: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(checkpoint, capsys, kind, *words)


def test_a_vocabulary_for_a_checkpoint(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuse(model, capsys, errors.CONFLICT, "--vocab", "byte", where="--vocab")


def test_out_that_exists(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model.parent / "out").mkdir()
    (model.parent / "out" / "mine").write_text("kept")
    refuse(model, capsys, errors.EXISTS)


def test_a_full_disk(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(model)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    refuse(model, capsys, errors.TOO_BIG)
