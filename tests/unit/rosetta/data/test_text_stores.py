from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rosetta.data import bad_records, batch_hashes, data_spec, pipeline, text_corpora, text_stores
from tests.support import corpora, data_sources, errors

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = data_sources.make_text_records(60)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BAD_RECORDS", raising=False)
    bad_records.forget_notes()


def read_all(data: str) -> list[str]:
    corpus = text_corpora.open_corpus(data_spec.parse_spec(data), "text")
    return corpus.read_texts(0, corpus.size)


def list_stores(tmp_path: Path) -> list[str]:
    folder = tmp_path / "home" / text_stores.STORES_FOLDER
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


@pytest.mark.parametrize("kind", [kind for kind in data_sources.WRITERS if kind != "jsonl"])
def test_a_store_has_the_texts_and_is_made_once(kind: str, tmp_path: Path) -> None:
    data = data_sources.write_records(kind, tmp_path / "data", RECORDS)
    assert read_all(data) == [record["text"] for record in RECORDS]
    stores = tmp_path / "home" / text_stores.STORES_FOLDER
    made = {path: path.stat().st_mtime_ns for path in stores.glob("*/texts.bin")}
    assert len(made) == (2 if kind == "saved" else 1)
    assert read_all(data) == [record["text"] for record in RECORDS]
    assert {path: path.stat().st_mtime_ns for path in stores.glob("*/texts.bin")} == made


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    data = data_sources.write_csv(tmp_path / "a.csv", RECORDS)
    read_all(data)
    data_sources.write_csv(tmp_path / "a.csv", RECORDS[:-1])
    assert len(read_all(data)) == len(RECORDS) - 1
    assert len(list_stores(tmp_path)) == 2


def test_compressed_and_plain_files_are_one_corpus(tmp_path: Path) -> None:
    for name, part in (("a.txt", RECORDS[:20]), ("c.txt", RECORDS[40:])):
        (tmp_path / name).write_text("".join(f"{record['text']}\n" for record in part))
    body = "".join(f"{record['text']}\n" for record in RECORDS[20:40]).encode()
    (tmp_path / "b.txt.gz").write_bytes(data_sources.compress(body, ".gz"))
    assert read_all(f"text:{tmp_path}/*.txt*") == [record["text"] for record in RECORDS]


def test_a_damaged_file_leaves_no_store(tmp_path: Path) -> None:
    data = data_sources.write_records("gz", tmp_path / "data", RECORDS)
    path = tmp_path / "data" / "a.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    for _ in range(2):
        with errors.expect_user_error(errors.DAMAGED, where="a.jsonl.gz"):
            read_all(data)
    assert list_stores(tmp_path) == []


def test_a_disk_without_room_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_sources.write_csv(tmp_path / "a.csv", RECORDS)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with errors.expect_user_error(errors.TOO_BIG, where="texts", remedy="ROSETTA_HOME"):
        read_all(data)
    assert list_stores(tmp_path) == []


def test_a_store_made_while_bad_records_were_skipped_still_stops_a_strict_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text\ngood one\nbad,row\ngood two\n")
    data = f"csv:{path}"
    with errors.expect_user_error(errors.INVALID, where=f"{path}, line 3"):
        read_all(data)
    monkeypatch.setenv("BAD_RECORDS", "skip")
    for _ in range(2):
        assert read_all(data) == ["good one", "good two"]
        assert bad_records.count_skipped() == 1
        bad_records.forget_notes()
    monkeypatch.delenv("BAD_RECORDS")
    with errors.expect_user_error(errors.INVALID, where=f"{path}, line 3", remedy="BAD_RECORDS"):
        read_all(data)


def test_a_process_that_is_killed_while_it_makes_a_store_leaves_no_half_of_it(
    tmp_path: Path,
) -> None:
    records = data_sources.make_text_records(20_000)
    data = data_sources.write_csv(tmp_path / "a.csv", records)
    program = (
        "import os, sys\n"
        "from rosetta.data import data_spec, text_corpora, text_stores\n"
        "text_stores.np.save = lambda *_: os.kill(os.getpid(), 9)\n"
        "text_corpora.open_corpus(data_spec.parse_spec(sys.argv[1]), 'text')\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, data], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert all(name.startswith(".tmp-") for name in list_stores(tmp_path))
    assert read_all(data) == [record["text"] for record in records]
    assert len(list_stores(tmp_path)) == 1


def test_the_order_is_that_of_the_texts_wherever_the_file_is(tmp_path: Path) -> None:
    hashes = []
    for folder in ("one", "two"):
        data = data_sources.write_records("csv", tmp_path / folder, RECORDS)
        batches = pipeline.Batches(corpora.make_recipe(data), 8)
        hashes.append((batches.fingerprint(), batch_hashes.hash_batch(batches.make_batch(5))))
    assert hashes[0] == hashes[1]
