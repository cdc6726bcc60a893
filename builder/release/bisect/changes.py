"""The changes that lead from a good build to a bad one, as one list."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.release.bisect import upstream_history
from builder.release.bump.commit_trial import has_same_changes
from builder.upstream import patch_file

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from builder.packages.lock_file import Pin
    from builder.release.bisect.build_contents import Build, SourceContents
    from builder.release.bisect.upstream_history import History, HistoryStep
    from builder.upstream.breakage_search import Cause
    from builder.upstream.overlay import OverlayFile
    from builder.upstream.source import Access

PATCH_ORDER = ""  # the name of the change which is the order of a patch series
Kind = Literal[
    "source", "commit", "move", "patch", "overlay", "package", "tools", "python", "rosetta"
]


@dataclass(frozen=True)
class Change:
    """One difference between two builds.

    Attributes:
        kind: What changed.
        source: The name of the source that changed, or "" if the change is in no source.
        name: The name of what changed: a commit, a patch, a path or a package.
        description: The change in words.
        step: The commit, if the change is a commit of an upstream or of `rosetta/`.
    """

    kind: Kind
    source: str
    name: str
    description: str
    step: HistoryStep | None = None

    def __str__(self) -> str:
        return f"{self.source}: {self.description}" if self.source else self.description

    def requires(self, earlier: Change) -> bool:
        """Return whether a build with this change must also have one from earlier in the list.

        A commit requires the commits before it in the same repository.
        """
        return (
            self.kind in ("commit", "rosetta")
            and self.kind == earlier.kind
            and self.source == earlier.source
        )


@dataclass(frozen=True)
class ChangeList:
    """All changes that lead from one build to another.

    Attributes:
        good: The build without any of the changes.
        bad: The build with all of them.
        changes: The changes, those of the sources first.
        histories: The commits between the pins of each source, by the source's name.
        notes: Why some changes could not be split into smaller ones.
    """

    good: Build
    bad: Build
    changes: tuple[Change, ...]
    histories: Mapping[str, History]
    notes: tuple[str, ...]

    def with_prerequisites(self, position: int) -> frozenset[int]:
        """Return the position of a change, and the positions of the changes that it requires."""
        change = self.changes[position]
        required = [index for index in range(position) if change.requires(self.changes[index])]
        return frozenset([position, *required])


def list_changes(
    good: Build,
    bad: Build,
    is_for_this_machine: Callable[[Pin], bool],
    access: Access,
    stack: contextlib.ExitStack,
) -> ChangeList:
    """List the changes that lead from one build to another, those of the sources first.

    The commits of `rosetta/` are not in the list: `add_rosetta_commits` adds them.

    Args:
        good: The build without the changes.
        bad: The build with the changes.
        is_for_this_machine: Whether a locked package would be installed on this machine.
        access: Where the sources can be fetched from.
        stack: Closes the histories of the upstreams.
    """
    changes: list[Change] = []
    histories: dict[str, History] = {}
    notes: list[str] = []
    old_sources = {source.name: source for source in good.sources}
    new_sources = {source.name: source for source in bad.sources}
    for name in merge_names(list(old_sources), list(new_sources)):
        if name not in old_sources or name not in new_sources:
            verb = "added" if name in new_sources else "removed"
            changes.append(Change("source", "", name, f"the source {name} {verb}"))
            continue
        old, new = old_sources[name], new_sources[name]
        pin_changes, history = _list_pin_changes(old, new, access, stack)
        if history and history.steps:
            histories[name] = history
        elif history:
            notes.append(f"{name}: {history.reason}; its commits are not tried one by one")
        changes += pin_changes
        changes += _list_patch_changes(old, new)
        changes += _list_overlay_changes(old, new)
    changes += _list_tool_changes(good, bad)
    if good.lock != bad.lock:
        changes += _list_package_changes(good.pins, bad.pins, is_for_this_machine)
    return ChangeList(good, bad, tuple(changes), histories, tuple(notes))


def add_rosetta_commits(change_list: ChangeList, commits: Sequence[Cause] | None) -> ChangeList:
    """Append the commits that changed `rosetta/` to a list of changes.

    Args:
        change_list: The list without those commits.
        commits: The commits, oldest first, or None if the bad revision does not descend from the
            good one. Then all of `rosetta/` is one change.
    """
    if commits is None:
        whole = Change("rosetta", "", "rosetta", "rosetta/ as a whole")
        note = (
            "rosetta: the bad revision does not descend from the good one; "
            "its commits are not tried one by one"
        )
        return replace(
            change_list,
            changes=(*change_list.changes, whole),
            notes=(*change_list.notes, note),
        )
    if not commits:
        same_rosetta = replace(change_list.bad, rosetta_commit=change_list.good.rosetta_commit)
        return replace(change_list, bad=same_rosetta)
    added = [
        Change(
            "rosetta",
            "",
            commit.commit,
            f"rosetta {commit}",
            upstream_history.HistoryStep(commit.commit, commit),
        )
        for commit in commits
    ]
    return replace(change_list, changes=(*change_list.changes, *added))


def commit_change(source: str, step: HistoryStep) -> Change:
    """Return the change that one commit of an upstream makes."""
    prefix = "without " if step.is_undone else ""
    return Change("commit", source, step.cause.commit, f"{prefix}{step.cause}", step)


def _list_pin_changes(
    old: SourceContents, new: SourceContents, access: Access, stack: contextlib.ExitStack
) -> tuple[list[Change], History | None]:
    """Return the commits between the pins of a source, or one change if they cannot be listed.

    Returns:
        The changes, and the history if one was looked for.
    """
    old_entry = {key: value for key, value in old.entry.items() if key != "track"}
    new_entry = {key: value for key, value in new.entry.items() if key != "track"}
    if old_entry == new_entry:
        return [], None
    old_pin = str(old_entry.get("commit") or old_entry.get("wheel"))
    new_pin = str(new_entry.get("commit") or new_entry.get("wheel"))
    if old_pin == new_pin:
        description = "the address, or the list of absent files"
    else:
        description = f"{old_pin} -> {new_pin}"
    move = Change("move", old.name, old.name, description)
    has_same_repository = old_entry.get("git") and old_entry.get("git") == new_entry.get("git")
    if old_pin == new_pin or not has_same_repository:
        return [move], None
    history = upstream_history.read_history(old.name, old.entry, new.entry, Path(), access, stack)
    commits = [commit_change(old.name, step) for step in history.steps]
    return commits or [move], history


def _list_patch_changes(old: SourceContents, new: SourceContents) -> list[Change]:
    old_patches, new_patches = dict(old.patches), dict(new.patches)
    changes = []
    if differs_in_order(list(old_patches), list(new_patches)):
        changes.append(Change("patch", old.name, PATCH_ORDER, "the order of its patches"))
    for name in merge_names(list(old_patches), list(new_patches)):
        if is_same_patch(name, old_patches, new_patches):
            continue
        verb = _describe_change(name, old_patches, new_patches)
        changes.append(Change("patch", old.name, name, f"patch {name} {verb}"))
    return changes


def _list_overlay_changes(old: SourceContents, new: SourceContents) -> list[Change]:
    old_files, new_files = _contents_by_path(old.overlay), _contents_by_path(new.overlay)
    changes = []
    for path in sorted(old_files.keys() | new_files.keys()):
        if old_files.get(path) != new_files.get(path):
            verb = _describe_change(path, old_files, new_files)
            changes.append(Change("overlay", old.name, path, f"our file {path} {verb}"))
    return changes


def _contents_by_path(overlay: Iterable[OverlayFile]) -> dict[str, tuple[str, str]]:
    """Return the mode and the hash of each file."""
    return {file.path: (file.mode, file.blob) for file in overlay}


def _describe_change(name: str, old: Mapping[str, object], new: Mapping[str, object]) -> str:
    if name in old and name in new:
        return "changed"
    return "added" if name in new else "removed"


def _list_tool_changes(good: Build, bad: Build) -> list[Change]:
    """Return the changes of the Python version and of the tools that build sdists."""
    changes = []
    old_python, new_python = good.line.get("python"), bad.line.get("python")
    if old_python != new_python:
        changes.append(Change("python", "", "python", f"Python {old_python} -> {new_python}"))
    if good.build_tools_lock != bad.build_tools_lock:
        path = "locks/build.txt"
        changes.append(Change("tools", "", path, f"the tools that build sdists ({path})"))
    return changes


def _list_package_changes(
    old_pins: Iterable[Pin], new_pins: Iterable[Pin], is_for_this_machine: Callable[[Pin], bool]
) -> list[Change]:
    old_packages = pins_by_name(filter(is_for_this_machine, old_pins))
    new_packages = pins_by_name(filter(is_for_this_machine, new_pins))
    changes = []
    for name in sorted(old_packages.keys() | new_packages.keys()):
        old, new = old_packages.get(name, []), new_packages.get(name, [])
        if frozenset(old) != frozenset(new):
            description = f"{name} {_join_versions(old)} -> {_join_versions(new)}"
            changes.append(Change("package", "", name, description))
    return changes


def _join_versions(pins: Iterable[Pin]) -> str:
    return ", ".join(sorted({pin.version for pin in pins})) or "not installed"


def pins_by_name(pins: Iterable[Pin]) -> dict[str, list[Pin]]:
    """Group pins by the name of their package."""
    groups: dict[str, list[Pin]] = {}
    for pin in pins:
        groups.setdefault(pin.name, []).append(pin)
    return groups


def merge_names(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return all names in the order of `second`.

    A name that only `first` has comes after the name that precedes it in `first`.
    """
    merged = list(second)
    for index, name in enumerate(first):
        if name not in second:
            position = merged.index(first[index - 1]) + 1 if index else 0
            merged.insert(position, name)
    return merged


def differs_in_order(old_names: Sequence[str], new_names: Sequence[str]) -> bool:
    """Return whether two lists have their common names in different orders."""
    old_common = [name for name in old_names if name in new_names]
    new_common = [name for name in new_names if name in old_names]
    return old_common != new_common


def is_same_patch(
    name: str,
    old_patches: Mapping[str, tuple[bytes, ...]],
    new_patches: Mapping[str, tuple[bytes, ...]],
) -> bool:
    """Return whether two series have the same patch, perhaps in versions for different commits."""
    if name not in old_patches or name not in new_patches:
        return False
    old_versions, new_versions = old_patches[name], new_patches[name]
    return old_versions == new_versions or changes_same_lines(
        name, old_versions[0], new_versions[0]
    )


def changes_same_lines(name: str, old: bytes, new: bytes) -> bool:
    """Return whether two versions of a patch add and remove the same lines."""
    path = Path(f"{name}.patch")
    return has_same_changes(patch_file.parse_patch(path, old), patch_file.parse_patch(path, new))
