"""A bad record can't stop a run unseen: every reader finds each kind, by file and place, and skips it where asked to."""

from __future__ import annotations

import gzip
import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rosetta.data import (
    bad_records,
    data_spec,
    documents,
    json_lines,
    pipeline,
    prefetch,
    task_records,
    text_corpora,
)
from tests.support import corpora, errors
from tests.unit.rosetta.commands.test_data import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GOOD = [json.dumps({"text": f"good words number {number}"}) for number in range(60)]
BAD_LINES = {
    '{"text": null}': "'text' is null",
    '{"text": 7}': "a number",
    '{"text": true}': "is true",
    '{"text": ["a", "b"]}': "a list",
    '{"text": {"a": 1}}': "an object",
    '{"body": "words"}': "'text' (it has: body)",
    '{"text": "cut': "not valid JSON",
    "{}": "'text' (it has: nothing)",
    '{"text": "\xff': "not valid JSON",
    "words": "not valid JSON",
    "17": "a JSON object but",
    '[{"text": "a"}]': "a list",
    "[": "JSON array",
    "[" * 100_000: "JSON array",
    '{"a":' * 100_000: "not valid JSON: nested",
}
SURROGATES = {
    json.dumps({"text": "cut "})[:-2] + '\\ud83d here"}': "cut \ufffd here",
    '{"text": "low \\ude00"}': "low \ufffd",
    '{"text": "whole \\ud83d\\ude00"}': "whole \U0001f600",
    '{"text": "turned \\ude00\\ud83d"}': "turned \ufffd\ufffd",
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv("BAD_RECORDS", raising=False)
    monkeypatch.delenv("CHANGED_DATA", raising=False)
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    bad_records.forget_notes()
    yield
    bad_records.forget_notes()
    json_lines.set_field_option("TEXT_FIELD")


def write_lines(path: Path, bad: str, at: int = 40) -> str:
    body = "\n".join([*GOOD[:at], bad, *GOOD[at:]]) + "\n"
    encoded = body.encode("latin-1") if "\xff" in bad else body.encode()
    path.write_bytes(gzip.compress(encoded) if path.suffix == ".gz" else encoded)
    return f"jsonl:{path}"


def read_target_rows(data: str) -> list[Any]:
    batches = pipeline.Batches(corpora.make_recipe(data, "lm", inputs=0), 60)
    return [row for step in range(6) for row in batches.make_batch(step)["decoder_target_tokens"]]


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_every_reader_of_lines_names_the_line_or_skips_it(
    bad: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, fault = write_lines(tmp_path / name, bad), BAD_LINES[bad]
    source = data_spec.parse_spec(data)
    reads: list[Callable[[], list[Any]]] = [lambda: list(documents.read_documents(source, "text"))]
    if name == "a.jsonl":
        corpus = text_corpora.open_corpus(source, "text")
        reads += [lambda: corpus.read_texts(0, corpus.size), lambda: read_target_rows(data)]
    for read in reads:
        with errors.expect_user_error(
            errors.INVALID,
            where=f"{tmp_path}/{name}, line 41",
            names=fault,
            remedy="BAD_RECORDS=skip",
        ) as raised:
            read()
        assert "\n" not in str(raised.value)
    monkeypatch.setenv("BAD_RECORDS", "skip")
    for read in reads:
        assert len(read()) in (60, 360)
    assert bad_records.count_skipped() == 1


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
def test_data_check_reads_all_records_and_counts_bad_ones(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_lines(tmp_path / "a.jsonl", bad, at=60)
    assert run("data", "check", data, "--mean-span", "20", "--head")[0]["ok"]
    result, text = run("data", "check", data, "--mean-span", "20")
    assert not result["ok"]
    assert result["bad"]["total"] == 1
    assert "a.jsonl, line 61: " in text
    assert BAD_LINES[bad] in text
    assert result["counts"][data] == {
        "records": 60,
        "tokens": sum(len(json.loads(line)["text"]) for line in GOOD),
    }
    monkeypatch.setenv("BAD_RECORDS", "skip")
    assert run("data", "check", data, "--mean-span", "20")[0]["ok"]


def test_data_check_prints_the_first_bad_records_of_each_kind(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(['{"text": null}'] * 50 + ["{"] * 50 + GOOD) + "\n")
    result, text = run("data", "check", f"jsonl:{tmp_path}/a.jsonl", "--mean-span", "20")
    assert result["bad"]["total"] == 100
    assert len(result["bad"]["first"]) == 6
    assert "100 bad records, of which 6 are shown" in text


@pytest.mark.parametrize(("line", "text"), SURROGATES.items(), ids=range(len(SURROGATES)))
def test_every_reader_replaces_lone_surrogates_and_warns_once(
    line: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_lines(tmp_path / "a.jsonl", line)
    source = data_spec.parse_spec(data)
    assert text in list(documents.read_documents(source, "text"))
    corpus = text_corpora.open_corpus(source, "text")
    assert text in corpus.read_texts(0, corpus.size)
    read_target_rows(data)
    assert run("data", "check", data, "--mean-span", "20")[0]["ok"]
    run("data", "show", data, "--mean-span", "20")
    run("data", "cache", data, "--out", str(tmp_path / "out"), "--jobs", "1")
    pair = tmp_path / "pairs.jsonl"
    pair.write_text(line.replace('"text"', '"targets": "\\ud83d", "inputs"') + "\n")
    assert [
        (found["inputs"], found["targets"])
        for found in task_records.read_examples(
            data_spec.parse_spec(f"jsonl:{pair}"), "text_to_text", "train"
        )
    ] == [(text, "\ufffd")]
    warnings = capsys.readouterr().err.splitlines()
    about = [line for line in warnings if f"{tmp_path}/a.jsonl " in line and "Unicode" in line]
    assert len(about) == ("\ufffd" in text)


def test_bad_records_of_other_files_are_named_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [corpora.encode_example(text=[f"some words {number}".encode()]) for number in range(9)]
    broken = {
        "'text' (it has: body)": corpora.encode_example(body=[b"x"]),
        "'text'": corpora.encode_example(text=[7]),
        "tf.train.Example": b"plain text",
    }
    for fault, body in broken.items():
        path = tmp_path / f"{len(body)}.tfrecord"
        corpora.write_tfrecords(path, [*good[:5], body, *good[5:]])
        source = data_spec.parse_spec(f"tfrecord:{path}")
        corpus = text_corpora.open_corpus(source, "text")
        monkeypatch.delenv("BAD_RECORDS", raising=False)
        for read in (
            lambda source=source: list(documents.read_documents(source, "text")),
            lambda corpus=corpus: corpus.read_texts(0, corpus.size),
        ):
            with errors.expect_user_error(errors.INVALID, where=f"{path}, record 6", names=fault):
                read()
        monkeypatch.setenv("BAD_RECORDS", "skip")
        assert (
            len(list(documents.read_documents(source, "text")))
            == len(corpus.read_texts(0, corpus.size))
            == 9
        )


def test_bytes_that_are_not_utf8_are_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"words and words " * 20 + b"\xff\n" + b"more words\n")
    source = data_spec.parse_spec(f"text:{path}")
    corpus = text_corpora.open_corpus(source, "")
    assert (
        len(list(documents.read_documents(source, "")))
        == len(corpus.read_texts(0, corpus.size))
        == 2
    )
    warnings = capsys.readouterr().err
    assert warnings.count(f"{path} ") == warnings.count("Unicode") == 1


def test_bad_records_of_pairs_are_named_or_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"inputs": "a", "targets": "b"}\n\n{"inputs": "a"}\n[]\n{"inputs": "c", "targets": "d"}\n'
    )
    source = data_spec.parse_spec(f"jsonl:{path}")
    with errors.expect_user_error(
        errors.INVALID, where="a.jsonl, line 3", names=("text_to_text", "target")
    ):
        list(task_records.read_examples(source, "text_to_text", "train"))
    monkeypatch.setenv("BAD_RECORDS", "skip")
    assert [
        found["inputs"] for found in task_records.read_examples(source, "text_to_text", "train")
    ] == [
        "a",
        "c",
    ]
    assert bad_records.count_skipped() == 2


def test_workers_report_skipped_records_to_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    data = write_lines(tmp_path / "a.jsonl", '{"text": null}')
    monkeypatch.setenv("BAD_RECORDS", "skip")
    batches = pipeline.Batches(corpora.make_recipe(data, "lm", inputs=0), 8)
    capfd.readouterr()
    bad_records.forget_notes()
    reading = prefetch.Loader(batches, workers=1)
    for _ in range(8):
        next(reading)
    reading.close()
    assert bad_records.count_skipped() == 1
    assert capfd.readouterr().err.count("line 41: 'text' is null") == 1


def test_an_invalid_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAD_RECORDS", "drop")
    with errors.expect_user_error(
        errors.INVALID, where="BAD_RECORDS", value="drop", remedy=("stop", "skip")
    ):
        bad_records.read_policy()


def test_an_error_keeps_its_place_between_processes() -> None:
    error = bad_records.RecordFault("what", "do", "kind").locate("a.jsonl", "line 3")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 (ours)
    assert (str(copy), copy.fault, copy.path) == ("a.jsonl, line 3: what; do", "kind", "a.jsonl")
    errors.check_error(copy, errors.INVALID, where="line 3")


def test_a_long_line_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(f"w{number:06d}" for number in range(60_000))
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"text": "first"}) + "\n" + json.dumps({"text": text}) + "\n"
    )
    parsed: list[int] = []
    usual = json_lines.parse_object

    def parse(line: bytes) -> dict[str, Any]:
        parsed.append(len(line))
        return usual(line)

    monkeypatch.setattr(json_lines, "parse_object", parse)
    corpus = text_corpora.open_corpus(data_spec.parse_spec(f"jsonl:{tmp_path}/a.jsonl"), "text")
    read = [
        piece
        for start in range(0, corpus.size, 5_000)
        for piece in corpus.read_texts(start, start + 5_000)
    ]
    assert "".join(read[1:]) == text
    assert sum(size > 1000 for size in parsed) == 1


