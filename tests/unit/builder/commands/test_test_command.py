"""The command `test`: which checks run, and with which Python."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder import cli
from builder.commands import test
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.pipeline import environment_build
from builder.pipeline.step_plans import goldens, plan_runs
from rosetta.core.errors import UserError
from tests.support import errors, plan_environment

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(ROOT, ROOT / "manifest.yaml", Cache(tmp_path), offline=True)


def test_shell_scripts_by_suffix_or_first_line(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name, text in {
        "a.sh": "",
        "b.sub": "x",
        "door": "#!/bin/sh\n",
        "bash": "#!/usr/bin/env bash\n",
        "tool": "#!/usr/bin/python3 # sh\n",
        "c.py": "#!/bin/sh",
        "notes": "sh\n",
        ".gitignore": "left.sh\n",
        "left.sh": "",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "link.sh").symlink_to("a.sh")
    subprocess.run(["git", "-C", tmp_path, "add", "a.sh"], check=True)
    assert sorted(test.list_shell_scripts(tmp_path)) == ["a.sh", "b.sub", "bash", "c.py", "door"]


def test_shell_scripts_of_this_repository() -> None:
    scripts = test.list_shell_scripts(ROOT)
    assert {
        "overlay/t5x/t5x/contrib/gpu/scripts_gpu/singlenode_pretrain_pile.sh",
        "overlay/t5x/t5x/contrib/gpu/scripts_gpu/example_slurm_ft_frompile.sub",
        ".ci/run",
    } <= set(scripts)


def arguments(**changes: Any) -> argparse.Namespace:
    values = {
        "fast": False,
        "all": False,
        "no_lint": False,
        "only_lint": False,
        "plans": False,
        "projects": False,
        "renew": False,
        "inside": "",
        "tests": [],
        "pytest": [],
    }
    return argparse.Namespace(**{**values, **changes})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would be started; each of them succeeds."""
    commands: list[list[str]] = []

    def start(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(argv)
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(test, "list_shell_scripts", lambda _: ["a.sh"])
    monkeypatch.setattr(test, "_find_shellcheck", lambda _: "shellcheck")
    monkeypatch.setattr(subprocess, "run", start)
    return commands


@pytest.mark.parametrize(
    "refused",
    [
        {"no_lint": True, "only_lint": True},
        {"all": True, "tests": ["tests/unit/builder"]},
        {"all": True, "inside": "lock:t5x"},
        {"renew": True},
        {"plans": True, "no_lint": True},
        {"projects": True, "only_lint": True},
        {"projects": True, "renew": True, "tests": ["flaxformer"]},
    ],
)
def test_contradictions_are_refused(
    context: Context, started: list[list[str]], refused: dict[str, Any]
) -> None:
    with pytest.raises(UserError):
        test.run(context, arguments(**refused))
    assert not started


@pytest.mark.parametrize(
    ("tier", "linters"),
    [
        ({"fast": True}, {"ruff", "ruff format"}),
        ({}, {"ruff", "ruff format", "mypy", "lint-imports", "shellcheck"}),
    ],
)
def test_each_tier_has_its_linters(
    context: Context, started: list[list[str]], tier: dict[str, bool], linters: set[str]
) -> None:
    result = test.run(context, arguments(only_lint=True, **tier))
    assert set(result.data["status"]) == linters
    assert len(started) == len(result.data["status"])


def test_the_fast_tier_leaves_marked_tests_out(context: Context, started: list[list[str]]) -> None:
    test.run(context, arguments(no_lint=True, fast=True))
    assert started[0][started[0].index("-m", 3) + 1] == test.FAST_MARKS


def test_words_go_to_pytest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[list[str]]
) -> None:
    monkeypatch.setenv("ROSETTA_CACHE", str(tmp_path))
    argv = ["test", "--no-lint", "--fast", "tests/a.py", "--", "-k", "name", "--json", "-x"]
    assert cli.main(argv) == 0
    assert started[0][-5:] == ["tests/a.py", "-k", "name", "--json", "-x"]


