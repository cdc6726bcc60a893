"""A vocabulary is read from the files of a model of Hugging Face."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import corpora, errors, required_modules
from tests.support.model_hub import serve_hub

sentencepiece: Any = required_modules.need_modules("sentencepiece")

from rosetta.convert import tokenizer_files
from rosetta.data import vocabularies

LINES = corpora.make_sentences(50)


@pytest.fixture(scope="module")
def pieces() -> bytes:
    """A SentencePiece model without sentinels."""
    body = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpora.make_sentences(400)),
        model_writer=body,
        vocab_size=200,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return body.getvalue()


def _make_folder(folder: Path, pieces: bytes, settings: dict[str, Any] | None) -> str:
    folder.mkdir()
    (folder / "spiece.model").write_bytes(pieces)
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


def _name_sentinels(count: int) -> list[str]:
    return [f"<extra_id_{number}>" for number in range(count)]


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (None, 100),
        ({"tokenizer_class": "T5Tokenizer"}, 100),
        ({"tokenizer_class": "T5Tokenizer", "extra_ids": 100}, 100),
        ({"tokenizer_class": "T5Tokenizer", "extra_ids": 0}, 0),
        # umT5
        ({"extra_ids": 300, "additional_special_tokens": _name_sentinels(300)}, 300),
        ({"additional_special_tokens": _name_sentinels(300)}, 300),
        ({"added_tokens_decoder": {"7": {"content": "<extra_id_0>"}}}, 1),
    ],
)
def test_the_settings_say_how_many_sentinels_are_added(
    settings: dict[str, Any] | None, count: int, pieces: bytes, tmp_path: Path
) -> None:
    vocabulary = vocabularies.load_vocabulary(_make_folder(tmp_path / "m", pieces, settings))
    assert (vocabulary.extra_ids, vocabulary.sentinel_count) == (count, count)
    assert vocabulary.size == vocabulary.base_size + count
    if count:
        assert vocabulary.sentinel_ids[0] == vocabulary.size - 1
    other = vocabularies.load_vocabulary(str(tmp_path / "m"), 7)
    assert other.extra_ids == 7  # what is asked for comes first


def test_a_run_keeps_the_sentinels_it_began_with(pieces: bytes, tmp_path: Path) -> None:
    folder = _make_folder(tmp_path / "m", pieces, {"extra_ids": 300})
    began = vocabularies.load_vocabulary(folder, 100)
    assert vocabularies.load_vocabulary(folder, recorded=began.fingerprint()) == began
    assert vocabularies.load_vocabulary(folder, recorded="0" * 16).extra_ids == 300


def test_a_model_file_with_sentinels_of_its_own_gets_no_others(
    pieces: bytes, tmp_path: Path
) -> None:
    """As mT5: transformers adds none, and the pieces are the sentinels."""
    own = pieces + vocabularies.make_sentinel_pieces(100)
    folder = _make_folder(tmp_path / "m", own, {"tokenizer_class": "T5Tokenizer", "extra_ids": 0})
    vocabulary = vocabularies.load_vocabulary(folder)
    assert (vocabulary.extra_ids, vocabulary.sentinel_count) == (0, 100)
    assert vocabulary.sentinel_ids[0] == vocabulary.size - 1


@pytest.mark.parametrize(("settings", "count"), [({}, 125), ({"extra_ids": 100}, 100)])
def test_bytes(settings: dict[str, Any], count: int, tmp_path: Path) -> None:
    document = {"tokenizer_class": "ByT5Tokenizer", **settings}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(document))
    vocabulary = vocabularies.load_vocabulary(str(tmp_path))
    assert vocabulary == vocabularies.Vocabulary("byte", count)
    assert vocabulary.size == 259 + count


@pytest.mark.parametrize("extra_ids", [0, 100, 300])
def test_what_is_written_is_read_back(extra_ids: int, pieces: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.model"
    path.write_bytes(pieces if extra_ids else pieces + vocabularies.make_sentinel_pieces(100))
    written = vocabularies.load_vocabulary(str(path), extra_ids)
    folder = tmp_path / "m"
    folder.mkdir()
    tokenizer_files.write_tokenizer(written, folder)
    vocabulary = vocabularies.load_vocabulary(str(folder))
    assert vocabulary.fingerprint() == written.fingerprint()
    assert vocabulary.sentinel_ids == written.sentinel_ids
    assert [ids.tolist() for ids in vocabulary.encode(LINES)] == [
        ids.tolist() for ids in written.encode(LINES)
    ]


def test_the_tokenizer_of_a_model_on_the_hub(
    pieces: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    required_modules.need_modules("huggingface_hub")
    local = _make_folder(tmp_path / "m", pieces, {"extra_ids": 300})
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.add_folder("google/umt5-tiny", Path(local))
        vocabulary = vocabularies.load_vocabulary("hf:google/umt5-tiny")
    assert Path(vocabulary.name).is_relative_to(tmp_path / "home")
    expected = vocabularies.load_vocabulary(local)
    assert vocabulary.fingerprint() == expected.fingerprint()
    assert vocabulary.extra_ids == 300


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[]", errors.DAMAGED),
        ("{", errors.DAMAGED),
        ('{"extra_ids": -1}', errors.INVALID),
        ('{"extra_ids": true}', errors.INVALID),
        ('{"extra_ids": "many"}', errors.INVALID),
    ],
)
def test_damaged_settings(text: str, kind: str, pieces: bytes, tmp_path: Path) -> None:
    folder = _make_folder(tmp_path / "m", pieces, None)
    Path(folder, "tokenizer_config.json").write_text(text)
    with errors.expect_user_error(kind, where="tokenizer_config.json"):
        vocabularies.load_vocabulary(folder)


def test_a_folder_without_pieces(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with errors.expect_user_error(errors.MISSING, where=str(tmp_path)):
        vocabularies.load_vocabulary(str(tmp_path))
