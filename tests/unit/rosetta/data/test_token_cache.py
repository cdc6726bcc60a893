from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rosetta.core.errors import UserError
from rosetta.data import token_cache, vocabularies
from tests.support import corpora, errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCS = corpora.make_documents(700)
BYTES = vocabularies.Vocabulary("byte", 100)


def recipe(**changes: object) -> token_cache.CacheRecipe:
    settings = {
        "source": "text:x",
        "vocabulary": BYTES.fingerprint(),
        "vocabulary_name": "byte",
        "vocab_size": 359,
        "document_ends": False,
        "pairs": "",
    }
    return token_cache.CacheRecipe(**{**settings, **changes})  # type: ignore[arg-type]


def encode(batches: Iterator[list[str]]) -> Iterator[list[np.ndarray]]:
    return (BYTES.encode(batch) for batch in batches)


def write(folder: Path, docs: list[str], **changes: object) -> dict[str, object]:
    return token_cache.write_cache(
        str(folder), recipe(**changes), docs, encode, shard_tokens=20_000
    )


@pytest.mark.parametrize(("size", "ends"), [(359, False), (359, True), (100_000, False)])
def test_tokens_and_documents_come_back(tmp_path: Path, size: int, ends: bool) -> None:
    meta = write(tmp_path / "c", DOCS, vocab_size=size, document_ends=ends)
    tokens = token_cache.TokenCache(str(tmp_path / "c"))
    expected = [np.append(ids, 1) if ends else ids for ids in BYTES.encode(DOCS)]
    whole = np.concatenate(expected)
    assert len(tokens.meta["shards"]) > 2
    assert meta["documents"] == len(DOCS)
    assert meta["tokens"] == tokens.size == len(whole)
    assert tokens.recipe.dtype.itemsize == (2 if size == 359 else 4)
    assert (tokens.read_tokens(0, tokens.size) == whole).all()
    assert (tokens.read_tokens(19_000, 45_000) == whole[19_000:45_000]).all()
    for number in (0, 1, 255, 256, 511, len(DOCS) - 1):
        assert (tokens.read_document(number) == expected[number]).all()
    around = tokens.read_tokens(tokens.size - 5, tokens.size + 7)
    assert around.tolist() == [*whole[-5:].tolist(), *whole[:7].tolist()]


def test_a_stopped_run_continues_and_writes_the_same_cache(tmp_path: Path) -> None:
    write(tmp_path / "whole", DOCS)
    asked = []

    def breaks() -> Iterator[str]:
        for number, doc in enumerate(DOCS):
            if number == 600:
                raise KeyboardInterrupt
            yield doc

    with pytest.raises(KeyboardInterrupt):
        token_cache.write_cache(
            str(tmp_path / "parts"), recipe(), breaks(), encode, shard_tokens=10_000
        )
    assert not (tmp_path / "parts" / "meta.json").exists()
    with errors.expect_user_error(errors.DAMAGED, where=tmp_path / "parts", remedy="data cache"):
        token_cache.TokenCache(str(tmp_path / "parts"))
    (tmp_path / "parts" / "tokens-00099.bin.part").write_bytes(b"half")

    def counted(batches: Iterator[list[str]]) -> Iterator[list[np.ndarray]]:
        for batch in batches:
            asked.append(len(batch))
            yield BYTES.encode(batch)

    token_cache.write_cache(str(tmp_path / "parts"), recipe(), DOCS, counted, shard_tokens=10_000)
    assert 0 < sum(asked) < len(DOCS)
    one, two = (
        token_cache.TokenCache(str(tmp_path / "whole")),
        token_cache.TokenCache(str(tmp_path / "parts")),
    )
    assert (one.read_tokens(0, one.size) == two.read_tokens(0, two.size)).all()
    asked.clear()
    token_cache.write_cache(str(tmp_path / "parts"), recipe(), DOCS, counted)
    assert not asked


def test_another_recipe_or_a_used_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "c", DOCS[:10])
    with errors.expect_user_error(errors.DIFFERS, where=tmp_path / "c", value="vocabulary"):
        write(tmp_path / "c", DOCS[:10], vocabulary="0" * 16)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with errors.expect_user_error(errors.EXISTS, where=tmp_path / "mine"):
        write(tmp_path / "mine", DOCS)
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]
    for _ in range(2):
        with errors.expect_user_error(errors.MISSING, where="text:x"):
            write(tmp_path / "empty", [])
    assert not (tmp_path / "empty").exists()


