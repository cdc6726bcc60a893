"""Lines about a phase that takes long."""

from __future__ import annotations

import io
import sys
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def list_bars(self) -> list[str]:
        """Return the bars, without their marks and the seconds."""
        lines = self.getvalue().replace("\n", "\r").split("\r")
        bars = [line.removeprefix("\x1b[K") for line in lines if "[" in line and "]" in line]
        return [bar.split("] ")[1].split(":")[0] for bar in bars]


def test_a_terminal_has_a_bar_of_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.show_parts("plan", 2, are_phases=True):
        with progress.show_phase("tracing"):
            pass
        with progress.show_phase("compiling"):
            pass
        with progress.show_phase("more"):
            pass
    assert terminal.list_bars() == ["0/2, tracing", "1/2", "1/2, compiling", "2/2"]
    assert "plan: more" in terminal.getvalue()


def test_a_terminal_has_a_bar_of_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.show_parts("search", 10):
        for _ in range(2):
            with progress.show_phase("compiling"):
                pass
            progress.finish_part()
    shown = [bar.split(",")[0] for bar in terminal.list_bars()]
    assert [*dict.fromkeys(shown)] == ["0/10", "1/10", "2/10"]
    assert "left" in terminal.getvalue()


def test_lines_are_the_same_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.show_parts("plan", 1, are_phases=True), progress.show_phase("a phase"):
        pass
    assert len(read_lines(capsys)) == 2
