"""Options of a decoding that are not valid, or contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from rosetta.inference.decoding import Decoding
from tests.support import errors


@pytest.mark.parametrize(
    ("kind", "where", "values"),
    [
        (errors.INVALID, "--top-p", {"temperature": 1.0, "top_p": 1.5}),
        (errors.INVALID, "--top-p", {"temperature": 1.0, "top_p": 0.0}),
        (errors.CONFLICT, "--beams 2", {"beams": 2, "temperature": 1.0}),
        (errors.CONFLICT, "--beams 2", {"beams": 2, "top_p": 0.5}),
        (errors.CONFLICT, "--beams 2", {"beams": 2, "samples": 3}),
        (errors.MISSING, "--beams 2", {"beams": 2, "stop_ids": ()}),
        (errors.CONFLICT, "--temperature 0", {"top_k": 3}),
        (errors.CONFLICT, "--temperature 0", {"samples": 2}),
    ],
)
def test_wrong_options(kind: str, where: str, values: dict[str, Any]) -> None:
    with errors.expect_user_error(kind, where=where):
        Decoding(**{"max_tokens": 4, "stop_ids": (1,), **values}).check()


@pytest.mark.parametrize(
    "values", [{}, {"temperature": 0.5, "top_k": 3, "top_p": 1.0, "samples": 2}, {"beams": 1}]
)
def test_right_options(values: dict[str, Any]) -> None:
    decoding = Decoding(max_tokens=4, stop_ids=(1,), **values)
    assert decoding.check() is decoding
