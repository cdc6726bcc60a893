"""tokenizer.json as a vocabulary: the ids of transformers, and rows in which id 0 is a token."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import byte_level_tokenizer, corpora, errors, required_modules, tokenizer_lines

sentencepiece: Any = required_modules.need_modules("tokenizers", "sentencepiece")

from rosetta.convert import tokenizer_files
from rosetta.data import causal_features, data_recipe, rows, vocabularies

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")
LINES = tokenizer_lines.make_lines(10_000, sentinels=0)


def _exclaim(lines: list[str]) -> list[str]:
    """Return lines with exclamation marks: alone, after words, in runs and at the ends."""
    chance = random.Random(0)  # noqa: S311 (made-up text)
    marks = ("!", "!!", "!!!!", " !", " ! ", "! ")
    exclaimed = []
    for line in lines:
        words = line.split(" ")
        words.insert(chance.randrange(len(words) + 1), chance.choice(marks))
        exclaimed.append(" ".join(words) + chance.choice(("", "", *marks)))
    return exclaimed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tokenizer as that of GPT-2."""
    path = tmp_path_factory.mktemp("tokenizer") / "gpt2"
    return byte_level_tokenizer.write_folder(path, _exclaim(LINES[:2000]), size=600)


def _load(folder: Path | str) -> vocabularies.Vocabulary:
    return vocabularies.load_vocabulary(str(folder), causal=True)


def test_the_ids_are_those_of_gpt2(folder: Path) -> None:
    vocabulary = _load(folder)
    assert vocabulary == _load(folder / "tokenizer.json")
    assert vocabulary.size == 600
    assert (vocabulary.eos, vocabulary.bos) == (599, 599)
    assert vocabulary.encode(["!"])[0].tolist() == [0]
    assert vocabulary.sentinel_ids == ()
    text = "Hello! Wörld!!  日本語 🙂 don't"
    assert vocabulary.decode(vocabulary.encode([text])[0].tolist()) == text
    ids = vocabulary.encode(["one!", "two"])
    assert vocabulary.decode([*ids[0], vocabulary.eos, *ids[1]]) == "one!"


