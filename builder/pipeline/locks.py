"""All locks of a manifest: read what they are made from, make them, or check them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core.cache import stage_key
from builder.core.manifest import GitSource
from builder.packages import (
    debian_resolution,
    declared_requirements,
    environment_markers,
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
    from builder.upstream.source import Access

_TOOL_PYTHONS = (
    "3.11",
    "3.12",
    "3.13",
    "3.14",
)  # the builder runs on any of them, whatever the lines have


@dataclass(frozen=True)
class Inputs:
    """What the locks of some lines are made from.

    Attributes:
        manifest: which has the lines.
        plans: the requests of each line.
        records: the texts of the files that record what the sources are and declare, by path.
        recorded: sources that were not at hand: the record was taken for what they declare.
        access: to the sources.
    """

    manifest: Manifest
    plans: Sequence[Plan]
    records: Mapping[str, str]
    recorded: Sequence[str]
    access: Access


def read_inputs(context: Context, loaded: Manifest, lines: Sequence[str]) -> Inputs:
    """Return what the locks of these lines are made from."""
    known = declared_requirements.load(loaded.folder(declared_requirements.RECORD))
    access = source.access(context, loaded)
    names = [
        name
        for entry in loaded.distributions.values()
        if entry.line in lines
        for name in entry.sources
    ]
    found = declared_requirements.read(loaded, access, dict.fromkeys(names), known)
    records = {
        declared_requirements.RECORD: declared_requirements.dump(loaded, known, found.declared),
        source_lock.FILE: source_lock.render(loaded, found.states),
    }
    plans = [line_locks.plan(loaded, line, found.declared) for line in lines]
    return Inputs(loaded, plans, records, found.recorded, access)


def make(
    inputs: Inputs, upgrade: Sequence[str], cache: Cache
) -> tuple[dict[str, list[str]], list[str]]:
    """Resolve and write every lock of the lines; return what changed in each, and which are new."""
    with cache.lock("lock"):
        for leftover in (inputs.manifest.root / "locks").rglob(
            ".tmp-*"
        ):  # of a run that was killed
            leftover.unlink()
        return _make(inputs, upgrade)


def _make(inputs: Inputs, upgrade: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    loaded, plans, offline = inputs.manifest, inputs.plans, inputs.access.offline
    texts = dict(inputs.records)
    changes: dict[str, list[str]] = {}
    new = [
        wanted.path
        for each in plans
        for wanted in each.all
        if not (loaded.root / wanted.path).exists()
    ]
    for each in plans:
        for path, pins in line_locks.resolved(loaded, each, upgrade, offline=offline).items():
            key = next(wanted.key for wanted in each.all if wanted.path == path)
            texts[path] = line_locks.render(pins, key)
            changes[path] = lock_file.difference(line_locks.existing(loaded.root / path), pins)
    for path, text in texts.items():
        line_locks.write_changed(loaded.root / path, text)
    return changes, new


def check(inputs: Inputs) -> dict[str, Any]:
    """Return what is wrong with the locks, what could not be told, and which locks were checked."""
    loaded, plans, access = inputs.manifest, inputs.plans, inputs.access
    problems = (
        lock_check.files(loaded, plans, inputs.records)
        + debian_resolution.problems(loaded, [each.line for each in plans])
        + header_packages.problems(loaded)
    )
    lost, unasked = _branches(loaded, access)
    problems += lost
    if not access.offline:
        for each in plans:
            for path, pins in line_locks.resolved(loaded, each).items():
                problems += [
                    f"{path}: would change: {change}"
                    for change in lock_file.difference(
                        line_locks.existing(loaded.root / path), pins
                    )
                ]
            problems += lock_check.idle_overrides(loaded, each)
    notes = [
        (
            f"{name}: its source is not at hand, {declared_requirements.RECORD} was taken for "
            "what it declares"
        )
        for name in inputs.recorded
    ]
    notes += [*unasked, *(["offline: nothing was resolved anew"] if access.offline else [])]
    return {
        "problems": problems,
        "notes": notes,
        "locks": [wanted.path for each in plans for wanted in each.all],
    }


def _branches(loaded: Manifest, access: Access) -> tuple[list[str], list[str]]:
    """Pins that no longer lie on the branch they claim, or whose branch is gone; and those that
    nobody at hand could say it of.
    """
    lost, unasked = [], []
    for name in loaded.sources:
        entry = loaded.source(name)
        if isinstance(entry, GitSource):
            try:
                tracked_branch.check_on_branch(entry, access)
            except git_server.UnreachableError as error:
                unasked.append(
                    f"{name}: whether its pin lies on {entry.track} could not be told "
                    f"({error.what})"
                )
            except UserError as error:
                lost.append(str(error))
    return lost, unasked


def make_tool_locks(
    loaded: Manifest, names: Iterable[str], *, offline: bool
) -> dict[str, list[str]]:
    """Resolve and write locks of the builder's tools; return what changed in each."""
    changes: dict[str, list[str]] = {}
    for name in names:
        path = f"locks/{name}.txt"
        request = Request(
            line_locks.read_in(loaded.folder(f"locks/{name}.in")),
            resolution.Rules(),
            environment_markers.grid(_TOOL_PYTHONS, ("amd64", "arm64")),
            path,
        )
        now = line_locks.existing(loaded.root / path)
        pins = resolution.locked(
            request,
            resolution.joint(request, now, offline=offline),
            offline=offline,
        )
        changes[path] = lock_file.difference(now, pins)
        line_locks.write_changed(
            loaded.root / path,
            line_locks.render(pins, stage_key("lock", {"path": path, "own": request.inputs()})),
        )
    return changes


def make_base_locks(
    loaded: Manifest, lines: Sequence[str], *, offline: bool
) -> dict[str, list[str]]:
    """Lock today's Debian packages of the bases of these lines; return what changed in each."""
    return debian_resolution.relock(loaded, lines, offline=offline) | header_packages.relock(
        loaded, offline=offline
    )
