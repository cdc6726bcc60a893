"""The check of projects in an environment whose self-test is a stand-in, and what is made of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from builder.commands import build
from builder.core import manifest
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.pipeline import project_checks, project_page
from tests.support import errors

ROOT = Path(__file__).parents[4]
ROW: dict[str, Any] = {
    "name": "mt3",
    "modules": 21,
    "skipped": {"mt3.tool": "needs a package that is not here"},
    "failed": {},
    "losses": {"1": 2570.7, "2": 2550.0, "3": 2448.7},
    "wall_s": 1.0,
    "problems": [],
}


@pytest.fixture
def context(cache: Cache) -> Context:
    return Context(ROOT, ROOT / "manifest.yaml", cache)


def _make_environment(folder: Path, row: dict[str, Any]) -> Path:
    program = folder / "opt/rosetta/bin/rosetta"
    program.parent.mkdir(parents=True)
    result = {"projects": [row], "ok": not row["problems"]}
    document = json.dumps({"schema": 1, "result": result, "error": None})
    program.write_text(f"#!/bin/sh\necho \"$@\" > {folder}/words\ncat <<'END'\n{document}\nEND\n")
    program.chmod(0o755)
    lock = {"python": "3.13", "sources": {"mt3": {"commit": "f" * 40}}}
    (folder / "opt/rosetta/lock.json").write_text(json.dumps(lock))
    return folder


def test_the_self_test_of_the_environment_is_asked(context: Context, tmp_path: Path) -> None:
    folder = _make_environment(tmp_path / "env", ROW)
    results = project_checks.check_projects(context, ["mt3"], f"env:{folder}")
    assert (folder / "words").read_text() == "selftest --json --project mt3\n"
    assert results["ok"]
    assert results["projects"][0]["commit"] == "f" * 40
    assert "| mt3 | ffffffffffff | 20 of 21 | 2571, 2550, 2449 | mt3.tool: needs" in (
        project_checks.format_table(results)
    )


def test_a_repeated_project_is_checked_once(context: Context, tmp_path: Path) -> None:
    folder = _make_environment(tmp_path / "env", ROW)
    project_checks.check_projects(context, ["mt3", "mt3"], f"env:{folder}")
    assert (folder / "words").read_text() == "selftest --json --project mt3\n"


def test_a_repeated_project_is_once_in_the_name_of_the_folder() -> None:
    arguments = argparse.Namespace(
        distribution="t5x", accelerator="cpu", projects=["mt3", "mt3"], output=""
    )
    assert build.parse_output_folder(arguments).name == "t5x-cpu-mt3"


def test_a_problem_is_in_the_table(context: Context, tmp_path: Path) -> None:
    row = {**ROW, "losses": {}, "problems": ["training ended with status 1\nTraceback"]}
    folder = _make_environment(tmp_path / "env", row)
    results = project_checks.check_projects(context, ["mt3"], f"env:{folder}")
    assert not results["ok"]
    table = project_checks.format_table(results)
    assert "| not trained | training ended with status 1; mt3.tool" in table
    assert "Traceback" not in table


def test_an_unknown_project_is_refused(context: Context) -> None:
    with errors.expect_user_error(errors.UNKNOWN, where="projects", value="mt4"):
        project_checks.check_projects(context, ["mt3", "mt4"])


def test_a_folder_that_is_not_an_environment_is_refused(context: Context, tmp_path: Path) -> None:
    with errors.expect_user_error(errors.MISSING, where="--inside"):
        project_checks.check_projects(context, ["mt3"], f"env:{tmp_path}")


def test_the_page_has_each_project_and_what_the_record_says() -> None:
    loaded = manifest.load(ROOT / "manifest.yaml")
    record = {"projects": [{**ROW, "commit": "f" * 40}]}
    page = project_page.render(loaded, record)
    assert all(f"| [{name}](https://github.com/" in page for name in loaded.projects)
    assert "| 20 of 21 | 2571, 2550, 2449 |" in page
    assert "| mt3 | `mt3.tool` | needs a package that is not here |" in page
    assert project_page.render(loaded, {}).count("| not checked |") >= len(loaded.projects)


def test_the_record_has_every_project_of_the_manifest() -> None:
    record = json.loads((ROOT / project_checks.RECORD).read_text())
    loaded = manifest.load(ROOT / "manifest.yaml")
    assert [row["name"] for row in record["projects"]] == list(loaded.projects)
