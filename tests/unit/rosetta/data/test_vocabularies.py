from __future__ import annotations

import errno
import functools
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from rosetta import cli
from rosetta.data import data_spec, vocabularies
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path

WORDS = corpora.make_sentences(400)


def test_bytes_have_the_sentinels_of_public_byt5() -> None:
    vocabulary = vocabularies.load_vocabulary("byte")
    assert vocabulary.encode(["aé"])[0].tolist() == [ord("a") + 3, 0xC3 + 3, 0xA9 + 3]
    assert (vocabulary.base_size, vocabulary.size, vocabulary.extra_ids, vocabulary.text_size) == (
        259,
        259,
        0,
        259,
    )
    assert vocabulary.sentinel_ids == tuple(range(258, 158, -1))
    assert vocabularies.describe_sentinels(vocabulary) == "258 to 159, shared with bytes"


@pytest.mark.parametrize(
    ("extra_ids", "ids", "text"),
    [
        (0, [*b"hi", 255, *b"x", -2, *b"y"], "hi <extra_id_0> x"),
        (0, [*"é ü".encode(), 254, *"水".encode(), 255], "é ü <extra_id_1> 水 <extra_id_0>"),
        (0, [255, 254, 0xC3], "<extra_id_0> <extra_id_1> <extra_id_60>"),
        (0, [*b"a", 0x80, *b"b"], "a\ufffdb"),
        (100, [*b"hi", 355, *b"x", -2, *b"y"], "hi <extra_id_0> x"),
        (125, [*b"hi", 380, *b"x", 381], "hi <extra_id_0> x"),
        (300, [554, *"é".encode(), 256], "<extra_id_1> é <extra_id_299>"),
    ],
)
def test_bytes_and_sentinels_are_decoded(extra_ids: int, ids: list[int], text: str) -> None:
    assert (
        vocabularies.load_vocabulary("byte", extra_ids).decode([byte + 3 for byte in ids]) == text
    )


@pytest.mark.parametrize("extra_ids", [0, 1, 100, 125, 256, 300, 1024])
def test_a_run_keeps_the_number_of_sentinels_it_began_with(extra_ids: int) -> None:
    began = vocabularies.Vocabulary("byte", extra_ids)
    assert vocabularies.load_vocabulary("byte", recorded=began.fingerprint()) == began
    assert vocabularies.has_same_tokens(vocabularies.load_vocabulary("byte"), began.fingerprint())
    other = vocabularies.Vocabulary("ids:300", extra_ids)
    assert vocabularies.load_vocabulary(
        "byte", recorded=other.fingerprint()
    ) == vocabularies.load_vocabulary("byte")
    assert not vocabularies.has_same_tokens(
        vocabularies.load_vocabulary("byte"), other.fingerprint()
    )
    assert (
        vocabularies.load_vocabulary("byte", 7, recorded=began.fingerprint()).extra_ids == 7
    )  # what is asked for comes first


@pytest.mark.parametrize(
    ("name", "kind", "remedy"),
    [
        ("ids:", errors.INVALID, "ids:32128"),
        ("ids:many", errors.INVALID, "ids:32128"),
        ("/nowhere/a.model", errors.MISSING, "vocab train"),
        ("gs://t5-data/sentencepiece.model", errors.UNSUPPORTED, "gcloud storage"),
    ],
)
def test_a_name_of_no_vocabulary_is_refused(name: str, kind: str, remedy: str) -> None:
    with errors.expect_user_error(kind, where=name, remedy=remedy):
        vocabularies.load_vocabulary(name)


def test_a_folder_is_refused_and_the_model_in_it_is_named(tmp_path: Path) -> None:
    with errors.expect_user_error(errors.INVALID, where=f"VOCAB={tmp_path}", remedy="`byte`"):
        vocabularies.load_vocabulary(str(tmp_path))
    (tmp_path / "mine.model").touch()
    with errors.expect_user_error(
        errors.INVALID, where=f"VOCAB={tmp_path}", remedy=f"{tmp_path}/mine.model"
    ):
        vocabularies.load_vocabulary(str(tmp_path))