@pytest.mark.parametrize("name", ["a,b.txt", "wiki[en].txt", "[x].txt", "a,b,c.txt", "plain.txt"])
def test_any_name_of_a_file_can_be_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("words\n")
    (tmp_path / "other.txt").write_text("others\n")
    (tmp_path / "wikie.txt").write_text("not asked for\n")
    assert data_spec.find_files(data_spec.parse_spec(f"text:{tmp_path}/{name}")) == (
        f"{tmp_path}/{name}",
    )
    assert set(
        data_spec.find_files(data_spec.parse_spec(f"text:{tmp_path}/{name},{tmp_path}/other.txt"))
    ) == {
        f"{tmp_path}/{name}",
        f"{tmp_path}/other.txt",
    }
    assert len(data_spec.find_files(data_spec.parse_spec(f"text:{tmp_path}/*.txt"))) == 3
    with errors.expect_user_error(errors.MISSING, where="gone.txt"):
        data_spec.find_files(data_spec.parse_spec(f"text:{tmp_path}/{name},{tmp_path}/gone.txt"))


def test_the_field_is_named_by_the_option_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "words"}\n')
    with errors.expect_user_error(errors.INVALID, where="a.jsonl, line 1", remedy="--field"):
        run("data", "check", f"jsonl:{tmp_path}/a.jsonl", "--mean-span", "20", "--head")


