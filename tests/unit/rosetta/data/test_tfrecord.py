from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from rosetta.data import example_messages, tfrecord
from rosetta.data.bad_records import RecordFault
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))


def test_the_checksum_is_that_of_rfc_3720() -> None:
    # CRC-32C of 32 zero bytes is 0x8a9136aa (RFC 3720, appendix B.4); masked as TFRecord does.
    crc = 0x8A9136AA
    assert (
        tfrecord.compute_masked_crc(bytes(32))
        == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    )


def test_records_are_found_by_number_across_files(tmp_path: Path) -> None:
    bodies = [bytes([number]) * (number * 37 % 300) for number in range(20)]
    corpora.write_tfrecords(tmp_path / "a", bodies[:7])
    corpora.write_tfrecords(tmp_path / "b", [])
    corpora.write_tfrecords(tmp_path / "c", bodies[7:])
    records = tfrecord.Records([str(tmp_path / name) for name in "abc"])
    assert [records[number] for number in range(len(records))] == bodies
    assert records.sizes.tolist() == [len(body) for body in bodies]
    assert records.find_place(7)[0].endswith("c")


def test_a_changed_file_is_indexed_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    corpora.write_tfrecords(path, [b"one"])
    assert len(tfrecord.load_index(str(path))) == 1
    assert len(list((tmp_path / "home" / "tfrecord-index").iterdir())) == 1
    corpora.write_tfrecords(path, [b"one", b"two"])
    assert len(tfrecord.load_index(str(path))) == 2


@pytest.mark.parametrize("kept", [0, 5, -1])
def test_a_damaged_index_is_made_again(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a"
    corpora.write_tfrecords(path, [b"one", b"two"])
    whole = tfrecord.load_index(str(path)).tolist()
    (index,) = (tmp_path / "home" / "tfrecord-index").iterdir()
    index.write_bytes(index.read_bytes()[:kept])
    for _ in range(2):
        assert tfrecord.load_index(str(path)).tolist() == whole


def test_a_full_disk_only_loses_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    corpora.write_tfrecords(tmp_path / "a", [b"one", b"two"])
    monkeypatch.setattr(np, "save", full)
    assert len(tfrecord.load_index(str(tmp_path / "a"))) == 2
    assert not list((tmp_path / "home" / "tfrecord-index").iterdir())


@pytest.mark.parametrize("kept", [5, 20, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a"
    corpora.write_tfrecords(path, [b"x" * 30])
    path.write_bytes(path.read_bytes()[:kept])
    with errors.expect_user_error(errors.DAMAGED, where=path):
        tfrecord.index_records(str(path))


def test_other_files_than_tfrecord_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("this is text, and long enough for a head")
    with errors.expect_user_error(errors.INVALID, where=tmp_path / "a", value=0, remedy="TFRecord"):
        tfrecord.index_records(str(tmp_path / "a"))


def test_an_example_of_every_kind_is_read() -> None:
    body = corpora.encode_example(
        text=["grüß".encode()], label=[2, -1, 300], score=[0.5, -2.0], long=[b"x" * 300, b"y"]
    )
    assert tfrecord.decode_example(body) == {
        "text": ["grüß".encode()],
        "label": [2, -1, 300],
        "score": [0.5, -2.0],
        "long": [b"x" * 300, b"y"],
    }
    assert tfrecord.parse_text(body, "text", "a") == "grüß"
    with pytest.raises(RecordFault, match="it has: label, long, score, text"):
        tfrecord.parse_text(body, "targets", "a")


@pytest.mark.parametrize("body", [b"\x0a\xff", b"plain text", b"\x0a\x05ab"])
def test_bytes_that_are_not_an_example_are_refused(body: bytes) -> None:
    with pytest.raises(RecordFault, match=r"tf\.train\.Example|'text'"):
        tfrecord.parse_text(body, "text", "a")


UNKNOWN_FIELD = b"\x10\x07"  # field 2 of Example, which has none: the number 7


@pytest.mark.parametrize(
    "body",
    [
        corpora.encode_example(text=[b"one"]),
        corpora.encode_example(label=[-1, 1 << 40], score=[0.5], text=[b"x" * 70_000, b"two"]),
        corpora.encode_example(text=[b"\xff\xfe"]),
        corpora.encode_example(text=[b"one"]) + corpora.encode_example(text=[b"the last counts"]),
        corpora.encode_example(text=[b"one"]) + UNKNOWN_FIELD,
    ],
    ids=["one", "many", "not-utf8", "twice", "unknown"],
)
def test_protobuf_finds_the_text_that_the_decoder_finds(body: bytes) -> None:
    pytest.importorskip("google.protobuf")
    (text, *_) = tfrecord.decode_example(body)["text"]
    assert example_messages.find_bytes(body, "text") == text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"plain text",
        corpora.encode_example(text=[b"one"])[:-1],
        corpora.encode_example(text=[1, 2]),
        corpora.encode_example(content=[b"one"]),
    ],
    ids=["nothing", "text", "cut-short", "numbers", "other-field"],
)
def test_protobuf_leaves_what_has_no_text_to_the_decoder(body: bytes) -> None:
    assert example_messages.find_bytes(body, "text") is None
    with pytest.raises(RecordFault):
        tfrecord.parse_text(body, "text", "a")


def test_text_is_found_without_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_messages, "_make_parser", lambda: None)
    assert tfrecord.parse_text(corpora.encode_example(text=[b"one"]), "text", "a") == "one"
