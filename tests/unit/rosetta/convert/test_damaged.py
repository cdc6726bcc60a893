"""Damaged and hostile models end `rosetta convert llama` in one line with status 2, before memory is taken for what they claim."""

from __future__ import annotations

import collections
import json
import pickle
import pickletools
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
import tensorstore  # type: ignore[import-not-found]

from rosetta import cli
from rosetta.convert import torch_file, zarr_arrays
from tests.support import llama_weights
from tests.unit.rosetta.convert.test_unused_input import copy_model, models, refused

__all__ = ["models"]

DEEP = "[" * 100_000 + "]" * 100_000


def change_header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite the header of model.safetensors."""
    path = folder / "model.safetensors"
    body = path.read_bytes()
    (length,) = struct.unpack("<Q", body[:8])
    header = json.loads(body[8 : 8 + length])
    change(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + body[8 + length :])


def first(header: dict[str, Any]) -> dict[str, Any]:
    tensor: dict[str, Any] = header["model.embed_tokens.weight"]
    return tensor


def write_header(folder: Path, text: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def write_index(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HUGGING_FACE: dict[str, Callable[[Path], object]] = {
    "config, deep": lambda folder: (folder / "config.json").write_text('{"a": ' + DEEP + "}"),
    "config, a list": lambda folder: (folder / "config.json").write_text("[]"),
    "config, not UTF-8": lambda folder: (folder / "config.json").write_bytes(b'{"a": "\xff"}'),
    "config, a name twice": lambda folder: (folder / "config.json").write_text(
        '{"model_type": "llama", "model_type": "llama"}'
    ),
    "config, a long number": lambda folder: (folder / "config.json").write_text(
        '{"model_type": ' + "9" * 10_000 + "}"
    ),
    "config, a folder": lambda folder: replace_by_folder(folder / "config.json"),
    "header, shape of floats": lambda folder: change_header(
        folder, lambda header: first(header).update(shape=[96.0, 32.0])
    ),
    "header, negative shape": lambda folder: change_header(
        folder, lambda header: first(header).update(shape=[-96, -32])
    ),
    "header, shape of booleans": lambda folder: change_header(
        folder, lambda header: first(header).update(shape=[True])
    ),
    "header, shape a number": lambda folder: change_header(
        folder, lambda header: first(header).update(shape=5)
    ),
    "header, shape of texts": lambda folder: change_header(
        folder, lambda header: first(header).update(shape=["96", "32"])
    ),
    "header, offsets of floats": lambda folder: change_header(
        folder, lambda header: first(header).update(data_offsets=[0.0, 6144.0])
    ),
    "header, three offsets": lambda folder: change_header(
        folder, lambda header: first(header).update(data_offsets=[0, 6144, 1])
    ),
    "header, dtype a list": lambda folder: change_header(
        folder, lambda header: first(header).update(dtype=["BF16"])
    ),
    "header, dtype of 8 bits": lambda folder: change_header(
        folder, lambda header: first(header).update(dtype="F8_E4M3")
    ),
    "header, tensor a list": lambda folder: change_header(
        folder, lambda header: header.update({"model.norm.weight": []})
    ),
    "header, tensors share bytes": lambda folder: change_header(
        folder,
        lambda header: header.update(
            {"model.norm.weight": {"dtype": "BF16", "shape": [32], "data_offsets": [0, 64]}}
        ),
    ),
    "header, a tensor left out": lambda folder: change_header(
        folder, lambda header: header.pop("model.norm.weight")
    ),
    "header, deep": lambda folder: write_header(folder, DEEP.encode()),
    "header, a list": lambda folder: write_header(folder, b"[]"),
    "header, longer than the file": lambda folder: (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", 99_000_000) + b"{}"
    ),
    "header, as long as can be": lambda folder: (folder / "model.safetensors").write_bytes(
        b"\xff" * 64
    ),
    "header, not UTF-8": lambda folder: write_header(folder, b"\xff\xfe"),
    "index, a list": lambda folder: write_index(folder, "[]"),
    "index, weight_map a list": lambda folder: write_index(
        folder, '{"weight_map": ["model.safetensors"]}'
    ),
    "index, weight_map missing": lambda folder: write_index(folder, "{}"),
    "index, weight_map of numbers": lambda folder: write_index(
        folder, '{"weight_map": {"a": 1, "b": "model.safetensors"}}'
    ),
    "index, names a folder above": lambda folder: write_index(
        folder, '{"weight_map": {"a": "../model.safetensors"}}'
    ),
    "index, names nothing": lambda folder: write_index(folder, '{"weight_map": {}}'),
    "index, deep": lambda folder: write_index(folder, '{"weight_map": ' + DEEP + "}"),
}


@pytest.mark.parametrize("spoil", HUGGING_FACE.values(), ids=HUGGING_FACE)
def test_damaged_hugging_face_models_are_refused(
    spoil: Callable[[Path], object],
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = copy_model(models, "hf", tmp_path)
    spoil(source)
    refused(source, tmp_path, capsys)


def rewrite(
    path: Path, change: Callable[[bytes], bytes] = bytes, kind: int = zipfile.ZIP_STORED
) -> None:
    """Write a file of PyTorch's again, with another pickle or compression."""
    with zipfile.ZipFile(path) as archive:
        bodies = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, body in bodies.items():
            archive.writestr(name, change(body) if name.endswith("data.pkl") else body)


