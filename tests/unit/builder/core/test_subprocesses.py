"""What an error shows of a program that failed."""

from __future__ import annotations

import sys

import pytest

from builder.core import subprocesses
from rosetta.core.printable_text import escape
from tests.support import errors


@pytest.mark.parametrize(
    ("output", "prefer", "shown"),
    [
        ("", (), "it printed no message"),
        (" \n\n", (), "it printed no message"),
        ("one\n", (), "one"),
        ("one\ntwo  \tthree\n\nfour", (), "one | two three | four"),
        ("same\nsame\n", (), "same"),
        (b"\xff\n", (), "\ufffd"),
        ("noise\nE: first\nE: second\n", ("E: ",), "E: first | E: second"),
        ("only noise\n", ("E: ",), "only noise"),
        ("\x1b[31mred\x1b[0m \u202eevil\x07", (), r"\x1b[31mred\x1b[0m \u202eevil\x07"),
        ("get https://me:hunter2@host/ MY_TOKEN=hunter2", (), "get https://...@host/ MY_TOKEN=..."),
    ],
)
def test_the_end_of_an_output(output: str | bytes, prefer: tuple[str, ...], shown: str) -> None:
    assert subprocesses.output_end(output, prefer=prefer) == shown


def test_of_a_long_output_the_end_is_shown() -> None:
    shown = subprocesses.output_end("".join(f"line {number}\n" for number in range(10_000)))
    assert len(shown) <= subprocesses.LONGEST
    assert shown.startswith("...")
    assert shown.endswith("| line 9999")


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("import sys; print('out'); sys.exit('the reason')", ["the reason"]),
        ("import sys; print('on stdout'); sys.exit(4)", ["on stdout"]),
        ("import sys; sys.exit(4)", []),
        (
            "import os; os.kill(os.getpid(), 9)",
            ["signal 9"],
        ),
    ],
)
def test_a_failure_shows_the_end_of_what_was_printed(code: str, facts: list[str]) -> None:
    with errors.expect_user_error(
        errors.FAILED, where="here", names=("it failed: ", *facts), remedy="mend it"
    ):
        subprocesses.run_program(
            [sys.executable, "-c", code], where="here", what="it failed", do="mend it"
        )


def test_what_it_printed_and_what_is_not_there() -> None:
    assert subprocesses.run_program([sys.executable, "-c", "print('fine')"]) == "fine\n"
    with errors.expect_user_error(
        errors.MISSING, where="no-such-program", remedy="install no-such-program"
    ):
        subprocesses.run_program(["/nowhere/no-such-program"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("naïve 漢字 🎉", "naïve 漢字 🎉"),
        ("a\tb\nc", "a\tb\nc"),
        ("\r\x1b]0;title\x07", r"\r\x1b]0;title\x07"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\u202eb\u2066a\u200f\u061c", r"\u202eb\u2066a\u200f\u061c"),
        ("\u2028\u2029\u200b\ufeff\U000e0041", r"\u2028\u2029\u200b\ufeff\U000e0041"),
        ("\udc80", r"\udc80"),
    ],
)
def test_no_character_controls_the_terminal(text: str, shown: str) -> None:
    assert escape(text) == shown
