"""The results of rows and cases, as they stand in the file of results."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rosetta.core import acceptance
from rosetta.core.atomic_files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path


class SkipCase(Exception):  # noqa: N818 (not an error: the case does not apply here)
    """A case that cannot run on this machine. The text is the reason."""


@dataclass(frozen=True)
class Number:
    """A measured or predicted number.

    Attributes:
        name: What was measured.
        value: The median, if it was measured several times; NaN if there is none.
        unit: Its unit; "" for a ratio.
        spread: The largest distance of a measurement from the median, as a share of it; None for a
            number that was not measured several times.
    """

    name: str
    value: float
    unit: str
    spread: float | None = None


@dataclass(frozen=True)
class Check:
    """A number that must not be above a limit.

    Attributes:
        name: What was checked.
        value: The number.
        limit: The largest value that passes.
    """

    name: str
    value: float
    limit: float

    @property
    def ok(self) -> bool:
        """Whether the check passed. A number that is not finite does not pass."""
        return math.isfinite(self.value) and self.value <= self.limit


@dataclass(frozen=True)
class Measurement:
    """What a case returns.

    Attributes:
        numbers: The numbers.
        checks: The checks.
        notes: Sentences for people.
    """

    numbers: tuple[Number, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseResult:
    """The result of a case.

    Attributes:
        case: The name of the case.
        status: MEASURED, SKIPPED or FAILED of rosetta.core.acceptance.
        reason: Why the case was skipped or failed; None if it was measured.
        seconds: The time that the case took.
        numbers: The numbers, as objects with the fields of Number.
        checks: The checks, as objects with the fields of Check and `ok`.
        notes: Sentences for people.
    """

    case: str
    status: str
    reason: str | None = None
    seconds: float = 0.0
    numbers: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RowResult:
    """The result of a row.

    Attributes:
        row: The name of the row.
        status: A status of rosetta.core.acceptance.
        reason: Why the row was skipped, failed or is not finished; None if it was measured.
        seconds: The time that the row took, of all calls.
        ok: Whether no case failed and all checks passed.
        cases: The results of the cases, as objects with the fields of CaseResult.
        plans: The SHA-256 of each plan that the row was compared with.
    """

    row: str
    status: str
    reason: str | None
    seconds: float
    ok: bool
    cases: list[dict[str, Any]] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)


def make_case_result(case: str, measurement: Measurement, seconds: float) -> CaseResult:
    """Return the result of a case that was measured."""
    return CaseResult(
        case,
        acceptance.MEASURED,
        None,
        round(seconds, 2),
        [encode_numbers(asdict(number)) for number in measurement.numbers],
        [encode_numbers({**asdict(check), "ok": check.ok}) for check in measurement.checks],
        list(measurement.notes),
    )


def encode_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with texts for the floats that JSON does not have: NaN and infinities."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def write_json(path: Path, document: Any) -> None:
    """Write a document so that a reader never sees a part of it."""
    write_atomic(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def summarize_row(
    row: str, cases: list[dict[str, Any]], *, reason: str | None, finished: bool, seconds: float
) -> RowResult:
    """Return the result of a row from the results of its cases.

    Args:
        row: The name of the row.
        cases: The results of its cases.
        reason: Why the row ended outside of a case; None if it did not.
        finished: Whether no case is left to do.
        seconds: The time of the row.
    """
    statuses = {case["status"] for case in cases}
    failed = [case for case in cases if case["status"] == acceptance.FAILED]
    checks = [check for case in cases for check in case["checks"]]
    if not finished:
        status = acceptance.UNFINISHED
    elif reason or failed:
        status = acceptance.FAILED
        reason = reason or f"{failed[0]['case']}: {failed[0]['reason']}"
    elif statuses == {acceptance.SKIPPED}:
        status = acceptance.SKIPPED
        reason = "; ".join(dict.fromkeys(case["reason"] for case in cases))
    else:
        status = acceptance.MEASURED
    ok = not failed and status != acceptance.FAILED and all(check["ok"] for check in checks)
    return RowResult(row, status, reason, round(seconds, 1), ok, cases)
