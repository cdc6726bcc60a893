from __future__ import annotations

import types

import pytest

from rosetta.t5x import values


def test_when_depends_on_its_condition() -> None:
    assert values.when("text:kept.txt", dict) == {}
    assert values.when(None, dict) is None


def test_a_task_and_its_name() -> None:
    assert values.task_name("mnli") == "mnli"
    assert values.task_name(types.SimpleNamespace(name="mnli")) == "mnli"


@pytest.mark.parametrize(
    ("ids", "rows"), [(359, 384), (384, 384), (32_100, 32_128), (250_100, 250_112), (1, 128)]
)
def test_rows_are_a_multiple_of_128(ids: int, rows: int) -> None:
    assert values.padded_size(types.SimpleNamespace(vocab_size=ids)) == rows
