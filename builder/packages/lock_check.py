"""Are the locks those of the manifest?

What can be told without the network, and which overrides do nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from builder.core import log
from builder.packages import environment_markers, lock_file, resolution
from builder.packages.transformer_engine import version_pins
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from builder.core.manifest import Manifest
    from builder.packages.environment_markers import Environment
    from builder.packages.line_locks import Plan
    from builder.packages.lock_file import Pin


def check_lock_files(
    loaded: Manifest, plans: Sequence[Plan], records: Mapping[str, str]
) -> list[str]:
    """Every problem of the lock files themselves: missing, stale, malformed, at odds with each
    other, of nothing.
    """
    problems = []
    locked: set[str] = set()
    for path, recorded in records.items():
        if _read_text(loaded.root / path) != recorded:
            problems.append(
                f"{path}: stale: a source, its patches or its overlay are not those it was "
                "made from"
            )
    for plan in plans:
        pins: dict[str, list[Pin]] = {}
        for wanted in plan.all:
            file = loaded.root / wanted.path
            text = _read_text(file)
            if text is None:
                problems.append(f"{wanted.path}: missing")
                continue
            stated = re.search(r"(?m)^# inputs: ([0-9a-f]{64})$", text)
            if not stated or stated[1] != wanted.key:
                problems.append(
                    f"{wanted.path}: stale: made from other requirements, overrides, Pythons "
                    "or architectures"
                )
            problems += _check_format(wanted.path, text)
            try:
                pins[wanted.path] = lock_file.read_lock(file)
            except UserError as error:
                problems.append(str(error))
        problems += _find_version_conflicts(pins, plan.joint.environments)
        locked.update(pin.name for its_pins in pins.values() for pin in its_pins)
    if {plan.line for plan in plans} == set(loaded.lines):
        problems += _find_unused_entries(loaded, locked)
    return problems + _find_unknown_locks(loaded)


def find_idle_overrides(loaded: Manifest, plan: Plan) -> list[str]:
    """Return the overrides of a line without which everything would resolve just the same."""
    overrides = loaded.overrides_for_line(plan.line)
    with log.progress(f"overrides of line {plan.line}", len(overrides), "tried") as advance:
        result, kept = [], set(resolution.resolve_jointly(plan.joint, ()))
        for override in overrides:
            rules = resolution.rules_for_line(loaded, plan.line, without=override)
            try:
                other = set(
                    resolution.resolve_jointly(
                        resolution.Request(
                            plan.joint.requirements,
                            rules,
                            plan.joint.environments,
                            plan.joint.where,
                        ),
                        (),
                    )
                )
            except UserError:
                other = set()  # nothing resolves without it: it is needed
            if other == kept:
                result.append(
                    f"override of {override.project}: changes nothing in line {plan.line}; "
                    "remove it"
                )
            advance(1)
    return result


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _check_format(path: str, text: str) -> list[str]:
    problems = []
    if not re.search(r"(?m)^# pins: [0-9a-f]{64}\n", text):  # reading it checks the sum
        problems.append(f"{path}: has no sum of its pins")
    for number, line in enumerate(text.splitlines(), 1):
        if "://" in line or line.startswith("-"):
            problems.append(f"{path}:{number}: a URL or an option, which no lock holds")
    named = re.findall(r"(?m)^([a-z0-9._-]+)==", text)
    if named != sorted(named):
        problems.append(f"{path}: not sorted by name")
    return problems


def _find_version_conflicts(
    pins: dict[str, list[Pin]], environments: Sequence[Environment]
) -> list[str]:
    """Projects that two locks of a line, or one lock twice, hold in different versions for the same
    environment.
    """
    problems = []
    for environment in environments:
        versions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for path, its_pins in pins.items():
            for pin in its_pins:
                if environment_markers.marker_applies(pin.marker, environment):
                    versions[pin.name][pin.version].append(path)
        for name, found in versions.items():
            if len(found) > 1:
                told = "; ".join(
                    f"{version} in {', '.join(paths)}" for version, paths in sorted(found.items())
                )
                problems.append(f"{name}: {told} (for {environment})")
    return problems


def _find_unknown_locks(loaded: Manifest) -> list[str]:
    """Lock files that nothing in the manifest has."""
    known = {
        f"locks/{name}-{accelerator}.txt"
        for name, entry in loaded.distributions.items()
        for accelerator in entry.accelerators
    }
    known |= {entry.common.removesuffix(".in") + ".txt" for entry in loaded.lines.values()}
    known |= {f"locks/{name}.txt" for name in ("build", "builder", "docs")}
    known |= set(version_pins.list_lock_paths(loaded))
    there = sorted(
        file.relative_to(loaded.root).as_posix()
        for file in (loaded.root / "locks").rglob("[!.]*.txt")
    )
    return [
        f"{path}: nothing in the manifest has it; remove it" for path in there if path not in known
    ]


def _find_unused_entries(loaded: Manifest, locked: Collection[str]) -> list[str]:
    """Entries of `sdists` and `strip` for projects that no lock holds."""
    entries = [("sdists", entry.name) for entry in loaded.sdists] + [
        ("strip", entry.name) for entry in loaded.strip
    ]
    return [
        f"{section}: {name}: no lock holds it; remove it"
        for section, name in entries
        if name not in locked
    ]
