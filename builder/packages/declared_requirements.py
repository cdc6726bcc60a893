"""Read the requirements that the manifest's sources declare, and keep a record of them for machines
that cannot reach a source.
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
    """What the sources require.

    Attributes:
        declared: What each source declares, by its name.
        states: The sources that were patched and read.
        recorded: The names of the sources whose requirements come from the record.
    """

    declared: dict[str, Declared]
    states: tuple[PatchedSource, ...] = ()
    recorded: tuple[str, ...] = ()


def read_sources(
    manifest: Manifest, access: Access, names: Iterable[str], record: Mapping[str, Any]
) -> SourceRequirements:
    """Return what each source declares after its patches.

    Args:
        manifest: The manifest with the sources.
        access: How sources are fetched.
        names: The names of the sources to read.
        record: What the sources declared earlier, see `load_record`. It is used for a source that
            cannot be fetched.

    Raises:
        UserError: A source cannot be fetched, and the record is missing or was made from another
            pin or other patches.
    """
    source_projects = {project_name(manifest.source(name)) for name in manifest.sources}
    declared: dict[str, Declared] = {}
    states, recorded = [], []
    for name in names:
        entry = manifest.source(name)
        try:
            pinned = source.acquire_source(entry, access)
        except UserError as error:
            earlier = record.get(name, {})
            if earlier.get("key") != compute_key(entry):
                raise
            log.info(f"{name}: taken from {RECORD}, since the source is not at hand ({error.what})")
            declared[name] = Declared(name, earlier["origin"], tuple(earlier["requirements"]))
            recorded.append(name)
        else:
            states.append(source_tree.patch_source(entry, access))
            declared[name] = _read_patched(entry, pinned, source_projects)
    return SourceRequirements(declared, tuple(states), tuple(recorded))


def project_name(entry: GitSource | WheelSource) -> str:
    """Return the normalised name of the project that a source has."""
    if isinstance(entry, WheelSource):
        return str(canonicalize_name(entry.wheel.partition("==")[0]))
    return str(canonicalize_name(entry.name))


def compute_key(entry: GitSource | WheelSource) -> str:
    """Return the key over the pin of a source, and over the patches and overlay files that change
    the files which declare requirements.
    """
    patches = [
        [patch.name, patch.sha256]
        for patch in patch_series.load_patches(entry.patches)
        if any(_is_declaration(file.path) for file in patch.files)
    ]
    overlay_files = [
        [file.path, file.blob]
        for file in overlay.load_overlay(entry.overlay)
        if _is_declaration(file.path)
    ]
    pin = entry.sha256 if isinstance(entry, WheelSource) else entry.commit
    return stage_key("declared", {"pin": pin, "patches": patches, "overlay": overlay_files})


def _is_declaration(path: str) -> bool:
    return path in ("requirements.in", "setup.py") or path.endswith(".dist-info/METADATA")


def _read_patched(
    entry: GitSource | WheelSource, pinned: Pinned, source_projects: set[str]
) -> Declared:
    patched = patched_source.build_patched_source(pinned, entry)
    with Reader(pinned.git) as reader:
        blobs = {file.path: file.sha for file in list_tree_files(reader, patched.exported_tree)}
        return upstream_requirements.read_declared(
            entry.name,
            blobs.keys(),
            lambda path: reader.read(blobs[path], "blob"),
            source_projects,
        )


def load_record(file: Path) -> dict[str, Any]:
    """Return the record of what the sources declare, by the source's name.

    The result is empty if the file is missing or cannot be read: the builder makes it anew.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return dict(document["sources"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def render_record(
    manifest: Manifest, record: Mapping[str, Any], declared: Mapping[str, Declared]
) -> str:
    """Return the text of the record after an update.

    Args:
        manifest: The manifest. A source that it no longer has is left out.
        record: What the sources declared earlier.
        declared: What some of the sources declare now.
    """
    updates = {
        name: {
            "key": compute_key(manifest.source(name)),
            "origin": entry.origin,
            "requirements": list(entry.requirements),
        }
        for name, entry in declared.items()
    }
    sources = {
        name: entry
        for name, entry in sorted({**record, **updates}.items())
        if name in manifest.sources
    }
    return json.dumps({"schema": 1, "sources": sources}, indent=1) + "\n"
