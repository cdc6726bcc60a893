"""All locks of a manifest: read their inputs, write the locks, or check them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core.cache import stage_key
from builder.core.manifest import GitSource
from builder.packages import (
    debian_resolution,
    declared_requirements,
    environment_markers,
    jax_releases,
    line_locks,
    lock_check,
    lock_file,
    resolution,
)
from builder.packages.resolution import Request
from builder.packages.transformer_engine import header_packages
from builder.upstream import git_server, source, source_lock, tracked_branch
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.core.cache import Cache
    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.packages.line_locks import Plan
    from builder.packages.lock_file import Pin
    from builder.upstream.source import Access

# The builder runs on each of these versions, whatever Pythons the lines of the manifest have.
_TOOL_PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True)
class Inputs:
    """What the locks of some lines are resolved from.

    Attributes:
        manifest: The manifest that declares the lines.
        plans: The resolution requests of each line.
        records: The texts of the files that record the sources and their requirements, by path.
        recorded: The sources that could not be reached. Their requirements are those of the record.
        access: How the sources are reached.
    """

    manifest: Manifest
    plans: Sequence[Plan]
    records: Mapping[str, str]
    recorded: Sequence[str]
    access: Access


def read_inputs(context: Context, loaded: Manifest, lines: Sequence[str]) -> Inputs:
    """Return the inputs of the locks of these lines."""
    recorded = declared_requirements.load_record(loaded.folder(declared_requirements.RECORD))
    access = source.configure_access(context, loaded)
    source_names = [
        name
        for distribution in loaded.distributions.values()
        if distribution.line in lines
        for name in distribution.sources
    ]
    source_names += [
        name
        for name, project in loaded.projects.items()
        if loaded.distribution(project.distribution).line in lines
    ]
    reading = declared_requirements.read_sources(
        loaded, access, dict.fromkeys(source_names), recorded
    )
    record = declared_requirements.render_record(loaded, recorded, reading.declared)
    records = {
        declared_requirements.RECORD: record,
        source_lock.FILE: source_lock.render_lock(loaded, reading.states),
    }
    plans = [line_locks.plan_locks(loaded, line, reading.declared) for line in lines]
    return Inputs(loaded, plans, records, reading.recorded, access)


def write_locks(
    inputs: Inputs, upgrade: Sequence[str], cache: Cache
) -> tuple[dict[str, list[str]], list[str], list[str]]:
    """Resolve and write every lock of the lines.

    Args:
        inputs: The inputs of the locks.
        upgrade: The projects that may get a new version; `all` for every project.
        cache: The builder's cache. Its lock keeps two runs apart.

    Returns:
        What changed in each lock, by path, the paths of the locks that are new, and the paths of
        the locks that are held as they were, see `line_locks.resolve_locks`.
    """
    with cache.lock("lock"):
        for leftover in (inputs.manifest.root / "locks").rglob(".tmp-*"):  # of a killed run
            leftover.unlink()
        return _resolve_and_write(inputs, upgrade)


def _resolve_and_write(
    inputs: Inputs, upgrade: Sequence[str]
) -> tuple[dict[str, list[str]], list[str], list[str]]:
    loaded, offline = inputs.manifest, inputs.access.offline
    new_paths = [path for path in _lock_paths(inputs.plans) if not (loaded.root / path).exists()]
    texts = dict(inputs.records)
    changes: dict[str, list[str]] = {}
    common_pins: dict[str, list[Pin]] = {}
    for plan in inputs.plans:
        keys = {lock.path: lock.key for lock in plan.all_locks}
        for path, pins in line_locks.resolve_locks(loaded, plan, upgrade, offline=offline).items():
            texts[path] = line_locks.render_lock(pins, keys[path])
            changes[path] = lock_file.describe_changes(
                line_locks.read_existing_pins(loaded.root / path), pins
            )
            if path == loaded.lines[plan.line].lock:
                common_pins[plan.line] = pins
    if record := jax_releases.update_record(loaded, common_pins, offline=offline):
        texts[jax_releases.RECORD] = record
    for path, text in texts.items():
        line_locks.write_changed(loaded.root / path, text)
    held_paths = [path for path in _lock_paths(inputs.plans) if path not in changes]
    return changes, new_paths, held_paths


def _lock_paths(plans: Iterable[Plan]) -> list[str]:
    return [lock.path for plan in plans for lock in plan.all_locks]


def check_locks(inputs: Inputs) -> dict[str, Any]:
    """Return the problems of the locks, notes about what was not checked, and the locks' paths."""
    loaded, plans, access = inputs.manifest, inputs.plans, inputs.access
    branch_problems, branch_notes = _check_branches(loaded, access)
    problems = [
        *lock_check.check_lock_files(loaded, plans, inputs.records),
        *debian_resolution.find_problems(loaded, [plan.line for plan in plans]),
        *header_packages.find_problems(loaded),
        *jax_releases.find_problems(loaded, _read_common_pins(loaded, plans)),
        *branch_problems,
    ]
    notes = [
        f"{name}: the source cannot be reached; the requirements recorded in "
        f"{declared_requirements.RECORD} were used"
        for name in inputs.recorded
    ]
    notes += branch_notes
    if access.offline:
        notes.append("offline: nothing was resolved anew")
    else:
        for plan in plans:
            problems += _list_resolution_changes(loaded, plan)
            problems += lock_check.find_idle_overrides(loaded, plan)
    return {"problems": problems, "notes": notes, "locks": _lock_paths(plans)}


