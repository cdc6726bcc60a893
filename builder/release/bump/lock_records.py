"""Update the files that record the state of the sources, after their pins have moved.

The files are `locks/sources.json` and `locks/declared.json`, as `build.py lock` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from builder.packages import declared_requirements, line_locks
from builder.upstream import source_lock
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.core.manifest import Manifest
    from builder.upstream.source import Access

FILES = (declared_requirements.RECORD, source_lock.FILE)


@dataclass(frozen=True)
class LockChanges:
    """What changed in the files.

    Attributes:
        files: The changes of each file: lines that begin with "-" (before) or "+" (after).
        lines: The lines of the manifest whose packages have to be resolved again.
        problem: Why the files were not updated.
    """

    files: dict[str, list[str]]
    lines: tuple[str, ...] = ()
    problem: str = ""


def update_lock_records(manifest: Manifest, access: Access, names: Iterable[str]) -> LockChanges:
    """Write both files.

    Args:
        manifest: The manifest with the new pins.
        access: Where the sources can be fetched from.
        names: The sources that moved. Those that no distribution has are ignored.
    """
    line_of_source = _map_sources_to_lines(manifest)
    moved = [name for name in names if name in line_of_source]
    if not moved:
        return LockChanges({})
    declared_before = declared_requirements.load_record(
        manifest.folder(declared_requirements.RECORD)
    )
    try:
        records_before = source_lock.read_records(manifest)
        sources = declared_requirements.read_sources(manifest, access, moved, declared_before)
    except UserError as error:
        return LockChanges({}, problem=str(error))
    requirement_changes = {
        name: _compare_requirements(
            name,
            declared_before.get(name, {}).get("requirements", []),
            list(sources.declared[name].requirements),
        )
        for name in moved
    }
    pin_changes = [
        _compare_pins(
            state.name, records_before.get(state.name, {}), source_lock.make_record(state)
        )
        for state in sources.states
    ]
    _write_records(manifest, declared_before, sources)
    files = {
        declared_requirements.RECORD: list(chain.from_iterable(requirement_changes.values())),
        source_lock.FILE: list(chain.from_iterable(pin_changes)),
    }
    stale_lines = [line_of_source[name] for name in moved if requirement_changes[name]]
    return LockChanges(
        {path: changes for path, changes in files.items() if changes},
        tuple(dict.fromkeys(stale_lines)),
    )


def _map_sources_to_lines(manifest: Manifest) -> dict[str, str]:
    """Return the line of each source that a distribution or a project has."""
    lines = {
        name: distribution.line
        for distribution in manifest.distributions.values()
        for name in distribution.sources
    }
    for name, project in manifest.projects.items():
        lines[name] = manifest.distribution(project.distribution).line
    return lines


def _write_records(
    manifest: Manifest,
    declared_before: Mapping[str, Any],
    sources: declared_requirements.SourceRequirements,
) -> None:
    """Write both files, if their text changes."""
    line_locks.write_changed(
        manifest.root / declared_requirements.RECORD,
        declared_requirements.render_record(manifest, declared_before, sources.declared),
    )
    line_locks.write_changed(
        manifest.root / source_lock.FILE, source_lock.render_lock(manifest, sources.states)
    )


def _compare_requirements(name: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    removed = [f"-{name}: {requirement}" for requirement in before if requirement not in after]
    added = [f"+{name}: {requirement}" for requirement in after if requirement not in before]
    return removed + added


def _compare_pins(
    name: str, before: Mapping[str, object], after: Mapping[str, object]
) -> list[str]:
    changes = []
    for key in ("commit", "patched_commit"):
        if before.get(key) != after[key]:
            if key in before:
                changes.append(f"-{name}: {key} {before[key]}")
            changes.append(f"+{name}: {key} {after[key]}")
    return changes
