"""The files that GitHub reads are valid by their schemas and name what exists, and no file has the
markers of a merge.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/dependabot.yml": "dependabot",
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/feature.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
}


@pytest.mark.slow
@pytest.mark.parametrize("file", SCHEMAS)
def test_a_file_keeps_its_schema(file: str) -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [program, "--builtin-schema", f"vendor.{SCHEMAS[file]}", ROOT / file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_owners_own_paths_that_exist() -> None:
    lines = (ROOT / ".github/CODEOWNERS").read_text(encoding="utf-8").splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    assert rules[0][0] == "*"
    for path, *owners in rules[1:]:
        target = ROOT / path.lstrip("/")
        assert target.is_dir() if path.endswith("/") else target.is_file(), path
        assert owners


def test_no_file_has_the_markers_of_a_merge() -> None:
    done = subprocess.run(
        ["git", "grep", "-nE", "^(<{7}|>{7}|[|]{7}) "],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