@pytest.mark.parametrize("kind", ["text", "jsonl", "tfrecord", "cache"])
def test_a_file_that_changed_at_equal_size_is_noticed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = corpora.make_documents(40)
    if kind == "tfrecord":
        corpora.write_tfrecords(
            tmp_path / "a.tfrecord", [corpora.encode_example(text=[doc.encode()]) for doc in docs]
        )
        data, path = f"tfrecord:{tmp_path}/a.tfrecord", tmp_path / "a.tfrecord"
    elif kind == "jsonl":
        data, path = corpora.write_jsonl_files(tmp_path, docs), tmp_path / "a.jsonl"
    else:
        data, path = (
            corpora.write_text_files(tmp_path / "data", docs, files=1),
            tmp_path / "data" / "0.txt",
        )
    if kind == "cache":
        run(
            "data",
            "cache",
            data,
            "--out",
            str(tmp_path / "out"),
            "--jobs",
            "1",
            "--extra-ids",
            "100",
        )
        data, path = f"cache:{tmp_path}/out", tmp_path / "out" / "tokens-00000.bin"
    recipe = corpora.make_recipe(data)
    state = json.loads(json.dumps(pipeline.Batches(recipe, 4).make_state(5)))
    pipeline.Batches(recipe, 4).resume(state, 5)
    body = bytearray(path.read_bytes())
    place = len(body) // 2
    place += next(
        offset for offset in range(len(body)) if 97 <= body[place + offset] < 122 or kind == "cache"
    )
    body[place] += 1 if body[place] < 255 else -1
    path.write_bytes(body)
    with errors.expect_user_error(
        errors.DIFFERS, where="DATA=", names=path.name, remedy="CHANGED_DATA=accept"
    ):
        pipeline.Batches(recipe, 4).resume(state, 5)
    monkeypatch.setenv("CHANGED_DATA", "accept")
    assert "from step 5 on with example 20" in str(pipeline.Batches(recipe, 4).resume(state, 5))
    del state["contents"], state["grid"]  # as an older release kept it
    assert pipeline.Batches(recipe, 4).resume(state, 5) is None


def test_a_repaired_file_continues_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_lines(tmp_path / "a.jsonl", '{"text": null}')
    recipe = corpora.make_recipe(data, "lm", inputs=0)
    monkeypatch.setenv("BAD_RECORDS", "skip")
    before = pipeline.Batches(recipe, 4)
    state = json.loads(json.dumps(before.make_state(3)))
    write_lines(tmp_path / "a.jsonl", "")
    with errors.expect_user_error(
        errors.DIFFERS, where="DATA=", names="a.jsonl", remedy="CHANGED_DATA=accept"
    ):
        pipeline.Batches(recipe, 4).resume(state, 3)
    monkeypatch.setenv("CHANGED_DATA", "accept")
    after = pipeline.Batches(recipe, 4)
    assert "none" not in str(after.resume(state, 3))
    assert (after.source.count, after.source.stretch) == (  # type: ignore[attr-defined]
        before.source.count,  # type: ignore[attr-defined]
        before.source.stretch,  # type: ignore[attr-defined]
    )
    again = json.loads(json.dumps(after.make_state(4)))
    monkeypatch.delenv("CHANGED_DATA")
    third = pipeline.Batches(recipe, 4)
    assert third.resume(again, 4) is None
    assert np.array_equal(
        third.make_batch(4)["decoder_target_tokens"], after.make_batch(4)["decoder_target_tokens"]
    )