def set_flag(path: Path, bit: int) -> None:
    """Set a flag of each record of a zip file, in its directory and before it."""
    body = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        place = body.find(mark)
        while place >= 0:
            body[place + offset] |= bit
            place = body.find(mark, place + 4)
    path.write_bytes(bytes(body))


def damage_deflate(path: Path) -> None:
    rewrite(path, kind=zipfile.ZIP_DEFLATED)
    body = bytearray(path.read_bytes())
    place = body.index(b"data.pkl") + 30
    body[place : place + 40] = b"\xff" * 40
    path.write_bytes(bytes(body))


def pickled(value: bytes) -> Callable[[Path], None]:
    return lambda path: rewrite(path, lambda _: value)


PROTO, STOP = pickle.PROTO + b"\x04", pickle.STOP
PICKLES: dict[str, bytes] = {
    "a place in the memo": PROTO
    + pickle.EMPTY_DICT
    + pickle.LONG_BINPUT
    + struct.pack("<I", 1 << 31)
    + STOP,
    "a place in the memo, as text": PROTO + pickle.EMPTY_DICT + pickle.PUT + b"999999999\n" + STOP,
    "bytes": PROTO + pickle.EMPTY_DICT + pickle.BINBYTES8 + struct.pack("<Q", 1 << 35) + STOP,
    "a byte array": pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 35) + STOP,
    "a frame": PROTO + pickle.FRAME + struct.pack("<Q", 1 << 40) + pickle.EMPTY_DICT + STOP,
    "a text": PROTO + pickle.BINUNICODE8 + struct.pack("<Q", 1 << 40) + STOP,
    "a long number": PROTO + pickle.LONG4 + struct.pack("<i", (1 << 31) - 1) + STOP,
    "an empty pickle": b"",
    "no end": PROTO + pickle.EMPTY_DICT,
    "a number": PROTO + pickle.BININT1 + b"\x05" + STOP,
    "a list": PROTO + pickle.EMPTY_LIST + STOP,
    "no tensors": pickle.dumps({"iteration": 3}),
    "a dictionary of another": pickle.dumps({"model": {"a": 1}}),
    "numbers as names": pickle.dumps({1: 2}),
    "deep tuples": PROTO + pickle.EMPTY_TUPLE + pickle.TUPLE1 * 200_000 + STOP,
    "an unknown class": pickle.dumps(collections.Counter()),
    "an extension": PROTO + pickle.EXT1 + b"\x01" + STOP,
    "a call of a dictionary": PROTO + pickle.EMPTY_DICT + pickle.EMPTY_TUPLE + pickle.REDUCE + STOP,
    "a state for a type": PROTO
    + pickle.GLOBAL
    + b"torch\nHalfStorage\n"
    + pickle.EMPTY_DICT
    + pickle.BUILD
    + STOP,
}
META: dict[str, Callable[[Path], object]] = {
    **{f"pickle, {name}": pickled(value) for name, value in PICKLES.items()},
    "encrypted": lambda path: set_flag(path, 1),
    "deflated": lambda path: rewrite(path, kind=zipfile.ZIP_DEFLATED),
    "deflated and damaged": damage_deflate,
    "LZMA": lambda path: rewrite(path, kind=zipfile.ZIP_LZMA),
    "text": lambda path: path.write_text("weights"),
    "empty": lambda path: path.write_bytes(b""),
    "an empty archive": lambda path: zipfile.ZipFile(path, "w").close(),
    "an older file of PyTorch": lambda path: path.write_bytes(
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
    ),
}


