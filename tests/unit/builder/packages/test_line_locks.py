"""The locks of projects: what they require, and what they leave to the distribution."""

from __future__ import annotations

from pathlib import Path

from builder.core import manifest
from builder.packages import line_locks
from builder.packages.lock_file import Pin
from builder.packages.upstream_requirements import Declared

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
