"""The commit of rosetta is the last one that changed the package, and unknown without a history."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from builder.packages import package_revision

if TYPE_CHECKING:
    from pathlib import Path


def _git(folder: Path, *words: str) -> str:
    argv = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(folder), *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def _commit(folder: Path, file: str, text: str) -> str:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", file)
    return _git(folder, "rev-parse", "HEAD")


def _read(folder: Path) -> dict[str, Any] | None:
    text = package_revision.render_revision(folder / "rosetta")
    return json.loads(text) if text else None


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    _git(folder, "init", "-q", "-b", "main")
    _commit(folder, "rosetta/a.py", "1")
    return folder


def test_commits_of_other_files_change_nothing(checkout: Path) -> None:
    first = _git(checkout, "rev-parse", "HEAD")
    assert _read(checkout) == {"schema": 1, "commit": first, "clean": True}
    _commit(checkout, "docs/a.md", "1")
    assert _read(checkout) == {"schema": 1, "commit": first, "clean": True}
    second = _commit(checkout, "rosetta/a.py", "2")
    assert _read(checkout) == {"schema": 1, "commit": second, "clean": True}


def test_changes_that_are_not_committed_count_only_in_the_package(checkout: Path) -> None:
    (checkout / "docs.md").write_text("new")
    assert (_read(checkout) or {})["clean"] is True
    (checkout / "rosetta/b.py").write_text("new")
    assert (_read(checkout) or {})["clean"] is False


def test_a_work_tree_has_the_same_commit(checkout: Path, tmp_path: Path) -> None:
    _git(checkout, "worktree", "add", "-q", str(tmp_path / "other"))
    assert _read(tmp_path / "other") == _read(checkout)


def test_without_a_history_the_commit_is_unknown(checkout: Path, tmp_path: Path) -> None:
    _commit(checkout, "docs/a.md", "1")
    _git(tmp_path, "clone", "-q", "--depth=1", f"file://{checkout}", str(tmp_path / "shallow"))
    assert _read(tmp_path / "shallow") is None
    folder = tmp_path / "export"
    (folder / "rosetta").mkdir(parents=True)
    assert _read(folder) is None
    _git(folder, "init", "-q")
    assert _read(folder) is None
