"""The same documents or pairs as a source of each kind that has its own reader.

A kind whose package is not in this environment is skipped by the test that asks for it.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import importlib
import json
import lzma
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support import corpora

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Record = dict[str, str]


def import_package(name: str) -> Any:
    """Return a package, or skip the test if the package is not in this environment.

    The benchmarks use this module, too, in environments without pytest.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        required_modules = importlib.import_module("tests.support.required_modules")
        return required_modules.need_modules(name)


def compress(body: bytes, suffix: str) -> bytes:
    """Return the compressed body, in two frames, as programs that work in parallel leave it."""
    modules: dict[str, Any] = {".gz": gzip, ".bz2": bz2, ".xz": lzma}
    if suffix == ".zst":
        modules[".zst"] = import_package("zstandard")
    return b"".join(modules[suffix].compress(part) for part in (body[:100], body[100:]))


def write_csv(path: Path, records: Sequence[Mapping[str, str]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return f"csv:{path}"


def write_tsv(path: Path, records: Sequence[Mapping[str, str]]) -> str:
    rows = [list(records[0]), *(list(record.values()) for record in records)]
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return f"tsv:{path}"


def write_jsonl(path: Path, records: Sequence[Mapping[str, str]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return f"jsonl:{path}"


def _write_compressed(suffix: str) -> Callable[[Path, Sequence[Record]], str]:
    """Return a function that writes compressed JSON lines."""

    def write(folder: Path, records: Sequence[Record]) -> str:
        plain = folder / "a.jsonl"
        write_jsonl(plain, records)
        path = folder / f"a.jsonl{suffix}"
        path.write_bytes(compress(plain.read_bytes(), suffix))
        plain.unlink()
        return f"jsonl:{path}"

    return write


def write_parquet(path: Path, records: Sequence[Mapping[str, Any]]) -> str:
    """Write a Parquet file of several groups of rows."""
    module = import_package("pyarrow.parquet")
    pyarrow = import_package("pyarrow")
    table = pyarrow.Table.from_pylist(list(records))
    module.write_table(table, path, row_group_size=max(1, len(records) // 3))
    return f"parquet:{path}"


def write_saved_set(folder: Path, records: Sequence[Mapping[str, Any]]) -> str:
    """Write a Hugging Face set of two files with save_to_disk."""
    datasets = import_package("datasets")
    datasets.disable_progress_bars()
    splits = {"train": datasets.Dataset.from_list(list(records))}
    datasets.DatasetDict(splits).save_to_disk(str(folder), num_shards={"train": 2})
    return f"hf:{folder}"


def write_array_records(
    path: Path, records: Sequence[Mapping[str, str]], group_size: int = 7
) -> str:
    module = import_package("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), f"group_size:{group_size}")
    for record in records:
        features = {name: [value.encode()] for name, value in record.items()}
        writer.write(corpora.encode_example(**features))
    writer.close()
    return f"arrayrecord:{path}"


def write_tfrecords(path: Path, records: Sequence[Mapping[str, str]]) -> str:
    bodies = [
        corpora.encode_example(**{name: [value.encode()] for name, value in record.items()})
        for record in records
    ]
    corpora.write_tfrecords(path, bodies)
    return f"tfrecord:{path}"


# The codes of Megatron-LM's DType.
MEGATRON_CODES = {"<u1": 1, "<i2": 3, "<i4": 4, "<i8": 5, "<f4": 6, "<u2": 8}


def write_megatron(prefix: Path, documents: Sequence[Sequence[int]], dtype: str = "<u2") -> str:
    """Write documents of ids as Megatron-LM's IndexedDatasetBuilder does, each as one sequence."""
    sizes = [len(ids) for ids in documents]
    item = np.dtype(dtype).itemsize
    pointers = np.cumsum([0, *sizes])[: len(sizes)] * item
    head = b"MMIDIDX\x00\x00" + struct.pack(
        "<QBQQ", 1, MEGATRON_CODES[dtype], len(sizes), len(sizes) + 1
    )
    arrays = ((sizes, "<i4"), (pointers, "<i8"), (range(len(sizes) + 1), "<i8"))
    index = head + b"".join(np.array(values).astype(kind).tobytes() for values, kind in arrays)
    Path(f"{prefix}.idx").write_bytes(index)
    body = b"".join(np.array(ids, np.int64).astype(dtype).tobytes() for ids in documents)
    Path(f"{prefix}.bin").write_bytes(body)
    return f"megatron:{prefix}"


# Name -> a function that writes records as files of a folder, and returns the data.
WRITERS: dict[str, Callable[[Path, Sequence[Record]], str]] = {
    "jsonl": lambda folder, records: write_jsonl(folder / "a.jsonl", records),
    "csv": lambda folder, records: write_csv(folder / "a [1], b.csv", records),
    "tsv": lambda folder, records: write_tsv(folder / "a.tsv", records),
    "parquet": lambda folder, records: write_parquet(folder / "a.parquet", records),
    "saved": lambda folder, records: write_saved_set(folder / "saved", records),
    "arrayrecord": lambda folder, records: write_array_records(folder / "a.array_record", records),
    "gz": _write_compressed(".gz"),
    "zst": _write_compressed(".zst"),
}


def write_records(kind: str, folder: Path, records: Sequence[Record]) -> str:
    """Write records as a source of a kind, and return the data."""
    folder.mkdir(parents=True, exist_ok=True)
    return WRITERS[kind](folder, records)


def make_text_records(count: int, *, words: int = 30) -> list[Record]:
    """Return records of documents of unique words, with a number beside the text."""
    documents = corpora.make_documents(count, words=words)
    return [{"id": str(number), "text": text} for number, text in enumerate(documents)]


def make_pair_records(count: int) -> list[Record]:
    """Return pairs, in the fields of text_to_text."""
    return [
        {"inputs": f"question, {number}", "targets": f"answer {number}"} for number in range(count)
    ]
