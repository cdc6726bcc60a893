"""Move pins along their branches, in a checkout or in a copy of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.core import log, manifest
from builder.core.manifest import GitSource
from builder.release.bump import lock_records, plan, working_copy
from builder.release.bump.journal import load_journal, new_journal
from builder.upstream.source import configure_access

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.release.bump.journal import Journal
    from builder.release.bump.lock_records import LockChanges
    from builder.release.bump.plan import SourceReport
    from builder.upstream.source import Access


@dataclass(frozen=True)
class MoveOptions:
    """How pins are moved.

    Attributes:
        accept: Whether to drop patches that upstream has, and to accept merges.
        tip_only: Whether a pin moves only if everything applies at the tip.
        targets: Commits to use in place of the tips of the branches, by the source's name.
    """

    accept: bool = False
    tip_only: bool = False
    targets: Mapping[str, str] = field(default_factory=dict)


def move_pins(
    context: Context,
    sources: Sequence[GitSource],
    journal: Journal,
    options: MoveOptions,
) -> tuple[list[SourceReport], LockChanges]:
    """Move the pin of each source as far as its patches apply, and update the lock files.

    Args:
        context: The context of the builder's command.
        sources: The sources at their present pins.
        journal: Where every write is noted first.
        options: How to move the pins.

    Returns:
        The report of each source, and what changed in the lock files.
    """
    start = manifest.load(context.manifest_path)
    source_access = configure_access(context, start)
    journal.running = True
    if not journal.records:
        journal.records = {path: _read_text(start.root / path) for path in lock_records.FILES}
    reports = []
    for source in sources:
        with log.stage(f"bump {source.name}"):
            reports.append(_move_pin(source, start.root, source_access, journal, options))
    moved = [
        report.source.name
        for report in reports
        if report.source.name in journal.entries and report.newest_usable == report.pin
    ]
    changes = lock_records.update_lock_records(
        manifest.load(context.manifest_path), source_access, moved
    )
    journal.running = False
    if any(entry.target for entry in journal.entries.values()):
        journal.save()
    else:
        journal.delete()
    return reports, changes


def _move_pin(
    source: GitSource, root: Path, source_access: Access, journal: Journal, options: MoveOptions
) -> SourceReport:
    report = plan.examine_source(
        source,
        source_access,
        accept=options.accept,
        tip_only=options.tip_only,
        target=options.targets.get(source.name, ""),
    )
    is_known = source.name in journal.entries
    if report.branch_problem is None:
        if report.writes or not report.ok or is_known:
            journal.begin_source(source, root, report.tip)
        if report.writes:
            journal.write_source(source, root, report.writes.pin, report.writes.files)
    if report.ok and source.name in journal.entries:
        journal.entries[source.name].target = ""
        journal.save()
    return report


def _read_text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


def move_pins_in_copy(
    context: Context, shipped: Manifest, names: Iterable[str], folder: Path, options: MoveOptions
) -> Context:
    """Copy a manifest with its files, and move pins in the copy.

    Args:
        context: The context of the builder's command.
        shipped: The manifest of the checkout.
        names: The sources to move. Those that are not git sources stay as they are.
        folder: The folder of the copy, which is replaced.
        options: How to move the pins.

    Returns:
        The context of the copy.
    """
    copy_context = replace(context, manifest_path=folder / working_copy.FILE)
    working_copy.copy_manifest(shipped, context.manifest_path, folder)
    old_journal = load_journal(context.cache, copy_context.manifest_path)
    if old_journal:
        old_journal.delete()  # it belongs to a copy that was replaced
    copy = manifest.load(copy_context.manifest_path)
    sources = [copy.source(name) for name in names]
    move_pins(
        copy_context,
        [source for source in sources if isinstance(source, GitSource)],
        new_journal(context.cache, copy_context.manifest_path),
        options,
    )
    return copy_context
