"""Count what pyproject.toml exempts from ruff's rules, and lower the record of it.

    .venv/bin/python -m tests.support.lint_exemptions

lowers the numbers in tests/exemptions.json after an improvement. The command never raises one.
"""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/exemptions.json"
COMMAND = "python -m tests.support.lint_exemptions"
# Lazy imports are allowed in the exempt modules, so that only the modules are counted.
PATTERNS_ONLY = frozenset({"PLC0415"})

Numbers = dict[str, dict[str, int]]
Violation = tuple[str, str]  # the path below the repository, and the code of the rule


def read_record() -> Numbers:
    """Return the recorded numbers of each rule."""
    record: Numbers = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def read_exemptions(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the exempt rules by pattern, from pyproject.toml."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    exemptions: dict[str, list[str]] = settings["tool"]["ruff"]["lint"]["per-file-ignores"]
    return exemptions


def find_violations(rules: frozenset[str], root: Path = ROOT) -> list[Violation]:
    """Return every violation of the rules, also those that pyproject.toml or a noqa exempts.

    An exemption of a whole group of rules, such as "D" for the tests, still counts as one.
    """
    groups = {
        pattern: kept
        for pattern, codes in read_exemptions(root).items()
        if (kept := [code for code in codes if code not in rules])
    }
    listed = ", ".join(f"{json.dumps(name)} = {json.dumps(kept)}" for name, kept in groups.items())
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    argv = [str(ruff), "check", ".", "--exit-zero", "--ignore-noqa", "--output-format", "json"]
    argv += ["--select", ",".join(sorted(rules))]
    argv += ["--config", f"lint.per-file-ignores = {{{listed}}}"]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return [(os.path.relpath(each["filename"], root), each["code"]) for each in found]


def count_violations(
    exemptions: dict[str, list[str]], violations: list[Violation], rules: frozenset[str]
) -> Numbers:
    """Return, for each rule, how many patterns exempt from it and how many violations there are."""
    patterns = Counter(code for codes in exemptions.values() for code in codes)
    hidden = Counter(code for _, code in violations)
    numbers: Numbers = {}
    for rule in sorted(rules):
        numbers[rule] = {"patterns": patterns[rule]}
        if rule not in PATTERNS_ONLY:
            numbers[rule]["violations"] = hidden[rule]
    return numbers


def find_idle(
    exemptions: dict[str, list[str]], violations: list[Violation], rules: frozenset[str]
) -> list[str]:
    """Return the exemptions that hide nothing any more, each as `PATTERN: RULE`."""
    return [
        f"{pattern}: {code}"
        for pattern, codes in exemptions.items()
        for code in sorted(rules.intersection(codes))
        if not any(
            rule == code and fnmatch.fnmatchcase(path, pattern.removeprefix("./"))
            for path, rule in violations
        )
    ]


def compare_numbers(recorded: Numbers, present: Numbers) -> tuple[list[str], list[str]]:
    """Return what has grown, and what has shrunk by more than 2% and should be recorded."""
    grown, shrunk = [], []
    for rule, numbers in recorded.items():
        for name, number in numbers.items():
            now = present[rule][name]
            line = f"{rule}: {now} {name}, recorded {number}"
            if now > number:
                grown.append(line)
            elif number - now > number // 50:
                shrunk.append(line)
    return grown, shrunk


def lower_record(recorded: Numbers, present: Numbers) -> Numbers:
    """Return the record with every number that is smaller now; none is raised."""
    return {
        rule: {name: min(number, present[rule][name]) for name, number in numbers.items()}
        for rule, numbers in recorded.items()
    }


def main() -> None:
    """Rewrite the record with the numbers that are smaller now."""
    recorded = read_record()
    rules = frozenset(recorded)
    present = count_violations(read_exemptions(), find_violations(rules), rules)
    RECORD.write_text(
        json.dumps(lower_record(recorded, present), indent=2) + "\n", encoding="utf-8"
    )
    grown, _ = compare_numbers(recorded, present)
    if grown:
        sys.exit("not recorded, because it has grown:\n" + "\n".join(grown))


if __name__ == "__main__":
    main()