@pytest.mark.parametrize("spoil", META.values(), ids=META)
def test_damaged_meta_models_are_refused(
    spoil: Callable[[Path], object],
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = copy_model(models, "meta", tmp_path)
    spoil(source / "consolidated.00.pth")
    refused(source, tmp_path, capsys)


def test_a_pickle_does_not_move_a_tensor(models: Path, tmp_path: Path) -> None:
    """A state given to a tensor after it was checked could make it read what lies elsewhere."""
    source = copy_model(models, "meta", tmp_path) / "consolidated.00.pth"
    assert torch_file.read_tensors(source)

    def move(body: bytes) -> bytes:
        opcodes = [
            (opcode.name, place)
            for opcode, _, place in pickletools.genops(body)
            if place is not None
        ]
        # The first tensor is called after its arguments, which are a tuple that ends in a call.
        calls = [
            place
            for (name, place), (before, _) in zip(opcodes[1:], opcodes, strict=False)
            if (before, name) == ("TUPLE", "REDUCE")
        ]
        reduced = calls[0]
        state = (
            pickle.EMPTY_DICT
            + pickle.BINUNICODE
            + struct.pack("<I", 5)
            + b"start"
            + pickle.BININT1
            + b"\x01"
            + pickle.SETITEM
            + pickle.BUILD
        )
        return body[: reduced + 1] + state + body[reduced + 1 :]

    rewrite(source, move)
    with errors.expect_user_error(errors.DAMAGED, names="PyTorch"):
        torch_file.read_tensors(source)


def remove_chunk_of_zeros(array: Path) -> None:
    """Remove a chunk of an array that says which values a missing chunk has."""
    array.write_text(json.dumps(json.loads(array.read_text()) | {"fill_value": 0.0}))
    (array.parent / "0").unlink()


PAX: dict[str, Callable[[Path], object]] = {
    "shape a number": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"shape": 5})
    ),
    "shape of floats": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"shape": [32.0]})
    ),
    "negative shape": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"shape": [-32]})
    ),
    "huge shape": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"shape": [10**30]})
    ),
    "numbers of another type": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"dtype": "<i4"})
    ),
    "a codec that does not exist": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"compressor": {"id": "none of these"}})
    ),
    "deep": lambda array: array.write_text(DEEP),
    "missing": lambda array: array.unlink(),
    "a chunk missing": lambda array: (array.parent / "0").unlink(),
    "a chunk that is a folder": lambda array: replace_by_folder(array.parent / "0"),
    "another chunk missing": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"chunks": [16]})
    ),
    "a chunk missing, with a fill value": remove_chunk_of_zeros,
    "chunks of nothing": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"chunks": [0]})
    ),
    "chunks of texts": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"chunks": ["32"]})
    ),
    "too many chunks": lambda array: array.write_text(
        json.dumps(json.loads(array.read_text()) | {"chunks": [32, 1]})
    ),
    "a chunk of another kind": lambda array: (array.parent / "0").write_bytes(b"chunk"),
}


