from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from rosetta.selftest import tensorboard_events
from tests.support import event_files

if TYPE_CHECKING:
    from pathlib import Path

NAME = "events.out.tfevents.1.host.0.v2"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (event_files.encode_simple_value("loss", 2.5), 2.5),
        (
            event_files.encode_tensor_value(
                "loss", tensorboard_events.FLOAT, content=struct.pack("<f", 0.25)
            ),
            0.25,
        ),
        (
            event_files.encode_tensor_value(
                "loss", tensorboard_events.FLOAT, packed=(5, struct.pack("<f", 0.75))
            ),
            0.75,
        ),
        (
            event_files.encode_tensor_value(
                "loss", tensorboard_events.DOUBLE, content=struct.pack("<d", 1e-3)
            ),
            1e-3,
        ),
        (
            event_files.encode_tensor_value(
                "loss", tensorboard_events.DOUBLE, packed=(6, struct.pack("<d", 3.0))
            ),
            3.0,
        ),
        (
            event_files.encode_tensor_value(
                "loss", tensorboard_events.BFLOAT16, content=b"\x80\x3f"
            ),
            1.0,
        ),
    ],
)
def test_every_encoding_of_a_scalar_is_read(tmp_path: Path, value: bytes, expected: float) -> None:
    event_files.append_records(
        tmp_path / NAME,
        event_files.encode_version_event() + event_files.encode_summary_event(300, 1e9, value),
    )
    assert tensorboard_events.read_event_file(tmp_path / NAME) == [
        tensorboard_events.Scalar(300, 1e9, "loss", expected)
    ]


def test_texts_and_other_tags_are_left_out(tmp_path: Path) -> None:
    text = event_files.encode_tensor_value("config", 7, packed=(8, b"words"))
    event_files.append_records(
        tmp_path / NAME,
        event_files.encode_summary_event(
            5,
            1.0,
            text,
            event_files.encode_simple_value("rate", 1.0),
            event_files.encode_simple_value("loss", 2.0),
        ),
    )
    assert tensorboard_events.read_scalars(tmp_path, "loss") == {5: 2.0}
    assert tensorboard_events.read_scalars(tmp_path, "config") == {}


def test_an_incomplete_last_record_is_left_out(tmp_path: Path) -> None:
    whole, next_one = (
        event_files.encode_summary_event(step, 1.0, event_files.encode_simple_value("loss", 1.0))
        for step in (5, 10)
    )
    for cut in range(len(next_one)):
        (tmp_path / NAME).write_bytes(whole + next_one[:cut])
        assert list(tensorboard_events.read_scalars(tmp_path, "loss")) == [5]
    (tmp_path / NAME).write_bytes(whole + next_one)
    assert list(tensorboard_events.read_scalars(tmp_path, "loss")) == [5, 10]


def test_a_missing_folder_has_no_scalars(tmp_path: Path) -> None:
    assert tensorboard_events.read_scalars(tmp_path / "none", "loss") == {}


def test_the_speed_comes_from_a_file_with_both_steps(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / NAME, tmp_path / "b" / NAME
    event_files.append_records(
        first,
        event_files.encode_summary_event(5, 10.0, event_files.encode_simple_value("loss", 1.0)),
    )
    for step, at in ((5, 10.0), (10, 11.0), (20, 12.5)):
        event_files.append_records(
            second,
            event_files.encode_summary_event(
                step, at, event_files.encode_simple_value("loss", 1.0)
            ),
        )
    assert tensorboard_events.measure_speed(tmp_path, [5, 10, 20]) == pytest.approx(6.0)
    assert tensorboard_events.measure_speed(tmp_path, [5]) is None
    assert tensorboard_events.measure_speed(tmp_path, [5, 40]) is None
