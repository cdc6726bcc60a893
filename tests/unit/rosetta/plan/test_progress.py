"""Lines about a phase that takes long."""

from __future__ import annotations

import time

import pytest

from rosetta.plan import progress


def read_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "a phase" in line]


def test_a_phase_that_takes_long_is_shown_while_it_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress.show_phase("a phase", interval=0.01):
        deadline = time.monotonic() + 30
        shown: list[str] = []
        while len(shown) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            shown += read_lines(capsys)
    assert len(read_lines(capsys)) >= 1


def test_a_short_phase_has_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.show_phase("a phase"):
        pass
    assert len(read_lines(capsys)) == 2


def test_a_phase_that_fails_has_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="bad"), progress.show_phase("a phase"):
        raise ValueError("bad")
    assert len(read_lines(capsys)) == 1