@pytest.mark.parametrize("spoil", PAX.values(), ids=PAX)
@pytest.mark.parametrize("name", ["final_ln.scale", "transformer.x_layers_1.layer_norm.scale"])
def test_damaged_pax_checkpoints_are_refused(
    name: str,
    spoil: Callable[[Path], object],
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = copy_model(models, "pax", tmp_path)
    spoil(
        source
        / "checkpoints"
        / "checkpoint_00000000"
        / "state"
        / f"mdl_vars.params.lm.{name}"
        / ".zarray"
    )
    refused(source, tmp_path, capsys, "--to", "hf")


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("layers", ["by themselves", "repeated", "adapted by LoRA"])
def test_a_missing_chunk_is_refused(
    layers: str, separator: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorStore reads a missing chunk as zeros: each chunk of each array has to be there, before anything is written."""
    source = tmp_path / "pax"
    words = ["--repeated"] if layers == "repeated" else []
    assert cli.main(["convert", "llama", str(models / "meta"), str(source), *words]) == 0
    prefix = (
        "transformer.repeat.sub.x_layers_0." if layers == "repeated" else "transformer.x_layers_1."
    )
    array = (
        source
        / "checkpoints"
        / "checkpoint_00000000"
        / "state"
        / f"mdl_vars.params.lm.{prefix}ff_layer.ffn_layer2.linear.w"
    )
    held = np.asarray(
        tensorstore.open({"driver": "zarr", "kvstore": {"driver": "file", "path": str(array)}})
        .result()
        .read()
        .result()
    )
    if layers == "adapted by LoRA":
        held, plain = np.ones((held.shape[0], 2), np.float32), array
        array = plain.with_name(plain.name.removesuffix("w") + "lora_a")
        zarr_arrays.create_array(
            plain.with_name(plain.name.removesuffix("w") + "lora_b"), (32, 2), [32, 2], "<f4"
        ).write(np.ones((32, 2), np.float32)).result()
    else:
        shutil.rmtree(array)
    metadata = {
        "shape": list(held.shape),
        "chunks": [-(-size // 2) for size in held.shape],
        "dtype": "<f4",
        "dimension_separator": separator,
    }
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(array)},
        "metadata": metadata,
        "create": True,
    }
    tensorstore.open(spec).result().write(held).result()
    chunks = sorted(path for path in array.rglob("*") if path.is_file() and path.name != ".zarray")
    assert len(chunks) == 2**held.ndim
    assert cli.main(["convert", "llama", str(source), str(tmp_path / "whole"), "--to", "hf"]) == 0
    shutil.rmtree(tmp_path / "whole")
    chunks[-1].unlink()
    capsys.readouterr()
    assert str(chunks[-1].relative_to(array)) in refused(source, tmp_path, capsys, "--to", "hf")


def test_a_lora_adapter_of_another_size_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "pax", tmp_path)
    state = source / "checkpoints" / "checkpoint_00000000" / "state"
    for which, size in (("a", (48, 4)), ("b", (32, 3))):
        array = (
            state
            / f"mdl_vars.params.lm.transformer.x_layers_1.ff_layer.ffn_layer2.linear.lora_{which}"
        )
        zarr_arrays.create_array(array, size, list(size), "<f4").write(
            np.ones(size, np.float32)
        ).result()
    assert "do not fit" in refused(source, tmp_path, capsys, "--to", "hf")


def test_chunks_of_zeros_are_read(tmp_path: Path) -> None:
    shape = llama_weights.MODELS["heads"]
    tensors = {
        name: np.zeros_like(tensor) for name, tensor in llama_weights.make_weights(shape).items()
    }
    source = llama_weights.write_meta_folder(tmp_path / "zeros", shape, tensors)
    assert cli.main(["convert", "llama", str(source), str(tmp_path / "pax")]) == 0
    assert (
        cli.main(["convert", "llama", str(tmp_path / "pax"), str(tmp_path / "hf"), "--to", "hf"])
        == 0
    )


def test_a_huge_layer_number_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "pax", tmp_path)
    state = source / "checkpoints" / "checkpoint_00000000" / "state"
    norm = state / "mdl_vars.params.lm.transformer.x_layers_1.layer_norm.scale"
    shutil.copytree(norm, state / norm.name.replace("x_layers_1", "x_layers_999999999"))
    refused(source, tmp_path, capsys, "--to", "hf")
