"""The locks of projects: what they require, and what they leave to the distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.commands import lock
from builder.core import manifest
from builder.packages import line_locks, resolution
from builder.packages.lock_file import Pin
from builder.packages.upstream_requirements import Declared
from rosetta.core.errors import INVALID, UserError
from tests.support import errors

REAL = Path(__file__).parents[4] / "manifest.yaml"


def _declare(loaded: manifest.Manifest, **requirements: tuple[str, ...]) -> dict[str, Declared]:
    return {name: Declared(name, "setup.py", requirements.get(name, ())) for name in loaded.sources}


def test_a_project_that_declares_requirements_has_a_lock() -> None:
    loaded = manifest.load(REAL)
    declared = _declare(loaded, flaxformer=("aqtp", "jax"), mt3=("note-seq",))
    plan = line_locks.plan_locks(loaded, "current", declared)
    assert [lock.path for lock in plan.project_locks] == [
        "locks/projects/flaxformer.txt",
        "locks/projects/mt3.txt",
    ]
    # The projects change no lock of the line.
    without = line_locks.plan_locks(loaded, "current", _declare(loaded))
    assert without.project_locks == ()
    assert without.joint_locks == plan.joint_locks
    # A lock depends on the projects that it was resolved with.
    changed = line_locks.plan_locks(
        loaded, "current", _declare(loaded, flaxformer=("aqtp", "jax"), mt3=("librosa",))
    )
    assert changed.project_locks[0].key != plan.project_locks[0].key
    assert line_locks.plan_locks(loaded, "next", declared).project_locks == ()


def test_what_the_distribution_has_everywhere_is_left_out() -> None:
    loaded = manifest.load(REAL)
    jax, aqtp = Pin("jax", "0.10.2", "", ("a",)), Pin("aqtp", "0.9.0", "", ("b",))
    cuda = Pin("nvidia-cudnn", "9", "", ("c",))
    path = "locks/projects/flaxformer.txt"
    pins = {
        "locks/t5x-cpu.txt": [jax],
        "locks/t5x-cuda12.txt": [jax, cuda],
        "locks/t5x-cuda13.txt": [jax, cuda],
    }
    left = line_locks._leave_out_distribution(loaded, {path: [aqtp, cuda, jax]}, pins)
    assert left == {path: [aqtp, cuda]}


def test_an_upgrade_holds_the_projects_that_do_not_resolve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = manifest.load(REAL)
    plan = line_locks.plan_locks(loaded, "current", _declare(loaded, mt3=("note-seq",)))

    def resolve_jointly(request: resolution.Request, *_: Any, **__: Any) -> list[str]:
        if request.where.startswith("projects"):
            raise UserError("unsolvable", request.where, "", kind=INVALID)
        return []

    monkeypatch.setattr(resolution, "resolve_jointly", resolve_jointly)
    monkeypatch.setattr(resolution, "resolve_lock", lambda *_, **__: [])
    pins = line_locks.resolve_locks(loaded, plan, ["jax"])
    assert "locks/t5x-cpu.txt" in pins
    assert "locks/projects/mt3.txt" not in pins
    assert "unsolvable" in capsys.readouterr().err
    with errors.expect_user_error(INVALID, where="current"):
        line_locks.resolve_locks(loaded, plan)


def test_the_report_names_the_locks_that_are_held() -> None:
    path = "locks/projects/mt3.txt"
    result = lock._report_changes({"locks/t5x-cpu.txt": []}, (), [path])
    assert result.data == {"locks": {"locks/t5x-cpu.txt": []}, "held": [path]}
    assert f"{path}: held" in result.text
    assert "held" not in lock._report_changes({}).data
