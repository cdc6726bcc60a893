"""Read, check and write locks/sources.json, the lock of the patched sources.

The lock records the commit and the tree that each source has after its patches and its overlay.
Every machine compares its own result with the lock.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.core import log
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.core.manifest import Manifest
    from builder.upstream.source_tree import PatchedSource

FILE = "locks/sources.json"
_INPUTS = ("commit", "tree", "absent", "overlay")
_RESULTS = ("patched_commit", "patched_tree", "exported_tree")


def make_record(state: PatchedSource) -> dict[str, Any]:
    """Return the record of a patched source in the lock."""
    data = state.as_json()
    patches = [
        {key: patch[key] for key in ("name", "sha256", "outcome")} for patch in state.patches
    ]
    return {
        **{key: _round_trip_json(data[key]) for key in (*_INPUTS, *_RESULTS)},
        "patches": patches,
    }


def read_records(manifest: Manifest) -> dict[str, Any]:
    """Return the records of the lock by source, or an empty dictionary if there is no lock.

    Raises:
        UserError: The file is not a lock of sources.
    """
    path = manifest.root / FILE
    try:
        records = dict(json.loads(path.read_text(encoding="utf-8"))["sources"])
        if not all(
            isinstance(record, dict) and isinstance(record.get("patches", []), list)
            for record in records.values()
        ):
            raise TypeError(records)
        return records
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            "is not a lock of sources", str(path), "restore it: git checkout -- locks/sources.json"
        ) from error


def check_record(manifest: Manifest, state: PatchedSource) -> bool:
    """Compare a patched source with the lock.

    Returns:
        Whether the lock has the source as it is, or has no record of it. If the pin, the patches
        or the overlay differ from those of the lock, a line says so.

    Raises:
        UserError: The inputs are those of the lock, but the result is another.
    """
    known, record = read_records(manifest).get(state.name), make_record(state)
    if known is None:
        return True
    if not all(
        _round_trip_json(known.get(key)) == record[key] for key in _INPUTS
    ) or _list_patch_hashes(known) != _list_patch_hashes(record):
        log.info(
            f"{state.name}: the pin, patches or overlay differ from {FILE}; "
            "`build.py lock` records them"
        )
        return False
    for key in _RESULTS:
        if known.get(key) != record[key]:
            raise UserError(
                f"{key} is {record[key]}, but the lock has {known.get(key)}",
                f"{FILE}: {state.name}",
                "the same inputs must give the same result: report this with your git version",
            )
    return True


def render_lock(manifest: Manifest, states: Iterable[PatchedSource]) -> str:
    """Return the text of the lock with new records for the given sources.

    Other sources keep their records, and sources that are no longer in the manifest are left out.
    """
    records = {**read_records(manifest), **{state.name: make_record(state) for state in states}}
    current = {name: records[name] for name in sorted(records) if name in manifest.sources}
    return json.dumps({"schema": 1, "sources": current}, indent=1) + "\n"


def lock_path(manifest: Manifest) -> Path:
    """Return the path of the lock of the manifest's sources."""
    return manifest.root / FILE


def _list_patch_hashes(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and the hash of each patch of a record."""
    return [(patch["name"], patch["sha256"]) for patch in record.get("patches", [])]


def _round_trip_json(value: Any) -> Any:
    """Return a value as it is after JSON wrote and read it: tuples become lists."""
    return json.loads(json.dumps(value))