def test_a_refused_document_does_not_block_the_corrected_run(tmp_path: Path) -> None:
    def refused() -> Iterator[str]:
        yield DOCS[0]
        raise UserError("a line has no text", "a.jsonl", "name the field", kind=errors.INVALID)

    with errors.expect_user_error(errors.INVALID, where="a.jsonl"):
        token_cache.write_cache(
            str(tmp_path / "c"), recipe(source="jsonl:a@train:text"), refused(), encode
        )
    assert not (tmp_path / "c").exists()
    assert write(tmp_path / "c", DOCS, source="jsonl:a@train:body")["documents"] == len(DOCS)


def test_a_full_disk_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write(tmp_path / "c", DOCS)
    assert not list((tmp_path / "c").iterdir())
    assert write(tmp_path / "c", DOCS)["documents"] == len(DOCS)


def test_other_files_are_another_cache(tmp_path: Path) -> None:
    for name, body in (("a.txt", "one"), ("b.txt", "two")):
        (tmp_path / name).write_text(body)
    one, both = (
        [str(tmp_path / name) for name in names] for names in (["a.txt"], ["a.txt", "b.txt"])
    )
    write(tmp_path / "c", DOCS[:10], files=token_cache.fingerprint_files(one))
    write(tmp_path / "c", DOCS[:10], files=token_cache.fingerprint_files(one))
    with errors.expect_user_error(errors.DIFFERS, where=tmp_path / "c", value="files"):
        write(tmp_path / "c", DOCS[:10], files=token_cache.fingerprint_files(both))
    before = token_cache.fingerprint_files(one)
    (tmp_path / "a.txt").write_text("more")
    assert token_cache.fingerprint_files(one) != before


EMPTY = json.dumps(
    {
        "format": token_cache.FORMAT,
        "documents": 0,
        "shards": [],
        "recipe": dataclasses.asdict(recipe()),
    }
)


@pytest.mark.parametrize(
    "body",
    [
        "[1]",
        "{}",
        "no json",
        '{"format": 2, "documents": 1, "shards": [], "recipe": {"flour": 500}}',
        '{"format": 2, "documents": 1, "shards": [7], "recipe": {}}',
        EMPTY,
    ],
)
@pytest.mark.parametrize("name", ["meta.json", "progress.json"])
def test_a_file_of_another_program_is_refused(tmp_path: Path, name: str, body: str) -> None:
    (tmp_path / name).write_text(body)
    with errors.expect_user_error(errors.INVALID, where=tmp_path / name):
        write(tmp_path, DOCS)
    if name == "meta.json":
        with errors.expect_user_error(errors.INVALID, where=tmp_path / name):
            token_cache.TokenCache(str(tmp_path))
    (tmp_path / name).write_text('{"format": 1}')
    with errors.expect_user_error(errors.UNSUPPORTED, where=tmp_path / name, value=1):
        write(tmp_path, DOCS)


def test_a_cache_that_does_not_fit_the_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "c", DOCS[:10])
    tokens = token_cache.TokenCache(str(tmp_path / "c"))
    tokens.check_recipe(BYTES.fingerprint(), document_ends=False, pairs="")
    with errors.expect_user_error(
        errors.DIFFERS, where=tmp_path / "c", names=("byte", "359"), remedy="VOCAB"
    ):
        tokens.check_recipe(
            vocabularies.Vocabulary("byte", 0).fingerprint(), document_ends=False, pairs=""
        )
    with errors.expect_user_error(
        errors.DIFFERS,
        where=tmp_path / "c",
        names=("span_corruption", "prefix_lm"),
        remedy="--objective",
    ):
        tokens.check_recipe(BYTES.fingerprint(), document_ends=True, pairs="")
    path = tmp_path / "c" / "tokens-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with errors.expect_user_error(errors.DAMAGED, where="tokens-00000.bin"):
        token_cache.TokenCache(str(tmp_path / "c"))
    write(tmp_path / "d", DOCS[:10])
    (tmp_path / "d" / "ends-00000.bin").unlink()
    with errors.expect_user_error(errors.DAMAGED, where="ends-00000.bin"):
        token_cache.TokenCache(str(tmp_path / "d"))
    with errors.expect_user_error(errors.MISSING, where=tmp_path / "none", remedy="make one: "):
        token_cache.TokenCache(str(tmp_path / "none"))
