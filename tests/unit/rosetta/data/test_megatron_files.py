from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rosetta.data import data_spec, megatron_files, pipeline, row_sources, rows
from tests.support import corpora, data_sources, errors

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTS = [list(range(3 + number, 90 + 3 * number)) for number in range(40)]
TOKENS = [token for document in DOCUMENTS for token in document]


def read_index(prefix: Path) -> megatron_files.Index:
    return megatron_files.read_index(str(prefix))


@pytest.mark.parametrize("dtype", ["<u2", "<i2", "<i4", "<i8"])
def test_the_tokens_of_all_prefixes_are_one_sequence(tmp_path: Path, dtype: str) -> None:
    data_sources.write_megatron(tmp_path / "part0_document", DOCUMENTS[:13], dtype)
    data_sources.write_megatron(tmp_path / "part1_document", DOCUMENTS[13:], "<u2")
    source = data_spec.parse_spec(f"megatron:{tmp_path}/part*_document")
    tokens = megatron_files.MegatronTokens(source, 400)
    assert (tokens.size, tokens.document_count) == (len(TOKENS), 40)
    starts = np.array([0, 5, len(TOKENS) - 3, sum(map(len, DOCUMENTS[:13])) - 2, len(TOKENS)])
    again = pickle.loads(pickle.dumps(tokens))  # noqa: S301 what a worker process gets
    for start, window in zip(starts, again.read_windows(starts, 9), strict=True):
        assert window.tolist() == [TOKENS[(start + place) % len(TOKENS)] for place in range(9)]
    counts = megatron_files.count_tokens(source, 400, lambda *_: None)
    assert counts == {"records": 40, "tokens": len(TOKENS)}


def test_an_epoch_has_every_token_once(tmp_path: Path) -> None:
    documents = [list(range(3, 3 + 16 * 30))]
    data = data_sources.write_megatron(tmp_path / "a", documents)
    recipe = corpora.make_recipe(data, "lm", inputs=0, targets=16, vocab="ids:600", extra_ids=0)
    source: Any = row_sources.open_sources(recipe)
    assert isinstance(source, rows.TokenWindows)
    for epoch in range(3):
        numbers = np.arange(source.count * epoch, source.count * (epoch + 1))
        assert sorted(source.read_rows(numbers).targets.ravel().tolist()) == documents[0]


def test_files_may_be_named_by_either_name(tmp_path: Path) -> None:
    data = data_sources.write_megatron(tmp_path / "a, b", DOCUMENTS)
    for end in ("", ".bin", ".idx"):
        assert data_spec.find_files(data_spec.parse_spec(data + end)) == (
            f"{tmp_path}/a, b.bin",
            f"{tmp_path}/a, b.idx",
        )


def _change(end: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return a function that changes a file of a prefix."""

    def apply(prefix: Path) -> None:
        path = Path(f"{prefix}{end}")
        path.write_bytes(change(path.read_bytes()))

    return apply


HEAD = megatron_files.HEADER.size
SIZES_END = HEAD + 4 * len(DOCUMENTS)
POINTERS_END = SIZES_END + 8 * len(DOCUMENTS)
DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "magic": (errors.INVALID, _change(".idx", lambda body: b"X" + body[1:]), ".idx"),
    "empty": (errors.INVALID, _change(".idx", lambda _: b""), ".idx"),
    "head cut": (errors.DAMAGED, _change(".idx", lambda body: body[:20]), ".idx"),
    "cut": (errors.DAMAGED, _change(".idx", lambda body: body[:-8]), ".idx"),
    "longer": (errors.DAMAGED, _change(".idx", lambda body: body + b"12345678"), ".idx"),
    "multimodal": (errors.UNSUPPORTED, _change(".idx", lambda body: body + bytes(40)), ".idx"),
    "version": (
        errors.UNSUPPORTED,
        _change(".idx", lambda body: body[:9] + struct.pack("<Q", 2) + body[17:]),
        ".idx",
    ),
    "float ids": (errors.UNSUPPORTED, _change(".idx", lambda b: b[:17] + b"\6" + b[18:]), ".idx"),
    "unknown type": (
        errors.UNSUPPORTED,
        _change(".idx", lambda b: b[:17] + b"\x63" + b[18:]),
        ".idx",
    ),
    "negative size": (
        errors.DAMAGED,
        _change(".idx", lambda body: body[:HEAD] + struct.pack("<i", -1) + body[HEAD + 4 :]),
        ".idx",
    ),
    "pointer": (
        errors.DAMAGED,
        _change(".idx", lambda b: b[:SIZES_END] + struct.pack("<q", 2) + b[SIZES_END + 8 :]),
        ".idx",
    ),
    "documents": (
        errors.DAMAGED,
        _change(".idx", lambda b: b[:POINTERS_END] + struct.pack("<q", 1) + b[POINTERS_END + 8 :]),
        ".idx",
    ),
    "bin cut": (errors.DAMAGED, _change(".bin", lambda body: body[:-2]), ".bin"),
    "no bin": (errors.MISSING, lambda prefix: Path(f"{prefix}.bin").unlink(), ".bin"),
    "no idx": (errors.MISSING, lambda prefix: Path(f"{prefix}.idx").unlink(), ""),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_set_is_refused_before_a_token_is_read(name: str, tmp_path: Path) -> None:
    kind, damage, end = DAMAGE[name]
    data = data_sources.write_megatron(tmp_path / "a", DOCUMENTS)
    damage(tmp_path / "a")
    with errors.expect_user_error(kind, where=f"a{end}"):
        megatron_files.MegatronTokens(data_spec.parse_spec(data), 400)


def test_sets_without_documents_or_tokens_are_refused(tmp_path: Path) -> None:
    empty: dict[str, list[list[int]]] = {"none": [], "empty": [[], []]}
    for name, documents in empty.items():
        data = data_sources.write_megatron(tmp_path / name, documents)
        with errors.expect_user_error(errors.MISSING, where=name):
            megatron_files.MegatronTokens(data_spec.parse_spec(data), 400)


def test_ids_of_another_vocabulary_are_refused_where_they_are_read(tmp_path: Path) -> None:
    data = data_sources.write_megatron(tmp_path / "a", DOCUMENTS)
    recipe = corpora.make_recipe(data, "lm", inputs=0, targets=16, vocab="ids:50", extra_ids=0)
    with errors.expect_user_error(errors.DIFFERS, where=tmp_path / "a", remedy="VOCAB"):
        pipeline.Batches(recipe, 64).make_batch(0)
    negative = data_sources.write_megatron(tmp_path / "b", [[3, -4, 5]], "<i4")
    source = data_spec.parse_spec(negative)
    with errors.expect_user_error(errors.DIFFERS, value=-4):
        megatron_files.count_tokens(source, 50, lambda *_: None)


def test_pairs_are_refused(tmp_path: Path) -> None:
    data = data_sources.write_megatron(tmp_path / "a", DOCUMENTS)
    with errors.expect_user_error(errors.CONFLICT, where=f"DATA={data}", value="megatron"):
        row_sources.open_sources(corpora.make_recipe(data, "text_to_text"))
