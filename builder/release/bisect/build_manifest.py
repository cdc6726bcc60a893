"""Write the inputs of a build as a manifest with all files that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import manifest
from builder.core.cache import remove_path
from builder.core.manifest import GitSource, WheelSource
from builder.upstream import git_objects, patch_file, patched_source
from builder.upstream.git_objects import Reader, list_tree_files
from builder.upstream.source import acquire_source
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.core.manifest import Manifest
    from builder.release.bisect.build_contents import Build, SourceContents
    from builder.upstream.patch_file import Patch
    from builder.upstream.source import Access, Pinned

# A build of the patched sources alone has no line, but a manifest must have one.
_LINE_OF_SOURCES = {
    "name": "none",
    "python": "3.11",
    "pythons": ["3.11"],
    "architectures": ["amd64", "arm64"],
}


def write_manifest(build: Build, folder: Path, access: Mapping[str, Access]) -> Manifest:
    """Write a build into a folder, which is replaced, and return the manifest.

    Each patch is written in the first version that applies.

    Args:
        build: The inputs of the build.
        folder: Where to write the manifest, the patches, the overlays and the locks.
        access: Where each source can be fetched from, by the source's name.

    Raises:
        UserError: no version of a patch applies, or a pin cannot be fetched.
    """
    remove_path(folder)
    entries: dict[str, Any] = {}
    for source in build.sources:
        entries[source.name] = _write_source(source, folder, access[source.name])
    write_atomic(folder / f"locks/{build.distribution}-{build.accelerator}.txt", build.lock)
    write_atomic(folder / "locks/build.txt", build.build_tools_lock)
    document = json.dumps(_manifest_document(build, entries), indent=1)
    write_atomic(folder / "manifest.yaml", f"{document}\n")
    return manifest.load(folder / "manifest.yaml")


def _manifest_document(build: Build, source_entries: Mapping[str, Any]) -> dict[str, Any]:
    line = build.line or _LINE_OF_SOURCES
    return {
        "version": 1,
        "sources": dict(source_entries),
        **build.rules,
        "lines": {
            line["name"]: {
                "python": line["python"],
                "pythons": line["pythons"],
                "common": "locks/common.in",
            }
        },
        "distributions": {
            build.distribution: {
                "line": line["name"],
                "sources": list(source_entries),
                "accelerators": [build.accelerator],
                "architectures": line["architectures"],
            },
        },
    }


def _write_source(source: SourceContents, folder: Path, access: Access) -> dict[str, Any]:
    """Write the patches and the overlay of a source, and return its entry in the manifest."""
    pinned = acquire_source(_pinned_source(source), access)
    patches = _choose_versions(source, pinned)
    patch_folder = f"patches/{source.name}"
    series = "".join(f"{name}\n" for name, _ in source.patches)
    write_atomic(folder / patch_folder / "series", series)
    for patch in patches:
        write_atomic(folder / patch_folder / f"{patch.name}.patch", patch.raw)
    if not source.overlay:
        return {**source.entry, "patches": patch_folder}
    overlay_folder = f"overlay/{source.name}"
    _write_overlay(source, pinned, folder / overlay_folder)
    return {**source.entry, "patches": patch_folder, "overlay": overlay_folder}


def _pinned_source(source: SourceContents) -> GitSource | WheelSource:
    entry, absent = source.entry, tuple(source.entry.get("absent", ()))
    if entry.get("git"):
        return GitSource(
            source.name, entry["git"], entry["track"], entry["commit"], Path(), None, absent
        )
    return WheelSource(source.name, entry["wheel"], entry["sha256"], Path(), None, absent)


def _choose_versions(source: SourceContents, pinned: Pinned) -> list[Patch]:
    """Return the patches, each in the first version that applies after the patches before it.

    Raises:
        UserError: no version of a patch applies.
    """
    # Usually the first versions apply, and all of them can be tried at once.
    first_versions = [
        patch_file.parse_patch(Path(f"{name}.patch"), versions[0])
        for name, versions in source.patches
    ]
    survey = patched_source.survey_patches(pinned, first_versions, ())
    if all(result.sound for result in survey.results):
        return first_versions
    chosen: list[Patch] = []
    for name, versions in source.patches:
        chosen.append(_first_that_applies(source.name, name, versions, pinned, chosen))
    return chosen


def _first_that_applies(
    source: str, name: str, versions: tuple[bytes, ...], pinned: Pinned, before: list[Patch]
) -> Patch:
    """Return the first version of a patch that applies after the patches `before`."""
    problem = ""
    for version in versions:
        patch = patch_file.parse_patch(Path(f"{name}.patch"), version)
        result = patched_source.survey_patches(pinned, [*before, patch], ()).results[-1]
        if result.sound:
            return patch
        problem = problem or f"{result.outcome}: {result.detail}"
    raise UserError(
        problem, f"{source}: {name}.patch", "neither end has a version of it that applies here"
    )


def _write_overlay(source: SourceContents, pinned: Pinned, folder: Path) -> None:
    """Write an overlay whose files replace what upstream has at this pin.

    The overlay may have been made for another pin: `REPLACES` is written anew.
    """
    with Reader(pinned.git) as reader:
        upstream_blobs = {entry.path: entry.sha for entry in list_tree_files(reader, pinned.tree)}
    rows = []
    for file in source.overlay:
        mode = 0o755 if file.mode == git_objects.EXECUTABLE else 0o644
        write_atomic(folder / file.path, file.data, mode)
        rows.append(f"{file.path} {upstream_blobs.get(file.path, 'new')}\n")
    write_atomic(folder / "REPLACES", "".join(rows))
