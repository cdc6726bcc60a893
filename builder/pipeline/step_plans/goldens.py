"""Goldens: recorded plans, one JSON file for each step and GPU.

A file of `tests/plans` has what is planned (the distribution, the words of `rosetta plan`, and
whether that is cheap), the figures, and with what they were recorded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import INVALID, UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FOLDER = "tests/plans"
# Words that stand for several goldens.
ALL, CHEAP = "all", "cheap"
_SCHEMA = 1
_CASE_FIELDS = {"distribution": str, "plan": str, "cheap": bool}
_RECORD_FIELDS = {"command": str, "jaxlib": str, "sources": dict, "compile_s": (int, float)}


@dataclass(frozen=True)
class Record:
    """With what a plan was recorded.

    Attributes:
        command: The command that recorded the plan.
        jaxlib: The version of jaxlib that compiled the step.
        sources: Source -> the upstream commit that it was pinned to.
        compile_s: The seconds that tracing and compiling took.
    """

    command: str
    jaxlib: str
    sources: dict[str, str]
    compile_s: float


@dataclass(frozen=True)
class Golden:
    """A recorded plan.

    Attributes:
        name: The name, which is that of the file without ".json".
        distribution: The distribution whose environment compiles the step.
        plan: The words after `rosetta plan`.
        cheap: Whether the step compiles in about two minutes on two cores.
        record: With what the plan was recorded; None if it was not recorded yet.
        figures: The figures of step_plans.figures, empty if the plan was not recorded yet.
    """

    name: str
    distribution: str
    plan: str
    cheap: bool
    record: Record | None
    figures: dict[str, float]

    @property
    def renewal(self) -> str:
        """The command that records the plan."""
        return f"python3 build.py test --plans {self.name} --renew"


def choose_goldens(folder: Path, names: Sequence[str]) -> list[Golden]:
    """Return goldens in the order of their names.

    Args:
        folder: The folder of the files.
        names: Names of goldens, and ALL or CHEAP; all goldens if there are none.

    Raises:
        UserError: There is no golden with such a name, or a file is not a golden.
    """
    available = sorted(path.stem for path in folder.glob("*.json"))
    for name in names:
        if name not in (*available, ALL, CHEAP):
            raise UserError(
                f"{name!r} is not the name of a golden",
                name,
                f"give {CHEAP}, {ALL} or names of {FOLDER}: {', '.join(available)}",
                kind=UNKNOWN,
                value=name,
            )
    goldens = [read_golden(folder / f"{name}.json") for name in available]
    if not names or ALL in names:
        return goldens
    return [
        golden for golden in goldens if golden.name in names or (CHEAP in names and golden.cheap)
    ]


def read_golden(path: Path) -> Golden:
    """Read a golden.

    Raises:
        UserError: The file is not a golden.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _make_error(path, f"not valid JSON ({error})") from error
    if not isinstance(data, dict) or data.get("schema") != _SCHEMA:
        raise _make_error(path, f"not a golden of schema {_SCHEMA}")
    _check_fields(path, data, _CASE_FIELDS)
    record, figures = data.get("record"), data.get("figures")
    if record is None and figures is None:
        return Golden(path.stem, data["distribution"], data["plan"], data["cheap"], None, {})
    if not isinstance(record, dict) or not isinstance(figures, dict):
        raise _make_error(path, "`record` and `figures` are objects, or both null")
    _check_fields(path, record, _RECORD_FIELDS)
    for name, figure in figures.items():
        if isinstance(figure, bool) or not isinstance(figure, int | float):
            raise _make_error(path, f"the figure {name} is not a number")
    fields = {name: record[name] for name in _RECORD_FIELDS}
    return Golden(
        path.stem, data["distribution"], data["plan"], data["cheap"], Record(**fields), figures
    )


def _check_fields(path: Path, data: dict[str, Any], types: dict[str, Any]) -> None:
    for name, kind in types.items():
        if not isinstance(data.get(name), kind):
            raise _make_error(path, f"{name} is missing or not valid")


def _make_error(path: Path, what: str) -> UserError:
    return UserError(
        what,
        f"{FOLDER}/{path.name}",
        "restore the file with git; if it is not recorded yet, record and figures are null",
        kind=INVALID,
    )


def write_golden(folder: Path, golden: Golden) -> None:
    """Write a golden that was recorded."""
    data = {
        "schema": _SCHEMA,
        **{name: getattr(golden, name) for name in _CASE_FIELDS},
        "record": vars(golden.record) if golden.record else None,
        "figures": golden.figures or None,
    }
    write_atomic(folder / f"{golden.name}.json", json.dumps(data, indent=1) + "\n")
