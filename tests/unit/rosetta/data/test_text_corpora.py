from __future__ import annotations

import itertools
import json
import pickle
from typing import TYPE_CHECKING

import pytest

from rosetta.data import data_spec, documents, text_corpora
from tests.support import corpora, data_sources, errors

if TYPE_CHECKING:
    from pathlib import Path

DOCS = corpora.make_documents(60)
WORDS = [word for doc in DOCS for word in doc.split()]


def write_corpus(kind: str, folder: Path) -> str:
    if kind == "text":
        return corpora.write_text_files(folder, DOCS)
    if kind == "jsonl":
        return corpora.write_jsonl_files(folder, DOCS)
    if kind != "tfrecord":
        return data_sources.write_records(kind, folder, [{"text": doc} for doc in DOCS])
    for number in range(3):
        corpora.write_tfrecords(
            folder / f"{number}.tfrecord",
            [corpora.encode_example(text=[doc.encode()]) for doc in DOCS[number::3]],
        )
    return f"tfrecord:{folder}/*.tfrecord"


@pytest.fixture(params=["text", "tfrecord", *data_sources.WRITERS])
def corpus(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> text_corpora.Corpus:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    return text_corpora.open_corpus(
        data_spec.parse_spec(write_corpus(request.param, tmp_path / "data")), "text"
    )


@pytest.mark.parametrize("step", [7, 64, 333, 100_000])
def test_neighbouring_stretches_share_no_word_and_lose_none(
    corpus: text_corpora.Corpus, step: int
) -> None:
    words = [
        word
        for start in range(0, corpus.size, step)
        for text in corpus.read_texts(start, min(start + step, corpus.size))
        for word in text.split()
    ]
    assert sorted(words) == sorted(WORDS)


def test_a_stretch_reads_the_same_alone(corpus: text_corpora.Corpus) -> None:
    whole = [corpus.read_texts(start, start + 100) for start in range(0, 2000, 100)]
    again = pickle.loads(pickle.dumps(corpus))  # noqa: S301 what a worker process gets
    assert again.read_texts(700, 800) == whole[7]
    assert any(whole)


def read_one_by_one(bounds: list[tuple[int, int]], start: int, stop: int) -> list[str]:
    """Return the parts of DOCS in a range of a corpus, of which each document is cut by itself."""
    parts = []
    for text, (first, last) in zip(DOCS, bounds, strict=True):
        if last > start and first < stop:
            size = last - first
            shares = max(start - first, 0) / size, min((stop - first) / size, 1.0)
            parts.append(text_corpora.extract_part(text, *shares))
    return [part for part in parts if part.strip()]


@pytest.mark.parametrize("long_bytes", [64, 700, 1 << 16])
@pytest.mark.parametrize("gap", [0, 1, 400])
def test_lines_are_read_alike_in_blocks_and_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_bytes: int, gap: int
) -> None:
    monkeypatch.setattr(text_corpora, "LONG_DOCUMENT_BYTES", long_bytes)
    lines = [json.dumps({"text": doc}) + " " * (number % 3) for number, doc in enumerate(DOCS)]
    bounds, body = [], ""
    for line in lines:
        bounds.append((len(body), len(body) + len(line)))
        body += line + "\n" * (1 + gap)
    path = tmp_path / "a.jsonl"
    path.write_text(body.rstrip("\n"))
    corpus = text_corpora.open_corpus(data_spec.parse_spec(f"jsonl:{path}"), "text")
    for start in range(0, corpus.size, 97):
        for length in (1, 40, 333, 5_000):
            stop = min(start + length, corpus.size)
            assert corpus.read_texts(start, stop) == read_one_by_one(bounds, start, stop)


@pytest.mark.parametrize("long_bytes", [64, 1 << 16])
def test_records_are_read_alike_together_and_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_bytes: int
) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(text_corpora, "LONG_DOCUMENT_BYTES", long_bytes)
    bodies = [corpora.encode_example(text=[doc.encode()], id=[3]) for doc in DOCS]
    # Records without a byte are no records of the corpus.
    between = ([b""] * (number % 3) for number in range(len(bodies)))
    pairs = zip(between, bodies, strict=True)
    written = [body for empty, record in pairs for body in (*empty, record)]
    corpora.write_tfrecords(tmp_path / "a.tfrecord", written)
    ends = list(itertools.accumulate(map(len, bodies)))
    bounds = list(itertools.pairwise([0, *ends]))
    corpus = text_corpora.open_corpus(data_spec.parse_spec(f"tfrecord:{tmp_path}/*"), "text")
    for start in range(0, corpus.size, 97):
        for length in (1, 40, 333, 5_000):
            stop = min(start + length, corpus.size)
            assert corpus.read_texts(start, stop) == read_one_by_one(bounds, start, stop)


def test_a_bad_line_among_others_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": doc}) for doc in DOCS]
    path.write_text("\n".join([*lines[:20], "", "no json", *lines[20:]]))
    corpus = text_corpora.open_corpus(data_spec.parse_spec(f"jsonl:{path}"), "text")
    with errors.expect_user_error(errors.INVALID, where=f"{path}, line 22", names="JSON"):
        corpus.read_texts(0, corpus.size)


def test_characters_are_never_cut_in_two(tmp_path: Path) -> None:
    text = "水曜日に生まれた子供は悲しみに満ちている" * 40
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    corpus = text_corpora.open_corpus(data_spec.parse_spec(f"text:{tmp_path}/a.txt"), "text")
    assert (
        "".join(
            "".join(corpus.read_texts(start, start + 50)) for start in range(0, corpus.size, 50)
        )
        == text
    )


def test_a_json_line_without_the_field_names_those_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"content": "x y z"}) + "\n")
    with errors.expect_user_error(
        errors.INVALID, where=f"{path}, line 1", names="'text' (it has: content)"
    ):
        text_corpora.open_corpus(data_spec.parse_spec(f"jsonl:{path}"), "text").read_texts(0, 10)
    assert text_corpora.open_corpus(data_spec.parse_spec(f"jsonl:{path}"), "content").read_texts(
        0, 100
    ) == ["x y z"]
    path.write_text("no json\n")
    with errors.expect_user_error(errors.INVALID, where=f"{path}, line 1", names="JSON"):
        text_corpora.open_corpus(data_spec.parse_spec(f"jsonl:{path}"), "text").read_texts(0, 10)


def test_lines_of_windows_end_before_their_carriage_return(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one two\r\nthree\r\n")
    source = data_spec.parse_spec(f"text:{tmp_path}/a.txt")
    assert (
        text_corpora.open_corpus(source, "text").read_texts(0, 100)
        == ["one two", "three"]
        == list(documents.read_documents(source, "text"))
    )


def test_empty_files_among_others_are_ignored(tmp_path: Path) -> None:
    for name, body in (("a", ""), ("b", "one two\n"), ("c", ""), ("d", "three\n")):
        (tmp_path / f"{name}.txt").write_text(body)
    corpus = text_corpora.open_corpus(data_spec.parse_spec(f"text:{tmp_path}/*.txt"), "text")
    assert corpus.read_texts(0, corpus.size) == ["one two", "three"]