def test_the_ids_are_those_of_transformers(folder: Path, tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    lines = _exclaim(LINES)
    program = Path(__file__).parents[3] / "support" / "hugging_face_tokenizer.py"
    (tmp_path / "lines.json").write_text(json.dumps(lines), encoding="utf-8")
    subprocess.run(
        [PYTHON, str(program), str(folder), "lines.json", "ids.json"],
        check=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"},
    )
    theirs = json.loads((tmp_path / "ids.json").read_text(encoding="utf-8"))["ids"]["auto"]
    ours = [ids.tolist() for ids in _load(folder).encode(lines)]
    assert sum(0 in row for row in ours) > 2000
    different = [line for line, a, b in zip(lines, ours, theirs, strict=True) if a != b]
    assert different == []


def _make_batches(folder: Path, text: Path, length: int, **more: Any) -> Any:
    recipe = data_recipe.Recipe(
        f"text:{text}", "lm", str(folder / "tokenizer.json"), 0, 0, length, **more
    )
    return causal_features.CausalBatches(recipe, 2, bos=_load(folder).bos)


@pytest.mark.parametrize("pack", [False, True])
def test_id_0_is_a_token_of_every_row(pack: bool, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a!\n!\nb!!\n!!\n" * 40)
    vocabulary = _load(folder)
    batches = _make_batches(folder, tmp_path / "text.txt", 32, pack=pack)
    seen = 0
    for step in range(8):
        batch = batches.make_batch(step)
        labels, weights, segments = (batch[n] for n in ("labels", "weights", "segment_ids"))
        zeros = labels == 0
        seen += int(zeros.sum())
        assert weights.all()  # the text is longer than the rows
        assert (batch["paddings"] == 0).all()
        if pack:
            ends = np.cumsum(labels == vocabulary.eos, axis=1)
            assert (segments[:, 1:] == 1 + ends[:, :-1]).all()
        else:
            assert (segments == 1).all()
        begins = batch["segment_pos"] == 0
        assert (batch["ids"][begins] == vocabulary.eos).all()
        assert (batch["ids"][:, 1:] == np.where(begins[:, 1:], 599, labels[:, :-1])).all()
    assert seen > 100


def test_padding_is_not_taken_for_id_0(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("!!a!!!!!!")
    vocabulary = _load(folder)
    ids = [*vocabulary.encode(["!!a!!!!!!"])[0].tolist(), vocabulary.eos]
    assert ids[0] == 0 or "!!" in vocabulary.decode(ids[:1])
    batch = _make_batches(folder, tmp_path / "text.txt", 32, shuffle=False).make_batch(0)
    assert batch["labels"][0, : len(ids)].tolist() == ids
    assert batch["weights"][0].tolist() == [1.0] * len(ids) + [0.0] * (32 - len(ids))
    assert not batch["labels"][0, len(ids) :].any()


def test_a_row_that_ends_with_id_0_has_no_padding() -> None:
    none: Any = np.zeros((1, 0), np.int32)
    tokens: Any = np.array([[5, 0, 0, 0], [0, -1, -1, -1]], np.int32)
    made = rows.make_unpacked_rows(np.repeat(none, 2, axis=0), tokens, vocabularies.NO_ID)
    features = causal_features.make_causal_features(made, pack=False, bos=9, eos=7)
    assert features["weights"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert features["labels"].tolist() == [[5, 0, 0, 0], [0, 0, 0, 0]]
    assert features["ids"].tolist() == [[9, 5, 0, 0], [9, 0, 0, 0]]


def test_a_token_cache_has_the_same_tokens(folder: Path, tmp_path: Path) -> None:
    from rosetta import cli

    text = corpora.write_text_files(tmp_path / "text", [f"{number} a!b" for number in range(900)])
    words = ["data", "cache", text, "--objective", "lm", "--vocab", str(folder), "--jobs", "1"]
    assert cli.main([*words, "--out", str(tmp_path / "cache")]) == 0
    path = str(folder / "tokenizer.json")
    recipe = data_recipe.Recipe(f"cache:{tmp_path}/cache", "lm", path, 0, 0, 64)
    batch = causal_features.CausalBatches(recipe, 4).make_batch(0)
    assert (batch["labels"] == 0).any()
    assert batch["weights"].all()


def test_sentinels_and_t5s_ids_of_a_folder_without_a_model(tmp_path: Path) -> None:
    """A folder of T5 that has tokenizer.json alone gives the ids of the SentencePiece model."""
    body = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in LINES[:3000] if "\n" not in line]),
        model_writer=body,
        vocab_size=900,
        character_coverage=0.98,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (tmp_path / "text.model").write_bytes(body.getvalue())
    model = vocabularies.load_vocabulary(str(tmp_path / "text.model"))
    (tmp_path / "t5").mkdir()
    tokenizer_files.write_tokenizer(model, tmp_path / "t5")
    (tmp_path / "t5" / "spiece.model").unlink()
    vocabulary = vocabularies.load_vocabulary(str(tmp_path / "t5"))
    assert vocabulary.name.endswith("tokenizer.json")
    assert vocabulary.size == model.size
    assert vocabulary.sentinel_ids == model.sentinel_ids
    assert vocabulary.text_size == model.text_size
    assert (vocabulary.eos, vocabulary.filler) == (1, 0)
    lines = tokenizer_lines.make_lines(2000)
    for line, ours, theirs in zip(
        lines, vocabulary.encode(lines), model.encode(lines), strict=True
    ):
        assert ours.tolist() == theirs.tolist(), line
    # It can be exported again.
    (tmp_path / "again").mkdir()
    names = tokenizer_files.write_tokenizer(vocabulary, tmp_path / "again")
    assert "tokenizer.json" in names
    again = vocabularies.load_vocabulary(str(tmp_path / "again"))
    assert again.fingerprint() == vocabulary.fingerprint()


def test_fingerprints_tell_special_tokens_apart(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert _load(copy).fingerprint() == _load(folder).fingerprint()
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings |= {"eos_token": "!"}
    other = shutil.copytree(copy, tmp_path / "other")
    (other / "tokenizer_config.json").write_text(json.dumps(settings))
    assert _load(other).eos == 0
    assert _load(other).fingerprint() != _load(folder).fingerprint()


def test_a_file_without_settings_has_the_usual_end_token(folder: Path, tmp_path: Path) -> None:
    shutil.copyfile(folder / "tokenizer.json", tmp_path / "tokenizer.json")
    assert _load(tmp_path).eos == 599


def test_t5_refuses_a_vocabulary_whose_id_0_is_text(folder: Path) -> None:
    with errors.expect_user_error(errors.INVALID, where=str(folder / "tokenizer.json")):
        vocabularies.load_vocabulary(str(folder))


def test_no_sentinels_are_added(folder: Path) -> None:
    with errors.expect_user_error(errors.CONFLICT, where="EXTRA_IDS=100"):
        vocabularies.load_vocabulary(str(folder), 100, causal=True)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": 1}', "\x00"])
def test_a_damaged_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with errors.expect_user_error(errors.DAMAGED, where=str(path)):
        _load(path)


def test_a_tokenizer_without_an_end_token(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    document["added_tokens"] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    with errors.expect_user_error(errors.INVALID, where=str(path)):
        _load(path)


def test_damaged_settings(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "tokenizer_config.json").write_text("[")
    with errors.expect_user_error(errors.DAMAGED, where=str(copy / "tokenizer_config.json")):
        _load(copy)
