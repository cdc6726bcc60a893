"""By which Python the tests run."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from builder.commands import test
from builder.core.cache import Cache
from builder.core.command_context import Context
from rosetta.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


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
    assert sorted(test.shell_scripts(tmp_path)) == ["a.sh", "b.sub", "bash", "c.py", "door"]


def test_ours_are_found() -> None:
    found = test.shell_scripts(ROOT)
    assert {
        "overlay/t5x/t5x/contrib/gpu/scripts_gpu/singlenode_pretrain_pile.sh",
        "overlay/t5x/t5x/contrib/gpu/scripts_gpu/example_slurm_ft_frompile.sub",
        ".ci/run",
    } <= set(found)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [("[tool.ruff]\n", False), ("[tool.importlinter]\nroot_packages = []\n", True)],
)
def test_import_contracts_are_detected(tmp_path: Path, settings: str, expected: bool) -> None:
    (tmp_path / "pyproject.toml").write_text(settings)
    assert test.has_import_contracts(tmp_path) is expected


def test_nothing_to_do_is_refused(context: Context) -> None:
    with pytest.raises(UserError, match="with both there is nothing to do"):
        test.run(context, argparse.Namespace(no_lint=True, only_lint=True, inside="", tests=[]))


def test_our_own_python_unless_asked(context: Context) -> None:
    assert test._python(context, "") == [sys.executable]


def test_a_baked_environments_python(context: Context, tmp_path: Path) -> None:
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").touch()
    assert test._python(context, f"env:{tmp_path}/env")[0] == f"{tmp_path}/env/bin/python"


@pytest.mark.parametrize(
    ("inside", "complaint"),
    [
        ("env:nowhere", "no baked environment"),
        ("image:x", "no baked environment"),
        ("lock:t6x", "t6x"),
        ("lock:", "distribution"),
    ],
)
def test_what_has_no_python_is_refused(context: Context, inside: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        test._python(context, inside)
