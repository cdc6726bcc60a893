"""Assert facts of an error instead of the sentence that a user reads.

with errors.expect_user_error(errors.MISSING, where="t5x.lock", remedy="build.py lock"):
    read_lock(path)
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from rosetta.core import exit_status
from rosetta.core.errors import (
    CONFLICT,
    DAMAGED,
    DENIED,
    DIFFERS,
    EXISTS,
    FAILED,
    IN_USE,
    INVALID,
    KINDS,
    MISSING,
    TOO_BIG,
    UNKNOWN,
    UNREACHABLE,
    UNSUPPORTED,
    UserError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "CONFLICT",
    "DAMAGED",
    "DENIED",
    "DIFFERS",
    "EXISTS",
    "FAILED",
    "INVALID",
    "IN_USE",
    "MISSING",
    "TOO_BIG",
    "UNKNOWN",
    "UNREACHABLE",
    "UNSUPPORTED",
    "UserError",
    "check_error",
    "collect_errors",
    "expect_reported_error",
    "expect_user_error",
    "find_sentence",
    "from_document",
]
_ANY = object()
_SENTENCE = re.compile(r"(?<![\w./=-])[a-z]+(?:(?: |\\ |\\s)[a-z]+){2,}(?![\w/=-])")


def find_sentence(text: str) -> str:
    """Return the first three or more consecutive lower-case words of a text, or ""."""
    match = _SENTENCE.search(text)
    return match.group() if match else ""


def expect_user_error(
    kind: str,
    *,
    where: str | Path | tuple[str | Path, ...] = (),
    value: Any = _ANY,
    remedy: str | Path | tuple[str | Path, ...] = (),
    names: str | Path | tuple[str | Path, ...] = (),
    error: type[UserError] = UserError,
) -> pytest.RaisesExc[UserError]:
    """Expect that a block raises a UserError with these facts, as pytest.raises does.

    Args:
      kind: The error's kind, one of the constants above.
      where: What must occur in the error's `where`, for example an option or the name of a file.
      value: The value that was refused, exactly. Left out: any value, or none.
      remedy: What must occur in the error's `do`, for example a command or an option.
      names: What must occur in the error's `what`: names, numbers, paths. `value` says more.
      error: The class of the error.
    """

    def has_the_facts(raised: UserError) -> bool:
        check_error(raised, kind, where=where, value=value, remedy=remedy, names=names)
        return True

    return pytest.raises(error, check=has_the_facts)


@contextlib.contextmanager
def collect_errors() -> Iterator[list[UserError]]:
    """Collect the errors with which commands and scripts of rosetta end in this process."""
    ended: list[UserError] = []
    explain = exit_status.explain_failure

    def record(
        error: BaseException, where: str, remedies: exit_status.Remedies = exit_status.RUN_REMEDIES
    ) -> tuple[int, UserError]:
        status, shown = explain(error, where, remedies)
        ended.append(shown)
        return status, shown

    with mock.patch.object(exit_status, "explain_failure", record):
        yield ended


@contextlib.contextmanager
def expect_reported_error(
    kind: str,
    *,
    where: str | Path | tuple[str | Path, ...] = (),
    value: Any = _ANY,
    remedy: str | Path | tuple[str | Path, ...] = (),
    names: str | Path | tuple[str | Path, ...] = (),
) -> Iterator[None]:
    """Expect that a command of rosetta ends in this process with an error of these facts.

    The arguments are those of `expect_user_error`.
    """
    with collect_errors() as ended:
        yield
    (error,) = ended
    check_error(error, kind, where=where, value=value, remedy=remedy, names=names)


def check_error(
    error: UserError,
    kind: str,
    *,
    where: str | Path | tuple[str | Path, ...] = (),
    value: Any = _ANY,
    remedy: str | Path | tuple[str | Path, ...] = (),
    names: str | Path | tuple[str | Path, ...] = (),
) -> None:
    """Assert the facts of an error at hand; the arguments are those of `expect_user_error`."""
    assert kind in KINDS, f"{kind!r} is not one of {sorted(KINDS)}"
    told = f"{error} {error.as_json()}"
    assert error.kind == kind, told
    if value is not _ANY:
        assert error.value == value, told
    for field, text, facts in (
        ("where", error.where, where),
        ("do", error.do, remedy),
        ("what", error.what, names),
    ):
        for fact in facts if isinstance(facts, tuple) else (facts,):
            assert not find_sentence(str(fact)), f"{fact!r} is a sentence, not a fact"
            assert str(fact) in text, f"{fact} is not in {field} of {told}"


def from_document(document: dict[str, Any]) -> UserError:
    """Return the error that a JSON document of --output-format json shows."""
    return UserError(**document["error"])