def test_a_vocabulary_larger_than_the_models_is_refused_with_the_size_that_fits() -> None:
    vocabularies.check_model_size(vocabularies.Vocabulary("byte", 100), 359)
    with errors.expect_user_error(errors.TOO_BIG, where="byte", value=359, remedy="384"):
        vocabularies.check_model_size(vocabularies.Vocabulary("byte", 100), 358)


def test_fingerprints_tell_vocabularies_apart() -> None:
    named = {
        vocabularies.Vocabulary("byte", 100).fingerprint(),
        vocabularies.Vocabulary("byte", 0).fingerprint(),
        vocabularies.Vocabulary("ids:259", 100).fingerprint(),
    }
    assert len(named) == 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip(
        "sentencepiece", reason="NOT CHECKED: needs the packages of a baked environment"
    )
    from rosetta.data import vocabulary_training

    folder = tmp_path_factory.mktemp("vocabulary")
    data = corpora.write_text_files(folder / "t", WORDS)
    vocabulary = vocabulary_training.train_vocabulary(
        data_spec.parse_parts(data), str(folder / "mine.model"), size=440, extra_ids=20
    )
    assert (vocabulary.size, vocabulary.extra_ids, vocabulary.sentinel_count) == (440, 0, 20)
    return vocabulary.name


def test_a_trained_vocabulary_has_t5s_special_ids_and_its_sentinels_on_top(model: str) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    piece = sentencepiece.SentencePieceProcessor(model_file=model)
    assert [piece.IdToPiece(number) for number in (0, 1, 2, 439, 420)] == [
        "<pad>",
        "</s>",
        "<unk>",
        "▁<extra_id_0>",
        "▁<extra_id_19>",
    ]
    vocabulary = vocabularies.load_vocabulary(model)
    assert vocabulary.decode(vocabulary.encode(["bada sulo ne"])[0].tolist()) == "bada sulo ne"
    assert (
        vocabulary.decode(vocabulary.encode(["水 is water"])[0].tolist()) == "水 is water"
    )  # by bytes
    assert (
        vocabulary.decode([439, *vocabulary.encode(["ne"])[0].tolist(), 438])
        == "<extra_id_0> ne <extra_id_1>"
    )


def test_extra_ids_are_not_added_twice(model: str) -> None:
    with errors.expect_user_error(errors.CONFLICT, where="EXTRA_IDS=100", value=20):
        vocabularies.load_vocabulary(model, 100)
    assert vocabularies.load_vocabulary(model, 0).size == 440


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    for name, content in (("a.model", "no model"), ("empty.model", "")):
        (tmp_path / name).write_text(content)
        with errors.expect_user_error(errors.INVALID, where=name, remedy=".model"):
            vocabularies.load_vocabulary(str(tmp_path / name))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS),
        model_prefix=str(tmp_path / "b"),
        vocab_size=100,
        minloglevel=2,
    )
    with errors.expect_user_error(
        errors.INVALID, where="b.model", value=(-1, 2, 0), names="(0, 1, 2)"
    ):
        vocabularies.load_vocabulary(str(tmp_path / "b.model"))


