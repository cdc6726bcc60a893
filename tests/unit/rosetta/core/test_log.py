from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from rosetta import cli
from rosetta.commands import info
from rosetta.core import log
from tests.support import errors

if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS = ("debug", "info", "warning", "error")


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(log.LEVEL_VARIABLE, raising=False)
    log.forget_shown()


def write_all() -> None:
    log.debug("a")
    log.info("b")
    log.info("c", prefix=False)
    log.warn("d")
    log.error("e")


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        (None, ["rosetta: b", "c", "rosetta: d", "rosetta: e"]),
        ("debug", ["rosetta: debug: a", "rosetta: b", "c", "rosetta: d", "rosetta: e"]),
        ("info", ["rosetta: b", "c", "rosetta: d", "rosetta: e"]),
        ("warning", ["rosetta: d", "rosetta: e"]),
        ("error", ["rosetta: e"]),
    ],
)
def test_a_level_hides_lines_below_it(
    level: str | None, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with log.use_level(level):
        write_all()
    assert capsys.readouterr().err.splitlines() == lines


def test_a_level_reaches_processes_that_are_started(capsys: pytest.CaptureFixture[str]) -> None:
    program = "from rosetta.core import log; log.info('note'); log.warn('warning')"
    with log.use_level("warning"):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    assert done.stderr == "rosetta: warning\n"
    assert log.LEVEL_VARIABLE not in os.environ
    log.info("as before")
    assert capsys.readouterr().err == "rosetta: as before\n"


def test_the_option_wins_over_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(log.LEVEL_VARIABLE, "error")
    with log.use_level(None):
        assert not log.is_shown(log.WARNING)
        with log.use_level("debug"):
            assert log.is_shown(log.DEBUG)
    monkeypatch.setenv(log.LEVEL_VARIABLE, "loud")
    with (
        errors.expect_user_error(errors.INVALID, where=log.LEVEL_VARIABLE, value="loud"),
        log.use_level(None),
    ):
        pytest.fail("the level is not valid")


def test_debug_shows_the_commands_that_are_started_without_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [sys.executable, "-c", "pass", "--url=https://me:hunter2@host/x"]
    with log.use_level("debug"):
        subprocess.run(argv, check=True)
    subprocess.run(argv, check=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rosetta: debug: start: {sys.executable} -c pass ")
    assert "hunter2" not in line


def test_debug_shows_the_traceback_of_an_unexpected_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for error in (ZeroDivisionError("odd"), errors.UserError("wrong", "here", "mend it")):
        with pytest.raises(type(error)), log.use_level("debug"):
            raise error
    err = capsys.readouterr().err
    assert err.startswith("rosetta: debug: Traceback")
    assert "test_log.py" in err
    assert "UserError" not in err


def test_a_line_is_written_once_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        log.warn("x", once=True)
        log.info("y")
    assert capsys.readouterr().err == "rosetta: x\nrosetta: y\nrosetta: y\n"


def test_a_closed_stderr_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    log.warn("x")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_count_is_shown_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, level, shown in (
        (Terminal(), "info", True),
        (Terminal(), "warning", False),
        (io.StringIO(), "info", False),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        with log.use_level(level):
            log.show_count("1/2")
        assert ("1/2" in stream.getvalue()) is shown


def test_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 20))  # 20 s between two parts
    monkeypatch.setattr(log, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    for number in (1, 2, 4):
        log.show_progress("writing", number, 4)
    bars = [line.removeprefix("\x1b[K") for line in terminal.getvalue().split("\r")[1:]]
    assert bars == [
        f"writing [{'#' * 6:<24}] 1/4",
        f"writing [{'#' * 12:<24}] 2/4, 0:40 left",
        f"writing [{'#' * 24}] 4/4\n",
    ]
    monkeypatch.setattr(sys, "stderr", file)
    for number in (1, 2, 3, 4):
        log.show_progress("reading", number, 4)
    assert file.getvalue() == "rosetta: reading: 3 of 4, 0:20 left\n"


def test_a_bar_is_not_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for number in (1, 2, 3):
        log.show_progress("writing", number, 3, note=f"a long name {number} " * 5)
    bars = [line.removeprefix("\x1b[K") for line in terminal.getvalue().split("\r")[1:]]
    assert [len(bar.rstrip("\n")) for bar in bars] == [39, 39, 39]
    assert bars[-1].endswith("\n")


def test_a_line_takes_the_place_of_an_open_count(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    log.show_progress("plan", 1, 3, unit="MB", note="compiling", estimates=False)
    log.info("a line")
    log.info("another")
    log.show_count("3", last=True)
    log.info("below")
    assert terminal.getvalue() == (
        f"\r\x1b[Kplan [{'#' * 8:<24}] 1/3 MB, compiling\r\x1b[Krosetta: a line\n"
        "rosetta: another\n\r\x1b[K3\nrosetta: below\n"
    )


def run_info(monkeypatch: pytest.MonkeyPatch, run: Callable[[], None], *words: str) -> int:
    """Return the status of `rosetta info` with another body."""

    def info_command(_: object) -> tuple[dict[str, object], str]:
        run()
        return {}, "result"

    monkeypatch.setitem(info.RUN, "info", info_command)
    return cli.main(["info", *words])


@pytest.mark.parametrize("level", LEVELS)
def test_results_are_printed_at_every_level(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_info(monkeypatch, write_all, "--log-level", level) == 0
    out, err = capsys.readouterr()
    assert out == "result\n"
    shown = LEVELS[LEVELS.index(level) :]
    assert [f": {mark}\n" in err for mark in "abde"] == [name in shown for name in LEVELS]


def test_the_error_line_is_printed_at_every_level(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise errors.UserError("wrong", "here", "mend it")

    assert run_info(monkeypatch, fail, "--log-level", "error") == 2
    assert capsys.readouterr().err == "rosetta: here: wrong; mend it\n"
    with errors.expect_reported_error(
        errors.UNKNOWN, where="rosetta info", value="loud", remedy="debug, info"
    ):
        assert run_info(monkeypatch, fail, "--log-level", "loud") == 2


def test_a_bar_of_a_command_reaches_a_real_terminal(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words of a document\n" * 100_000)
    command = [sys.executable, "-m", "rosetta", "data", "check", "text:a.txt", "--objective", "lm"]
    leader, terminal = pty.openpty()
    path = os.pathsep.join([str(Path(log.__file__).parents[2]), *filter(None, sys.path)])
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "ROSETTA_HOME": str(tmp_path / "home")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal is closed by the command's end
            while part := os.read(leader, 4096):
                shown += part
        os.close(leader)
        process.communicate()
    assert process.returncode == 0, shown
    assert b"\r\x1b[Kreading [" in shown
    assert b"\\" not in shown
