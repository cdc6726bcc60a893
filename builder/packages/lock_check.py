"""Check, without the network, whether the locks are those of the manifest, and find the overrides
that change nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.core import log
from builder.packages import environment_markers, lock_file, resolution
from builder.packages.transformer_engine import version_pins
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from builder.core.manifest import Manifest, Override
    from builder.packages.environment_markers import Environment
    from builder.packages.line_locks import Plan, PlannedLock
    from builder.packages.lock_file import Pin


def check_lock_files(
    manifest: Manifest, plans: Sequence[Plan], records: Mapping[str, str]
) -> list[str]:
    """Return every problem of the lock files: a file is missing, stale, malformed or unknown, or
    two of them contradict each other.

    Args:
        manifest: The manifest. Its folder has the locks.
        plans: The locks that each checked line needs.
        records: What each record of sources should hold, by its path.
    """
    problems = [
        f"{path}: stale: a source, its patches or its overlay are not those it was made from"
        for path, expected_text in records.items()
        if _read_text(manifest.root / path) != expected_text
    ]
    locked_projects: set[str] = set()
    for plan in plans:
        pins: dict[str, list[Pin]] = {}
        for lock in plan.all_locks:
            problems += _check_lock(manifest, lock, pins)
        problems += _find_version_conflicts(pins, plan.joint.environments)
        locked_projects.update(pin.name for lock_pins in pins.values() for pin in lock_pins)
    if {plan.line for plan in plans} == set(manifest.lines):
        problems += _find_unused_entries(manifest, locked_projects)
    return problems + _find_unknown_locks(manifest)


def _check_lock(manifest: Manifest, lock: PlannedLock, pins: dict[str, list[Pin]]) -> list[str]:
    """Return the problems of one lock, and add what it pins to `pins` if it can be read."""
    file = manifest.root / lock.path
    text = _read_text(file)
    if text is None:
        return [f"{lock.path}: missing"]
    problems = []
    recorded_key = re.search(r"(?m)^# inputs: ([0-9a-f]{64})$", text)
    if not recorded_key or recorded_key[1] != lock.key:
        problems.append(
            f"{lock.path}: stale: made from other requirements, overrides, Pythons or architectures"
        )
    problems += _check_format(lock.path, text)
    try:
        pins[lock.path] = lock_file.read_lock(file)
    except UserError as error:
        problems.append(str(error))
    return problems


def find_idle_overrides(manifest: Manifest, plan: Plan) -> list[str]:
    """Return the overrides of a line without which everything resolves to the same versions."""
    overrides = manifest.overrides_for_line(plan.line)
    problems = []
    with log.progress(f"overrides of line {plan.line}", len(overrides), "tried") as advance:
        versions = set(resolution.resolve_jointly(plan.joint, ()))
        for override in overrides:
            if _resolve_without(manifest, plan, override) == versions:
                problems.append(
                    f"override of {override.project}: changes nothing in line {plan.line}; "
                    "remove it"
                )
            advance(1)
    return problems


def _resolve_without(manifest: Manifest, plan: Plan, override: Override) -> set[str]:
    """Return the versions of a line without one override; none if that does not resolve."""
    rules = resolution.rules_for_line(manifest, plan.line, without=override)
    try:
        return set(resolution.resolve_jointly(replace(plan.joint, rules=rules), ()))
    except UserError:
        return set()


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _check_format(path: str, text: str) -> list[str]:
    problems = []
    # lock_file.read_lock compares the checksum with the pins.
    if not re.search(r"(?m)^# pins: [0-9a-f]{64}\n", text):
        problems.append(f"{path}: has no checksum of its pins")
    for number, line in enumerate(text.splitlines(), 1):
        if "://" in line or line.startswith("-"):
            problems.append(f"{path}:{number}: a URL or an option, which a lock must not have")
    names = re.findall(r"(?m)^([a-z0-9._-]+)==", text)
    if names != sorted(names):
        problems.append(f"{path}: not sorted by name")
    return problems


def _find_version_conflicts(
    pins: dict[str, list[Pin]], environments: Sequence[Environment]
) -> list[str]:
    """Return the projects that have two versions in one environment.

    Args:
        pins: The pins of each lock of a line, by the lock's path.
        environments: The environments of the line.
    """
    problems = []
    for environment in environments:
        paths_by_version: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for path, lock_pins in pins.items():
            for pin in lock_pins:
                if environment_markers.marker_applies(pin.marker, environment):
                    paths_by_version[pin.name][pin.version].append(path)
        for name, versions in paths_by_version.items():
            if len(versions) > 1:
                places = [
                    f"{version} in {', '.join(paths)}"
                    for version, paths in sorted(versions.items())
                ]
                problems.append(f"{name}: {'; '.join(places)} (for {environment})")
    return problems


def _find_unknown_locks(manifest: Manifest) -> list[str]:
    """Return the lock files that nothing in the manifest uses."""
    known_paths = {
        f"locks/{name}-{accelerator}.txt"
        for name, distribution in manifest.distributions.items()
        for accelerator in distribution.accelerators
    }
    known_paths |= {line.lock for line in manifest.lines.values()}
    known_paths |= {f"locks/{name}.txt" for name in ("build", "builder", "docs")}
    known_paths |= set(version_pins.list_lock_paths(manifest))
    known_paths |= {project.lock(name) for name, project in manifest.projects.items()}
    files = (manifest.root / "locks").rglob("[!.]*.txt")
    paths = sorted(file.relative_to(manifest.root).as_posix() for file in files)
    return [
        f"{path}: nothing in the manifest uses it; remove it"
        for path in paths
        if path not in known_paths
    ]


def _find_unused_entries(manifest: Manifest, locked_projects: Collection[str]) -> list[str]:
    """Return the entries of `sdists` and `strip` for projects that no lock pins."""
    entries = [("sdists", entry.name) for entry in manifest.sdists]
    entries += [("strip", entry.name) for entry in manifest.strip]
    return [
        f"{section}: {name}: no lock pins it; remove it"
        for section, name in entries
        if name not in locked_projects
    ]
