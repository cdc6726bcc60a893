"""locks/sources.json and locks/declared.json after a move, as `build.py lock` writes them, and
whether packages have to be resolved anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.packages import declared_requirements, line_locks
from builder.upstream import source_lock
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.core.manifest import Manifest
    from builder.upstream.source import Access

FILES = (declared_requirements.RECORD, source_lock.FILE)


@dataclass(frozen=True)
class Changes:
    """By file, what changed in it, a line each (`-` before, `+` after); the lines whose packages
    have to be resolved; what went wrong.
    """

    files: dict[str, list[str]]
    lines: tuple[str, ...] = ()
    problem: str = ""


def renew(manifest: Manifest, access: Access, names: Iterable[str]) -> Changes:
    """Write both files for those of the sources that a distribution has."""
    shipped = {name: each.line for each in manifest.distributions.values() for name in each.sources}
    wanted = [name for name in names if name in shipped]
    if not wanted:
        return Changes({})
    known = declared_requirements.load(manifest.folder(declared_requirements.RECORD))
    try:
        records = source_lock.load(manifest)
        found = declared_requirements.read(manifest, access, wanted, known)
    except UserError as error:
        return Changes({}, problem=str(error))
    asked: list[str] = []
    pins: list[str] = []
    stale = []
    for name in wanted:
        before, after = (
            known.get(name, {}).get("requirements", []),
            list(found.declared[name].requirements),
        )
        different = [f"-{name}: {one}" for one in before if one not in after] + [
            f"+{name}: {one}" for one in after if one not in before
        ]
        asked += different
        stale += [shipped[name]] if different else []
    for state in found.states:
        old, new = records.get(state.name, {}), source_lock.entry(state)
        for key in ("commit", "patched_commit"):
            if old.get(key) != new[key]:
                pins += [
                    *([f"-{state.name}: {key} {old[key]}"] if key in old else []),
                    f"+{state.name}: {key} {new[key]}",
                ]
    line_locks.write_changed(
        manifest.root / declared_requirements.RECORD,
        declared_requirements.dump(manifest, known, found.declared),
    )
    line_locks.write_changed(
        manifest.root / source_lock.FILE, source_lock.render(manifest, found.states)
    )
    return Changes(
        {path: diff for path, diff in zip(FILES, (asked, pins), strict=True) if diff},
        tuple(dict.fromkeys(stale)),
    )
