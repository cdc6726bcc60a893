"""The declared requirements of the manifest's sources, and the record of them for machines that
cannot reach a source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from builder.core import log
from builder.core.cache import stage_key
from builder.core.manifest import WheelSource
from builder.packages import upstream_requirements
from builder.packages.upstream_requirements import Declared
from builder.upstream import overlay, patch_series, patched_source, source, source_tree
from builder.upstream.git_objects import Reader, list_tree_files
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.core.manifest import GitSource, Manifest
    from builder.upstream.source import Access, Pinned
    from builder.upstream.source_tree import PatchedSource

RECORD = "locks/declared.json"


@dataclass(frozen=True)
class SourceRequirements:
    """What the sources declare, by source; how each was patched, where it was at hand; and those
    taken from the record.
    """

    declared: dict[str, Declared]
    states: tuple[PatchedSource, ...] = ()
    recorded: tuple[str, ...] = ()


def read_sources(
    manifest: Manifest, access: Access, names: Iterable[str], known: Mapping[str, Any]
) -> SourceRequirements:
    """Return what each source declares after its patches; from `known`, the record, where the
    source cannot be had.

    Raises:
        UserError: a source can neither be had nor is its record of the present pin and patches.
    """
    own = {project_name(manifest.source(name)) for name in manifest.sources}
    found: dict[str, Declared] = {}
    states, recorded = [], []
    for name in names:
        entry = manifest.source(name)
        try:
            pinned = source.acquire_source(entry, access)
        except UserError as error:
            kept = known.get(name, {})
            if kept.get("key") != compute_key(entry):
                raise
            log.info(f"{name}: taken from {RECORD}, since the source is not at hand ({error.what})")
            found[name] = Declared(name, kept["origin"], tuple(kept["requirements"]))
            recorded.append(name)
        else:
            states.append(source_tree.patch_source(entry, access))
            found[name] = _read_patched(entry, pinned, own)
    return SourceRequirements(found, tuple(states), tuple(recorded))


def project_name(entry: GitSource | WheelSource) -> str:
    """Return the normalised name of the project that a source is."""
    return str(
        canonicalize_name(
            entry.wheel.partition("==")[0] if isinstance(entry, WheelSource) else entry.name
        )
    )


def compute_key(entry: GitSource | WheelSource) -> str:
    """Over the pin and what of ours changes the files that declare requirements."""
    patches = [
        [patch.name, patch.sha256]
        for patch in patch_series.load_patches(entry.patches)
        if any(_is_declaration(file.path) for file in patch.files)
    ]
    laid = [
        [file.path, file.blob]
        for file in overlay.load_overlay(entry.overlay)
        if _is_declaration(file.path)
    ]
    pin = entry.sha256 if isinstance(entry, WheelSource) else entry.commit
    return stage_key("declared", {"pin": pin, "patches": patches, "overlay": laid})


def _is_declaration(path: str) -> bool:
    return path in ("requirements.in", "setup.py") or path.endswith(".dist-info/METADATA")


def _read_patched(entry: GitSource | WheelSource, pinned: Pinned, own: set[str]) -> Declared:
    done = patched_source.build_patched_source(pinned, entry)
    with Reader(pinned.git) as reader:
        blobs = {each.path: each.sha for each in list_tree_files(reader, done.exported_tree)}
        return upstream_requirements.read_declared(
            entry.name, blobs.keys(), lambda path: reader.read(blobs[path], "blob"), own
        )


def load_record(file: Path) -> dict[str, Any]:
    """Return the record; empty where there is none (or none that can be read: it is machine-owned
    and made anew).
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return dict(found["sources"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def render_record(
    manifest: Manifest, known: Mapping[str, Any], found: Mapping[str, Declared]
) -> str:
    """Return the record's text: what is known, brought up to date with what was found; sources that
    are gone drop out.
    """
    fresh = {
        name: {
            "key": compute_key(manifest.source(name)),
            "origin": each.origin,
            "requirements": list(each.requirements),
        }
        for name, each in found.items()
    }
    sources = {
        name: entry
        for name, entry in sorted({**known, **fresh}.items())
        if name in manifest.sources
    }
    return json.dumps({"schema": 1, "sources": sources}, indent=1) + "\n"