def test_a_file_that_cannot_be_read_is_not_called_damaged(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret.model"
    shutil.copy(model, file)

    def refuse(path: str, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    # Root may read every file. SentencePiece opens files by itself, and then reads this one.
    monkeypatch.setattr(vocabularies, "open", refuse, raising=False)
    with errors.expect_user_error(errors.DENIED, where=file, remedy="chmod"):
        vocabularies.load_vocabulary(str(file))


def test_a_vocabulary_without_sentinels_has_the_size_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        "sentencepiece", reason="NOT CHECKED: needs the packages of a baked environment"
    )
    data = corpora.write_text_files(tmp_path / "t", WORDS)
    argv = ["vocab", "train", "--data", data, "--size", "420", "--extra-ids", "0"]
    assert cli.main([*argv, "--out", f"{tmp_path}/a.model", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)["result"]
    assert (result["size"], result["sentinels"], captured.err) == (420, 0, "")
    vocabulary = vocabularies.load_vocabulary(f"{tmp_path}/a.model", 0)
    assert result["fingerprint"] == vocabulary.fingerprint()


@pytest.mark.parametrize(
    ("changes", "kind", "facts"),
    [
        ({"size": 300}, errors.INVALID, {"where": "--size", "value": 300}),
        ({"size": 50_000}, errors.TOO_BIG, {"where": "--size", "value": 50_000}),
        ({"out": "mine.txt"}, errors.INVALID, {"where": "mine.txt", "remedy": "mine.txt.model"}),
        ({"out": "/nowhere/a.model"}, errors.MISSING, {"where": "/nowhere"}),
        (
            {"coverage": 5.0},
            errors.INVALID,
            {"where": "--coverage", "value": 5.0, "remedy": ("0.98", "1")},
        ),
        (
            {"size": 110, "extra_ids": 100, "byte_fallback": False},
            errors.FAILED,
            {"names": "SentencePiece", "remedy": "--size"},
        ),
    ],
)
def test_a_refused_training_leaves_no_file(
    changes: dict[str, object], kind: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip(
        "sentencepiece", reason="NOT CHECKED: needs the packages of a baked environment"
    )
    from rosetta.data import vocabulary_training

    data = corpora.write_text_files(tmp_path / "t", WORDS)
    settings: dict[str, object] = {"out": str(tmp_path / "v" / "a.model"), "size": 400, **changes}
    (tmp_path / "v").mkdir()
    with errors.expect_user_error(kind, **facts):
        vocabulary_training.train_vocabulary(data_spec.parse_parts(data), **settings)  # type: ignore[arg-type]
    assert not list((tmp_path / "v").iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "sentencepiece", reason="NOT CHECKED: needs the packages of a baked environment"
    )
    from rosetta.data import vocabulary_training

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    data = corpora.write_text_files(tmp_path / "t", WORDS)
    (tmp_path / "v").mkdir()
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        vocabulary_training.train_vocabulary(
            data_spec.parse_parts(data), str(tmp_path / "v" / "a.model"), size=440, extra_ids=20
        )
    assert not list((tmp_path / "v").iterdir())


def test_an_existing_vocabulary_is_never_overwritten(model: str) -> None:
    from rosetta.data import vocabulary_training

    with errors.expect_user_error(errors.EXISTS, where=model):
        vocabulary_training.train_vocabulary(data_spec.parse_parts("text:/x"), model, size=400)


def test_a_language_model_takes_llamas_special_ids(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip(
        "sentencepiece", reason="NOT CHECKED: needs the packages of a baked environment"
    )
    train = functools.partial(
        sentencepiece.SentencePieceTrainer.train, vocab_size=100, minloglevel=2
    )
    train(
        sentence_iterator=iter(WORDS),
        model_prefix=str(tmp_path / "llama"),
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
    )
    with errors.expect_user_error(
        errors.INVALID, where="llama.model", value=(-1, 2, 0), names="(0, 1, 2)"
    ):
        vocabularies.load_vocabulary(f"{tmp_path}/llama.model")
    vocabulary = vocabularies.load_vocabulary(f"{tmp_path}/llama.model", 0, causal=True)
    assert (vocabulary.size, vocabulary.eos) == (100, 2)
    ids = vocabulary.encode(["bada sulo"])[0].tolist()
    assert vocabulary.decode([*ids, 2, *ids]) == "bada sulo"
    train(
        sentence_iterator=iter(WORDS),
        model_prefix=str(tmp_path / "endless"),
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        pad_id=0,
    )
    with errors.expect_user_error(errors.INVALID, where="endless.model", value=(0, -1, 1)):
        vocabularies.load_vocabulary(f"{tmp_path}/endless.model", 0, causal=True)
