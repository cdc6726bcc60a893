"""The files of a tokenizer give transformers the ids that SentencePiece and rosetta.data give."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules, tokenizer_lines

sentencepiece: Any = required_modules.need_modules("sentencepiece")

from rosetta.convert import tokenizer_files
from rosetta.data import vocabularies

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")
LINES = tokenizer_lines.make_lines(10_000)


def _train(path: Path, *, sentinels: int = 0, **options: Any) -> str:
    """Train a small SentencePiece model as T5's was trained; return its path."""
    body = io.BytesIO()
    texts = (re.sub(r"<extra_id_\d+>|\n", " ", line) for line in LINES[:4000])
    settings = {"vocab_size": 900, "hard_vocab_limit": False, "character_coverage": 0.98}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts,
        model_writer=body,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
        **{**settings, **options},
    )
    path.write_bytes(body.getvalue() + vocabularies.make_sentinel_pieces(sentinels))
    return str(path)


def _read_with_transformers(folder: Path, lines: list[str]) -> Any:
    """Return what tests/support/hugging_face_tokenizer.py writes about a folder."""
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    program = Path(__file__).parents[3] / "support" / "hugging_face_tokenizer.py"
    given, output = folder / "lines.json", folder / "ids.json"
    given.write_text(json.dumps(lines), encoding="utf-8")
    done = subprocess.run(
        [PYTHON, str(program), str(folder), str(given), str(output)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(output.read_text(encoding="utf-8"))


def _list_differing(lines: list[str], left: list[list[int]], right: list[list[int]]) -> list[str]:
    return [line for line, one, other in zip(lines, left, right, strict=True) if one != other]


def _write(folder: Path, vocabulary: vocabularies.Vocabulary) -> Path:
    folder.mkdir()
    names = tokenizer_files.write_tokenizer(vocabulary, folder)
    assert sorted(names) == sorted(path.name for path in folder.iterdir())
    return folder


@pytest.mark.parametrize(
    ("options", "sentinels", "count"),
    [
        ({}, 0, 10_000),
        ({"byte_fallback": True}, 100, 10_000),
        ({"model_type": "bpe"}, 0, 2000),
        ({"model_type": "bpe", "byte_fallback": True}, 300, 2000),
        ({"normalization_rule_name": "identity"}, 0, 2000),
    ],
    ids=["t5", "own-sentinels-and-bytes", "bpe", "bpe-and-bytes", "identity"],
)
def test_ids_are_those_of_sentencepiece(
    options: dict[str, Any], sentinels: int, count: int, tmp_path: Path
) -> None:
    path = _train(tmp_path / "text.model", sentinels=sentinels, **options)
    vocabulary = vocabularies.load_vocabulary(path)
    folder = _write(tmp_path / "model", vocabulary)
    lines = LINES[:count]
    read = _read_with_transformers(folder, lines)
    ours = [[*ids.tolist(), vocabulary.eos] for ids in vocabulary.encode(lines)]
    assert sum(map(len, ours)) > 10 * count
    assert _list_differing(lines, ours, read["ids"]["auto"]) == []
    assert read["sentinels"] == list(vocabulary.sentinel_ids[:2])
    assert read["special"] == [0, 1, 2]
    assert read["size"] == vocabulary.size
    assert read["inputs"] == ["attention_mask", "input_ids"]
    if "normalization_rule_name" in options or "by_name" not in read["ids"]:
        return
    if read["version"].startswith("4."):  # the slow tokenizer, which is SentencePiece itself
        assert _list_differing(lines, ours, read["ids"]["by_name"]) == []
        return
    # The class T5Tokenizer of transformers 5 does not use tokenizer.json as it is. The differences
    # are those that the module documents.
    for line in _list_differing(lines, ours, read["ids"]["by_name"]):
        glued = re.search(r"<extra_id_\d+>[^ ]", line)
        unknown = (
            options.get("byte_fallback")
            and vocabularies.UNK in read["ids"]["by_name"][lines.index(line)]
        )
        assert glued or unknown or unicodedata.normalize("NFKC", line) != line, line


def test_text_without_sentinels_is_decoded_as_it_was(tmp_path: Path) -> None:
    path = _train(tmp_path / "text.model", byte_fallback=True)
    folder = _write(tmp_path / "model", vocabularies.load_vocabulary(path))
    lines = ["the word was said", "水 and 🙂, café"]
    assert _read_with_transformers(folder, lines)["decoded"] == lines


@pytest.mark.parametrize("extra_ids", [125, 100, 0])
def test_byte_ids(extra_ids: int, tmp_path: Path) -> None:
    vocabulary = vocabularies.load_vocabulary("byte", extra_ids)
    folder = _write(tmp_path / "model", vocabulary)
    lines = tokenizer_lines.make_lines(1000, sentinels=0)
    lines = [line.replace("</b>", "b") for line in lines]
    read = _read_with_transformers(folder, lines)
    ours = [[*ids.tolist(), vocabulary.eos] for ids in vocabulary.encode(lines)]
    for ids in read["ids"].values():
        assert _list_differing(lines, ours, ids) == []
    assert read["special"] == [0, 1, 2]
    assert read["size"] == vocabulary.size
    if extra_ids:
        assert read["sentinels"] == list(vocabulary.sentinel_ids[:2])


def test_a_vocabulary_without_text_has_no_tokenizer(tmp_path: Path) -> None:
    vocabulary = vocabularies.load_vocabulary("ids:1000")
    with errors.expect_user_error(errors.UNSUPPORTED, where="ids:1000"):
        tokenizer_files.write_tokenizer(vocabulary, tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"model_type": "char"}, {"treat_whitespace_as_suffix": True}])
def test_models_that_transformers_cannot_hold_are_refused(
    options: dict[str, Any], tmp_path: Path
) -> None:
    path = _train(tmp_path / "text.model", **options)
    folder = tmp_path / "model"
    folder.mkdir()
    with errors.expect_user_error(errors.UNSUPPORTED, where=path):
        tokenizer_files.write_tokenizer(vocabularies.load_vocabulary(path), folder)
    assert not any(folder.iterdir())


def test_sentinels_must_be_the_highest_ids(tmp_path: Path) -> None:
    path = Path(_train(tmp_path / "text.model"))
    pieces = [vocabularies.make_sentinel_piece(number) for number in (0, 1)]
    path.write_bytes(path.read_bytes() + b"".join(pieces))
    with errors.expect_user_error(errors.UNSUPPORTED, where=str(path)):
        tokenizer_files.write_tokenizer(vocabularies.load_vocabulary(str(path)), tmp_path)
