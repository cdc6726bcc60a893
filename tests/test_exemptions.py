"""The list of exemptions from ruff's rules may only shrink, and so may what they hide."""

from __future__ import annotations

import io
import subprocess
import tokenize
from typing import TYPE_CHECKING

from tests.support import lint_exemptions

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMATTER_SKIPS = 10


def test_exemptions_only_shrink() -> None:
    recorded = lint_exemptions.read_record()
    rules = frozenset(recorded)
    exemptions = lint_exemptions.read_exemptions()
    violations = lint_exemptions.find_violations(rules)
    grown, shrunk = lint_exemptions.compare_numbers(
        recorded, lint_exemptions.count_violations(exemptions, violations, rules)
    )
    assert not grown, (
        f"{grown}: new code keeps the rules, also where old code is exempt; to see what is new, "
        "take the exemption out of pyproject.toml for a moment and run .venv/bin/ruff check"
    )
    idle = lint_exemptions.find_idle(exemptions, violations, rules)
    assert not idle, f"{idle} hide nothing: remove them from pyproject.toml"
    assert not shrunk, f"{shrunk}: record it: .venv/bin/{lint_exemptions.COMMAND}"


def test_the_record_is_only_lowered() -> None:
    recorded = {"E501": {"patterns": 2, "violations": 100}, "C901": {"patterns": 3}}
    present = {"E501": {"patterns": 3, "violations": 98}, "C901": {"patterns": 2}}
    assert lint_exemptions.compare_numbers(recorded, present) == (
        ["E501: 3 patterns, recorded 2"],
        ["C901: 2 patterns, recorded 3"],
    )
    assert lint_exemptions.lower_record(recorded, present) == {
        "E501": {"patterns": 2, "violations": 98},
        "C901": {"patterns": 2},
    }


def test_idle_exemptions_are_found() -> None:
    exemptions = {"builder/image/**": ["E501", "D401"], "./build.py": ["E501"], "tests/**": ["D"]}
    violations = [("builder/image/oci/a.py", "E501"), ("build.py", "D401")]
    assert lint_exemptions.find_idle(exemptions, violations, frozenset({"E501", "D401"})) == [
        "builder/image/**: D401",
        "./build.py: E501",
    ]


def _comments() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "grep", "-lE", "fmt: *(skip|off)", "--", "*.py"],
        cwd=lint_exemptions.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for name in listed.stdout.splitlines():
        text = (lint_exemptions.ROOT / name).read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield name, token.string


def test_at_most_ten_places_skip_the_formatter() -> None:
    comments = list(_comments())
    off = [name for name, text in comments if "fmt: off" in text]
    skips = [name for name, text in comments if "fmt: skip" in text]
    assert not off, "use `# fmt: skip` on the one statement instead"
    assert len(skips) <= FORMATTER_SKIPS, f"{skips}: let ruff format them"
