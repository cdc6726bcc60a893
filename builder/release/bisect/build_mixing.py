"""Mix a build from a good one and some of the changes that lead to a bad one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.core.manifest import Override
from builder.release.bisect.build_contents import SourceContents
from builder.release.bisect.changes import (
    PATCH_ORDER,
    differs_in_order,
    is_same_patch,
    merge_names,
    pins_by_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.packages.lock_file import Pin
    from builder.release.bisect.build_contents import Build
    from builder.release.bisect.changes import Change, ChangeList, Kind
    from builder.upstream.overlay import OverlayFile


def mix_build(
    change_list: ChangeList,
    positions: frozenset[int],
    pinned_commits: Mapping[str, str] | None = None,
) -> Build:
    """Return the good build with some of the changes.

    Args:
        change_list: The good build, the bad build, and all changes between them.
        positions: The positions of the changes to apply.
        pinned_commits: Commits of sources, by the source's name. These pins take precedence over
            the changes.
    """
    good, bad = change_list.good, change_list.bad
    if not pinned_commits and len(positions) in (0, len(change_list.changes)):
        return bad if positions else good
    changes = [change_list.changes[position] for position in sorted(positions)]
    kinds = {change.kind for change in changes}
    lock, pins = _mix_locks(change_list, changes)
    return replace(
        good,
        line=(bad if "python" in kinds else good).line,
        rules={
            key: _join_rules(good.rules.get(key, []), bad.rules.get(key, []))
            for key in ("sdists", "strip", "overrides")
        },
        sources=_mix_sources(change_list, changes, pinned_commits or {}),
        lock=lock,
        pins=pins,
        build_tools_lock=(bad if "tools" in kinds else good).build_tools_lock,
        rosetta_commit=_last_rosetta_commit(change_list, changes),
    )


def _mix_sources(
    change_list: ChangeList, changes: Sequence[Change], pinned_commits: Mapping[str, str]
) -> tuple[SourceContents, ...]:
    old_sources = {source.name: source for source in change_list.good.sources}
    new_sources = {source.name: source for source in change_list.bad.sources}
    changed_sources = _changed_names(changes, "source", "")
    sources = []
    for name in merge_names(list(old_sources), list(new_sources)):
        if name in old_sources and name in new_sources:
            sources.append(
                _mix_source(
                    old_sources[name],
                    new_sources[name],
                    [change for change in change_list.changes if change.source == name],
                    [change for change in changes if change.source == name],
                    pinned_commits.get(name),
                )
            )
        elif name in (new_sources if name in changed_sources else old_sources):
            sources.append({**new_sources, **old_sources}[name])
    return tuple(sources)


def _mix_source(
    old: SourceContents,
    new: SourceContents,
    all_changes: Sequence[Change],
    changes: Sequence[Change],
    pinned_commit: str | None,
) -> SourceContents:
    """Return a source with some of its changes.

    Args:
        old: The source in the good build.
        new: The source in the bad build.
        all_changes: All changes of this source.
        changes: The changes of this source to apply.
        pinned_commit: The commit that takes precedence over the changes, if there is one.
    """
    entry, is_at_new_pin = old.entry, False
    all_commits = [change for change in all_changes if change.kind == "commit"]
    commits = [change for change in changes if change.kind == "commit"]
    if pinned_commit:
        entry = {**old.entry, "commit": pinned_commit}
    elif _has_kind(changes, "move") or (all_commits and len(commits) == len(all_commits)):
        entry, is_at_new_pin = new.entry, True
    elif commits and commits[-1].step:
        entry = {**old.entry, "commit": commits[-1].step.pin}
    changed_patches = _changed_names(changes, "patch", old.name)
    changed_files = _changed_names(changes, "overlay", old.name)
    return SourceContents(
        old.name,
        entry,
        _mix_patches(dict(old.patches), dict(new.patches), changed_patches, is_at_new_pin),
        _mix_overlays(old.overlay, new.overlay, changed_files),
    )


def _has_kind(changes: Iterable[Change], kind: Kind) -> bool:
    return any(change.kind == kind for change in changes)


def _changed_names(changes: Iterable[Change], kind: Kind, source: str) -> set[str]:
    return {change.name for change in changes if (change.kind, change.source) == (kind, source)}


def _mix_patches(
    old_patches: Mapping[str, tuple[bytes, ...]],
    new_patches: Mapping[str, tuple[bytes, ...]],
    changed: set[str],
    is_at_new_pin: bool,
) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    """Return the patches of a mixed source, each with the versions that may apply.

    A patch that both series have in versions for different commits keeps both versions. The
    version that was made for the pin of the mixed source comes first.
    """
    old_names, new_names = list(old_patches), list(new_patches)
    if differs_in_order(old_names, new_names) and PATCH_ORDER not in changed:
        names = merge_names(new_names, old_names)
    else:
        names = merge_names(old_names, new_names)
    mixed = []
    for name in names:
        versions = (new_patches if name in changed else old_patches).get(name, ())
        if name not in changed and is_same_patch(name, old_patches, new_patches):
            first, second = old_patches[name], new_patches[name]
            if is_at_new_pin:
                first, second = second, first
            versions = tuple(dict.fromkeys((*first, *second)))
        if versions:
            mixed.append((name, versions))
    return tuple(mixed)


def _mix_overlays(
    old_overlay: Iterable[OverlayFile], new_overlay: Iterable[OverlayFile], changed: set[str]
) -> tuple[OverlayFile, ...]:
    old_files = {file.path: file for file in old_overlay}
    new_files = {file.path: file for file in new_overlay}
    mixed = []
    for path in sorted(old_files.keys() | new_files.keys()):
        file = (new_files if path in changed else old_files).get(path)
        if file:
            mixed.append(file)
    return tuple(mixed)


def _mix_locks(change_list: ChangeList, changes: Iterable[Change]) -> tuple[str, tuple[Pin, ...]]:
    """Return the text and the pins of the lock of a mixed build."""
    good, bad = change_list.good, change_list.bad
    changed = _changed_names(changes, "package", "")
    if not changed:
        return good.lock, good.pins
    if changed == _changed_names(change_list.changes, "package", ""):
        return bad.lock, bad.pins
    old_packages, new_packages = pins_by_name(good.pins), pins_by_name(bad.pins)
    pins: list[Pin] = []
    for name in sorted(old_packages.keys() | new_packages.keys()):
        pins += (new_packages if name in changed else old_packages).get(name, [])
    return "".join(pin.requirement_lines() for pin in pins), tuple(pins)


def _join_rules(
    old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rules of both manifests; the rule of the bad build wins if both have one.

    Rules only allow something, so a mixed build may need the rules of both manifests.
    """
    rules = {}
    for rule in (*old, *new):
        project = rule["name"] if "name" in rule else Override(**rule).project
        rules[project] = rule
    return list(rules.values())


def _last_rosetta_commit(change_list: ChangeList, changes: Sequence[Change]) -> str:
    """Return the commit whose `rosetta/` a mixed build uses."""
    for change in reversed(changes):
        if change.kind == "rosetta":
            return change.step.pin if change.step else change_list.bad.rosetta_commit
    return change_list.good.rosetta_commit
