"""A tokenizer.json of T5 is for SeqIO what its SentencePiece model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("t5x", "tokenizers")
sentencepiece: Any = required_modules.need_modules("sentencepiece")

import seqio
import tensorflow as tf

from rosetta.convert import tokenizer_files
from rosetta.data import vocabularies
from rosetta.t5x import dataset
from tests.support import tokenizer_lines

LINES = tokenizer_lines.make_lines(2000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with text.model, and with the folder t5, which has tokenizer.json alone."""
    path = tmp_path_factory.mktemp("vocabulary")
    with (path / "text.model").open("wb") as body:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line for line in LINES if "\n" not in line]),
            model_writer=body,
            vocab_size=900,
            character_coverage=0.98,
            hard_vocab_limit=False,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
        )
    (path / "t5").mkdir()
    model = vocabularies.load_vocabulary(str(path / "text.model"))
    tokenizer_files.write_tokenizer(model, path / "t5")
    (path / "t5" / "spiece.model").unlink()
    return path


def test_ids_and_texts_are_those_of_the_model(folder: Path) -> None:
    ours = dataset.vocabulary(str(folder / "t5"))
    theirs = dataset.vocabulary(str(folder / "text.model"))
    assert isinstance(theirs, seqio.SentencePieceVocabulary)
    assert (ours.vocab_size, ours.pad_id, ours.eos_id, ours.unk_id) == (
        theirs.vocab_size,
        theirs.pad_id,
        theirs.eos_id,
        theirs.unk_id,
    )
    for line in LINES[:300]:
        ids = list(theirs.encode(line))
        assert list(ours.encode(line)) == ids
        assert ours.encode_tf(tf.constant(line)).numpy().tolist() == ids
    text = "the word was said"
    ids = [*ours.encode(text), 1, 5, 6]
    assert ours.decode(ids) == text
    rows = tf.constant([[*ids, 0], [*ours.encode(text), 1, 0, 0, 0]])
    assert [row.decode() for row in ours.decode_tf(rows).numpy()] == [text, text]
    as_data = tf.data.Dataset.from_tensors(text).map(ours.encode_tf)
    assert as_data.element_spec.shape.as_list() == [None]


def test_rosettas_data_gets_the_same_vocabulary(folder: Path) -> None:
    ours = dataset.vocabulary(str(folder / "t5"))
    assert ours == dataset.vocabulary(str(folder / "t5" / "tokenizer.json"))
    assert ours != dataset.vocabulary(str(folder / "text.model"))
    vocabulary = dataset.convert_vocabulary(ours)
    assert vocabulary == vocabularies.load_vocabulary(str(folder / "t5"))
