"""Sentinels of SentencePiece models and of bytes, compared with SeqIO's and T5's own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

seqio = pytest.importorskip(
    "seqio", reason="NOT CHECKED: needs the packages of a baked environment"
)
pb2 = pytest.importorskip(
    "sentencepiece.sentencepiece_model_pb2",
    reason="NOT CHECKED: needs the packages of a baked environment",
)

from rosetta.data import data_checks, objectives, shuffling, vocabularies
from rosetta.t5x import dataset, pretrained
from rosetta.t5x.run import checkpoint_record
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
TEXTS = ("abc cab", "a <extra_id_0> b <extra_id_99> c", "<extra_id_1>", "a<extra_id_2>b", "")
BYT5_LENGTHS = {"inputs": 1024, "targets": 189}


def write_model(
    path: Path, pieces: int, sentinels: list[str], *, first: bool = False, kind: int = USER_DEFINED
) -> str:
    """Write a model of T5's special ids, three letters and fillers, `pieces` in all, with sentinel pieces behind or before the letters."""
    model = pb2.ModelProto()
    (
        model.trainer_spec.pad_id,
        model.trainer_spec.eos_id,
        model.trainer_spec.unk_id,
        model.trainer_spec.bos_id,
    ) = 0, 1, 2, -1
    for piece, special in (("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN)):
        model.pieces.add(piece=piece, score=0.0, type=special)
    words = ["▁", "a", "b", "c", "<", ">"] + [f"filler{number}" for number in range(pieces - 9)]
    blocks = [
        [(word, -float(number), NORMAL) for number, word in enumerate(words)],
        [(name, 0.0, kind) for name in sentinels],
    ]
    for block in reversed(blocks) if first else blocks:
        for piece, score, piece_type in block:
            model.pieces.add(piece=piece, score=score, type=piece_type)
    path.write_bytes(model.SerializeToString())
    return str(path)


def names(count: int, mark: str = "▁") -> list[str]:
    """Return the sentinel pieces as T5 orders them: the last one is <extra_id_0>."""
    return [f"{mark}<extra_id_{number}>" for number in reversed(range(count))]


def t5_marks(theirs: Any, tokens: np.ndarray, masks: np.ndarray) -> list[list[int]]:
    """Return what T5's own preprocessor makes of rows with masked spans."""
    from t5.data import preprocessors

    sized = dataclasses.make_dataclass("Sized", ["vocab_size"])(theirs.vocab_size)
    return [
        preprocessors.noise_span_to_unique_sentinel(row, mask, vocabulary=sized, seeds=None)
        .numpy()
        .tolist()
        for row, mask in zip(tokens, masks, strict=True)
    ]


@pytest.mark.parametrize(
    ("pieces", "own", "extra_ids", "size", "rows"),
    [
        (
            32_000,
            100,
            None,
            32_100,
            32_128,
        ),  # T5's published file, as upstream's gin files name it: extra_ids=0
        (250_000, 100, None, 250_100, 250_112),  # mT5's
        (
            32_000,
            0,
            None,
            32_100,
            32_128,
        ),  # T5's other file, which T5's own tasks read with extra_ids=100
        (32_000, 100, 0, 32_100, 32_128),
        (32_000, 0, 0, 32_000, 32_000),
        (32_000, 0, 125, 32_125, 32_128),
        (32_000, 0, 256, 32_256, 32_256),
        (256_000, 0, 300, 256_300, 256_384),  # umT5's
        (32_000, 300, None, 32_300, 32_384),
    ],
)
def test_ids_and_sentinels_are_seqios(
    tmp_path: Path, pieces: int, own: int, extra_ids: int | None, size: int, rows: int
) -> None:
    path = write_model(tmp_path / "v.model", pieces, names(own))
    found = vocabularies.load_vocabulary(path, extra_ids)
    theirs = seqio.SentencePieceVocabulary(path, extra_ids=found.extra_ids)
    assert dataset.vocabulary(path, extra_ids) == theirs
    assert dataset.convert_vocabulary(theirs) == found
    assert found.size == theirs.vocab_size == size
    vocabularies.check_model_size(found, rows)
    with errors.expect_user_error(errors.TOO_BIG, where="v.model", names="vocab_size"):
        vocabularies.check_model_size(found, size - 1)
    assert found.sentinel_ids == tuple(range(size - 1, size - 1 - found.sentinel_count, -1))
    assert found.sentinel_count == own + found.extra_ids
    for text in TEXTS:
        assert (
            found.encode([text])[0].tolist()
            == theirs.encode(text)
            == theirs.encode_tf(text).numpy().tolist()
        )
    for number, sentinel in enumerate(found.sentinel_ids):
        assert theirs.tokenizer.IdToPiece(sentinel) == f"▁<extra_id_{number}>"
        assert found.decode([sentinel, 4]) == f"<extra_id_{number}> a"


@pytest.mark.parametrize("extra_ids", [None, 0, 100, 125])
def test_span_corruption_of_bytes_marks_spans_as_t5_does(extra_ids: int | None) -> None:
    found = vocabularies.load_vocabulary("byte", extra_ids)
    theirs = seqio.ByteVocabulary(extra_ids=extra_ids or 0)
    assert dataset.vocabulary("byte", extra_ids) == theirs
    assert dataset.convert_vocabulary(theirs) == found
    rule = objectives.make_objective("span_corruption", BYT5_LENGTHS, mean_noise_span_length=20.0)
    rule.check_fits(found)
    keys = shuffling.derive_keys(3, np.arange(4))
    tokens: Any = np.stack(
        [np.resize(found.encode(["Größe & 水, and more"])[0], rule.window_length)] * 4
    )
    inputs, _ = rule.apply(list(tokens), keys, found)
    masks = objectives.draw_noise_mask(rule.window_length, keys, 0.15, 20.0)
    expected = t5_marks(theirs, tokens, masks)
    assert [row[: len(ids)].tolist() for row, ids in zip(inputs, expected, strict=True)] == expected
    assert inputs.max() == theirs.vocab_size - 1 == (258 if not extra_ids else 258 + extra_ids)


@pytest.mark.parametrize("own", [True, False])
def test_span_corruption_of_pieces_marks_spans_as_t5_does(tmp_path: Path, own: bool) -> None:
    path = write_model(tmp_path / "v.model", 32_000, names(100 if own else 0))
    found = vocabularies.load_vocabulary(path)
    theirs = seqio.SentencePieceVocabulary(path, extra_ids=0 if own else 100)
    keys = shuffling.derive_keys(3, np.arange(4))
    tokens: Any = np.arange(4 * 200, dtype=np.int32).reshape(4, 200) + 3
    inputs, _ = objectives.corrupt_spans(
        tokens, keys, np.array(found.sentinel_ids, np.int32), 0.15, 3.0
    )
    assert inputs.tolist() == t5_marks(
        theirs, tokens, objectives.draw_noise_mask(200, keys, 0.15, 3.0)
    )


@pytest.mark.parametrize("mark", ["", "▁"])
@pytest.mark.parametrize("kind", [USER_DEFINED, CONTROL, NORMAL])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("numbers", [[2, 1, 0], [0, 1, 2], [1, 2, 0], [7, 3, 5]])
def test_own_sentinels_are_known_by_their_number(
    tmp_path: Path, numbers: list[int], first: bool, kind: int, mark: str
) -> None:
    path = write_model(
        tmp_path / "v.model",
        20,
        [f"{mark}<extra_id_{number}>" for number in numbers],
        first=first,
        kind=kind,
    )
    found = vocabularies.load_vocabulary(path)
    begin = 3 if first else 20
    assert (found.extra_ids, found.size) == (0, 23)
    assert found.numbered_sentinels == {
        number: begin + numbers.index(number) for number in sorted(numbers)
    }
    assert [found.decode([sentinel]) for sentinel in found.sentinel_ids] == [
        f"<extra_id_{number}>" for number in sorted(numbers)
    ]
    rule = objectives.Objective("span_corruption", 12, 12, 1.0, 0.3)
    rule.check_fits(found)
    inputs, _ = rule.apply(
        [np.full(rule.window_length, 10, np.int32)], shuffling.derive_keys(0, np.arange(1)), found
    )
    marks = [one for one in inputs[0].tolist() if one in found.sentinel_ids]
    assert marks == list(found.sentinel_ids)[: len(marks)]
    assert marks
    with errors.expect_user_error(errors.CONFLICT, where="EXTRA_IDS=100", value=3):
        vocabularies.load_vocabulary(path, 100)


@pytest.mark.parametrize(
    "piece",
    [
        "<extra_id_>",
        "<extra_id_-1>",
        "x<extra_id_0>",
        "<extra_id_0>x",
        "<extra_ids_0>",
        "<extra_id_٠>",
    ],
)
def test_other_pieces_are_not_sentinels(tmp_path: Path, piece: str) -> None:
    assert (
        vocabularies.load_vocabulary(write_model(tmp_path / "v.model", 20, [piece])).extra_ids
        == 100
    )


def test_of_two_spellings_the_higher_id_counts(tmp_path: Path) -> None:
    found = vocabularies.load_vocabulary(
        write_model(
            tmp_path / "v.model",
            20,
            ["<extra_id_1>", "▁<extra_id_0>", "▁<extra_id_1>", "<extra_id_0>"],
        )
    )
    assert found.sentinel_ids == (23, 22)
    assert vocabularies.describe_sentinels(found) == "23 to 22"


def test_a_run_begun_with_added_sentinels_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Earlier releases did not know these as sentinels, since they count upwards, and added 100.
    path = write_model(tmp_path / "v.model", 200, names(3, mark="")[::-1])
    began = vocabularies.Vocabulary(path, 100)
    folder = tmp_path / "run" / "checkpoint_5"
    folder.mkdir(parents=True)
    checkpoint_record.write_record(
        str(tmp_path / "run"),
        checkpoint_record.Record(step=5, scale_attn_logits=False, vocabulary=began.fingerprint()),
    )
    for place in ({"checkpoint": str(folder)}, {"model_dir": str(tmp_path / "run")}):
        assert dataset.convert_vocabulary(dataset.vocabulary(path, **place)) == began
    assert (
        "sentinels: 302 to 203, as the run began; a new run has 200 to 202"
        in capsys.readouterr().err
    )
    assert dataset.convert_vocabulary(dataset.vocabulary(path)) == vocabularies.Vocabulary(path, 0)
    assert pretrained.read_vocabulary_fingerprint(None, str(tmp_path / "empty")) == ""


def test_checks_before_the_start_take_the_published_vocabulary(tmp_path: Path) -> None:
    path = write_model(tmp_path / "v.model", 32_000, names(100))
    data = corpora.write_text_files(tmp_path / "t", ["abc cab"] * 400)
    lengths = {"inputs": 512, "targets": 114}
    for objective in ("span_corruption", "prefix_lm", "lm"):
        data_checks.check_data(
            data=data, objective=objective, vocab=path, vocab_size=32_128, lengths=lengths
        )
