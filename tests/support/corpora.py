"""Small corpora whose every word can be traced, and recipes over them."""

from __future__ import annotations

import json
import random
import struct
from typing import TYPE_CHECKING, Any

from rosetta.data import data_recipe, tfrecord

if TYPE_CHECKING:
    from pathlib import Path


def make_documents(count: int, *, seed: int = 0, words: int = 30) -> list[str]:
    """Return documents of unique words: w<number>, so that a lost or repeated one shows."""
    chance = random.Random(seed)  # noqa: S311 (made-up text)
    number, found = 0, []
    for _ in range(count):
        length = chance.randint(1, 2 * words)
        found.append(" ".join(f"w{number + place:05d}" for place in range(length)))
        number += length
    return found


def make_sentences(count: int, *, words: int = 300) -> list[str]:
    """Return sentences of made-up words, the same ones in every run.

    Args:
      count: the number of sentences.
      words: how many different words they use. 300 are enough for a vocabulary of 400 pieces, and
        3000 for one of 1000.
    """
    chance = random.Random(0)  # noqa: S311 (made-up text)
    vocabulary = [
        "".join(
            chance.choice("bdfgklmnprstvz") + chance.choice("aeiou")
            for _ in range(chance.randint(1, 4))
        )
        for _ in range(words)
    ]
    return [" ".join(chance.choice(vocabulary) for _ in range(12)) for _ in range(count)]


def write_text_files(folder: Path, docs: list[str], *, files: int = 3) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (folder / f"{number}.txt").write_text(
            "".join(f"{doc}\n" for doc in docs[number::files]), encoding="utf-8"
        )
    return f"text:{folder}/*.txt"


def write_jsonl_files(folder: Path, docs: list[str]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"id": n, "text": doc}) + "\n" for n, doc in enumerate(docs)),
        encoding="utf-8",
    )
    return f"jsonl:{folder}/a.jsonl"


def _encode_field(number: int, body: bytes) -> bytes:
    size, head = len(body), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes(head) + bytes([size]) + body


def encode_example(**features: list[bytes] | list[int] | list[float]) -> bytes:
    """Return a serialised tf.train.Example, written by hand."""
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], bytes):
            kind, content = (
                1,
                b"".join(_encode_field(1, value) for value in values if isinstance(value, bytes)),
            )
        elif isinstance(values[0], float):
            kind, content = 2, _encode_field(1, struct.pack(f"<{len(values)}f", *values))
        else:
            packed = b""
            for value in values:
                rest = int(value) & (1 << 64) - 1
                while rest > 127:
                    packed += bytes([rest & 127 | 128])
                    rest >>= 7
                packed += bytes([rest])
            kind, content = 3, _encode_field(1, packed)
        entries += _encode_field(
            1, _encode_field(1, name.encode()) + _encode_field(2, _encode_field(kind, content))
        )
    return _encode_field(1, entries)


def _frame_record(body: bytes) -> bytes:
    length = struct.pack("<Q", len(body))
    return (
        length
        + struct.pack("<I", tfrecord.compute_masked_crc(length))
        + body
        + struct.pack("<I", tfrecord.compute_masked_crc(body))
    )


def write_tfrecords(path: Path, bodies: list[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(_frame_record, bodies)))


def write_tfds_folder(
    root: Path, name: str, shards: dict[str, list[list[bytes]]], version: str = "1.0.0"
) -> Path:
    """Write a prepared TFDS folder."""
    place = root / name / version
    place.mkdir(parents=True, exist_ok=True)
    splits = []
    for split, parts in shards.items():
        for number, bodies in enumerate(parts):
            write_tfrecords(
                place
                / f"{name.split('/', 1)[0]}-{split}.tfrecord-{number:05d}-of-{len(parts):05d}",
                bodies,
            )
        splits.append(
            {
                "name": split,
                "numBytes": str(sum(len(body) for part in parts for body in part)),
                "shardLengths": [str(len(part)) for part in parts],
            }
        )
    (place / "dataset_info.json").write_text(
        json.dumps({"name": name, "splits": splits}), encoding="utf-8"
    )
    return place


def make_recipe(
    data: str, objective: str = "span_corruption", **changes: Any
) -> data_recipe.Recipe:
    settings: dict[str, Any] = {
        "vocab": "byte",
        "extra_ids": 100,
        "inputs": 64,
        "targets": 32,
        "mean_noise_span_length": 20.0,
    }
    return data_recipe.Recipe(data, objective, **{**settings, **changes})
