"""The process of a row of `rosetta accept`, with cases that need no JAX.

FAKE_ROWS has the cases as JSON: {ROW: {CASE: WHAT}}. WHAT is `pass`, `fail-check`, `raise`,
`refuse`, `skip`, `abort`, `hang`, `orphan` (hang with a process that would outlive it), `block`
(until the file `unblocked` is in the folder FAKE_FOLDER), `abort-compiler`, `slow-compiler`
(until that file is there) or `compile`. Each case that begins adds a line to `begun` in the
folder FAKE_FOLDER, and each program that is compiled one to `compiled`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rosetta.accept import row_process
from rosetta.accept.records import Check, Measurement, Number, SkipCase
from rosetta.accept.setup import Case, Machine, Setup
from rosetta.core import acceptance
from rosetta.core.acceptance import Row
from rosetta.core.errors import UserError


def list_fake_cases(row: str) -> list[Case]:
    cases = json.loads(os.environ["FAKE_ROWS"]).get(row, {"only": "pass"})
    return [
        Case(
            name,
            partial(measure_fake_case, row, name, what),
            {"program": partial(compile_fake_program, what)} if "compile" in what else {},
        )
        for name, what in cases.items()
    ]


def compile_fake_program(what: str) -> None:
    folder = Path(os.environ["FAKE_FOLDER"])
    with open(folder / "compiled", "a", encoding="utf-8") as file:
        file.write(f"{what}\n")
    if what == "abort-compiler":
        os.abort()
    while what == "slow-compiler" and not (folder / "unblocked").exists():
        time.sleep(0.05)


def measure_fake_case(row: str, name: str, what: str, failures: Mapping[str, str]) -> Measurement:
    folder = Path(os.environ["FAKE_FOLDER"])
    with open(folder / "begun", "a", encoding="utf-8") as file:
        file.write(f"{row}/{name} {os.getpid()}\n")
    if what == "abort":
        os.abort()
    if what == "orphan":
        child = subprocess.Popen(["sleep", "600"])
        (folder / "orphan").write_text(str(child.pid), encoding="utf-8")
    if what in ("hang", "orphan"):
        time.sleep(600)
    if what == "refuse":
        raise UserError("a planted refusal", "here", "do something")
    while what == "block" and not (folder / "unblocked").exists():
        time.sleep(0.05)
    if what == "raise":
        raise ValueError("a planted error")
    if what == "skip":
        raise SkipCase("a planted reason")
    checks = (Check("a check", 2.0 if what == "fail-check" else 1.0, 1.0),)
    notes = tuple(f"{job}: {reason}" for job, reason in failures.items())
    return Measurement((Number("a number", float("nan"), "us", 0.1),), checks, notes)


def describe_fake_machine() -> Machine:
    kind = os.environ.get("FAKE_GPU", "NVIDIA H200")
    return Machine(kind, "gpu", "9.0", 1, "0.10.2", "0.10.2", "3.11.2")


def find_quick_row(find_row: Callable[[str], Row], limits: dict[str, float], name: str) -> Row:
    return replace(find_row(name), **limits)  # type: ignore[arg-type]


def main() -> None:
    row_process.describe_machine = describe_fake_machine
    row_process.list_cases = list_row_cases
    # The field of rosetta.core.acceptance.Row -> seconds.
    limits = json.loads(os.environ.get("FAKE_LIMITS", "{}"))
    acceptance.find_row = partial(find_quick_row, acceptance.find_row, limits)
    row_process.MODULE = __name__ if __name__ != "__main__" else "tests.support.fake_rows"
    row_process.main(sys.argv[1:])


def list_row_cases(setup: Setup, row: str) -> list[Case]:
    assert setup.machine.platform == "gpu"
    return list_fake_cases(row)


if __name__ == "__main__":
    main()