def _read_common_pins(loaded: Manifest, plans: Iterable[Plan]) -> dict[str, list[Pin]]:
    """Return the pins of the common lock of each line that has one."""
    return {
        plan.line: pins
        for plan in plans
        if (pins := line_locks.read_existing_pins(loaded.root / loaded.lines[plan.line].lock))
    }


def _list_resolution_changes(loaded: Manifest, plan: Plan) -> list[str]:
    """Return how a new resolution would change each lock of a line."""
    problems = []
    for path, pins in line_locks.resolve_locks(loaded, plan).items():
        changes = lock_file.describe_changes(
            line_locks.read_existing_pins(loaded.root / path), pins
        )
        problems += [f"{path}: would change: {change}" for change in changes]
    return problems


def _check_branches(loaded: Manifest, access: Access) -> tuple[list[str], list[str]]:
    """Check that each pin is on the branch that its source tracks.

    Returns:
        A problem for each pin that is not on its branch, or whose branch is gone, and a note for
        each pin whose source cannot be reached.
    """
    problems, notes = [], []
    for name in loaded.sources:
        entry = loaded.source(name)
        if not isinstance(entry, GitSource):
            continue
        try:
            tracked_branch.check_on_branch(entry, access)
        except git_server.UnreachableError as error:
            notes.append(
                f"{name}: the builder could not check that the pin is on {entry.track} "
                f"({error.what})"
            )
        except UserError as error:
            problems.append(str(error))
    return problems, notes


def write_tool_locks(
    loaded: Manifest, names: Iterable[str], *, offline: bool
) -> dict[str, list[str]]:
    """Resolve and write locks of the builder's tools.

    Args:
        loaded: The manifest.
        names: The names of the locks: NAME for locks/NAME.in and locks/NAME.txt.
        offline: Whether only cached metadata may be used.

    Returns:
        What changed in each lock, by path.
    """
    changes: dict[str, list[str]] = {}
    for name in names:
        path = f"locks/{name}.txt"
        request = Request(
            line_locks.read_requirements(loaded.folder(f"locks/{name}.in")),
            resolution.Rules(),
            environment_markers.list_environments(_TOOL_PYTHONS, ("amd64", "arm64")),
            path,
        )
        old_pins = line_locks.read_existing_pins(loaded.root / path)
        joint_resolution = resolution.resolve_jointly(request, old_pins, offline=offline)
        pins = resolution.resolve_lock(request, joint_resolution, offline=offline)
        changes[path] = lock_file.describe_changes(old_pins, pins)
        key = stage_key("lock", {"path": path, "own": request.key_inputs()})
        line_locks.write_changed(loaded.root / path, line_locks.render_lock(pins, key))
    return changes


def write_base_locks(
    loaded: Manifest, lines: Sequence[str], *, offline: bool
) -> dict[str, list[str]]:
    """Lock today's Debian packages of the bases of these lines; return what changed in each."""
    changes = debian_resolution.relock_bases(loaded, lines, offline=offline)
    return changes | header_packages.update_lock(loaded, offline=offline)
