from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING

import pytest

from builder import cli
from builder.commands import docs
from builder.core import log
from builder.core.command_context import Result
from tests.support import errors

if TYPE_CHECKING:
    from builder.core.cache import Cache

LINES = {
    "debug": ["debug: a", "b", "c ...", "c: 2 of 4 files", "c: 0.0 s", "warning: d", "rosetta: e"],
    "info": ["b", "c ...", "c: 2 of 4 files", "c: 0.0 s", "warning: d", "rosetta: e"],
    "warning": ["warning: d", "rosetta: e"],
    "error": ["rosetta: e"],
}


def write_all(*_: object) -> Result:
    log.debug("a")
    log.info("b")
    with log.stage("c"), log.progress("c", 4, "files") as advance:
        advance(2)
    log.warn("d")
    log.error("e")
    return Result({}, "result")


@pytest.mark.parametrize("level", LINES)
def test_a_level_hides_lines_below_it_and_no_result(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "run", write_all)
    assert cli.main(["docs", "--log-level", level]) == 0
    out, err = capsys.readouterr()
    lines = re.sub(r"[0-9]+\.[0-9] s", "0.0 s", err).splitlines()
    assert (out, lines) == ("result\n", LINES[level])


def test_a_bar_is_hidden_with_other_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for level, shown in (("warning", False), ("info", True)):
        monkeypatch.setattr(sys, "stderr", Terminal())
        with log.use_level(level), log.stage("c"):
            pass
        assert bool(sys.stderr.getvalue()) is shown  # type: ignore[union-attr]


def test_the_error_line_is_printed_at_every_level(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Result:
        raise errors.UserError("wrong", "here", "mend it")

    monkeypatch.setattr(docs, "run", fail)
    assert cli.main(["docs", "--log-level", "error"]) == 2
    assert capsys.readouterr().err == "rosetta: here: wrong; mend it\n"


def test_debug_shows_what_the_cache_has(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    with log.use_level("debug"):
        for _ in range(2):
            cache.ensure_folder("trees", "key", lambda _: None)
    assert capsys.readouterr().err.splitlines() == [
        "debug: cache: trees/key is made",
        "debug: cache: trees/key is used",
    ]


def test_a_counted_stage_has_a_bar_or_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def install() -> None:
        with log.stage("all"), log.counted_stage("install", 4, "packages") as advance:
            advance(1)
            advance(3)

    install()
    lines = re.sub(r"[0-9]+\.[0-9] s", "0.0 s", capsys.readouterr().err).splitlines()
    assert lines == [
        "all ...",
        "install ...",
        "install: 1 of 4 packages",
        "install: 4 of 4 packages",
        "install: 0.0 s",
        "all: 0.0 s",
    ]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    install()
    shown = terminal.getvalue()
    assert f"install [{'':24}] 0/4 packages" in shown
    assert f"install [{'#' * 24}] 4/4 packages\n" in shown