def test_all_tests_run_where_their_environment_is_baked(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    started: list[list[str]],
) -> None:
    python = tmp_path / "build/quickstart/pax/bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr(
        test, "INSIDE_TESTS", {name: ("t",) for name in test.INSIDE_TESTS if name[:4] == "env:"}
    )
    context = Context(tmp_path, ROOT / "manifest.yaml", Cache(tmp_path))
    result = test.run(context, arguments(no_lint=True, all=True))
    assert list(result.data["status"]) == ["pytest", "pytest --inside env:build/quickstart/pax"]
    assert started[1][0] == str(python)
    assert started[1][-1] == "t"
    unchecked = [line for line in capsys.readouterr().err.splitlines() if "NOT CHECKED" in line]
    missing = ["pax-1.4", "t5x", "t5x-next", "pax-next"]
    assert [line.rpartition(" ")[2] for line in unchecked] == missing


def test_named_tests_exist() -> None:
    for tests in test.INSIDE_TESTS.values():
        for name in tests:
            assert (ROOT / name).exists(), name


@pytest.mark.slow
def test_the_fast_tier_is_not_a_token() -> None:
    words = ["-m", "pytest", "-q", "--collect-only", "-m", test.FAST_MARKS, "tests"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    summary = re.search(r"^(\d+)/(\d+) tests collected", done.stdout, re.MULTILINE)
    assert summary
    assert int(summary[1]) >= 1300


@pytest.fixture
def recorded(tmp_path: Path) -> Context:
    """A checkout with a golden of its own, and an environment that compiles another figure."""
    plan_environment.write_recorded(tmp_path / goldens.FOLDER, "tiny-h100", kernels=900)
    plan_environment.make_environment(tmp_path / "env", plan_environment.make_report())
    return Context(tmp_path, ROOT / "manifest.yaml", Cache(tmp_path / "cache"))


def test_plans_are_compared_and_renewed(recorded: Context) -> None:
    asked = {"plans": True, "inside": f"env:{recorded.root}/env"}
    moved = test.run(recorded, arguments(**asked, tests=["tiny-h100"]))
    assert not moved.ok
    assert moved.data["plans"][0]["state"] == "moved"
    assert test.run(recorded, arguments(**asked, renew=True)).ok
    same = test.run(recorded, arguments(**asked, tests=["cheap"]))
    assert same.ok
    assert same.data["plans"][0]["moves"] == []


def test_plans_compile_in_an_environment_that_is_baked_for_them(
    recorded: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    baked: list[tuple[str, str, Path]] = []

    def plan(_: Context, distribution: str, accelerator: str, output: Path) -> None:
        baked.append((distribution, accelerator, output))
        plan_environment.make_environment(output, plan_environment.make_report())

    monkeypatch.setattr(environment_build, "plan_environment", plan)
    monkeypatch.setattr(environment_build, "bake_environment", lambda _: {})
    assert not test.run(recorded, arguments(plans=True)).ok
    assert baked == [("t5x", "cuda13", recorded.root / plan_runs.FOLDER / "t5x")]


def test_our_own_python_unless_asked(context: Context) -> None:
    assert test._make_python_command(context, "") == [sys.executable]


def test_a_baked_environments_python(context: Context, tmp_path: Path) -> None:
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").touch()
    assert (
        test._make_python_command(context, f"env:{tmp_path}/env")[0] == f"{tmp_path}/env/bin/python"
    )


@pytest.mark.parametrize(
    ("inside", "kind", "where", "value"),
    [
        ("env:nowhere", errors.MISSING, "--inside env:nowhere", None),
        ("image:x", errors.MISSING, "--inside image:x", None),
        ("lock:t6x", errors.UNKNOWN, "--distribution", "t6x"),
        ("lock:", errors.UNKNOWN, "--distribution", ""),
    ],
)
def test_what_has_no_python_is_refused(
    context: Context, inside: str, kind: str, where: str, value: str | None
) -> None:
    with errors.expect_user_error(kind, where=where, value=value):
        test._make_python_command(context, inside)
