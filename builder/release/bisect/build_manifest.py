"""A build written down as a manifest with all it names, its patches in the versions that apply to
its pins.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import manifest
from builder.core.cache import remove_path
from builder.core.manifest import GitSource, WheelSource
from builder.upstream import git_objects, patch_file, patched_source
from builder.upstream.git_objects import Reader, walk
from builder.upstream.source import acquire
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.core.manifest import Manifest
    from builder.release.bisect.build_contents import Build, Part
    from builder.upstream.patch_file import Patch
    from builder.upstream.source import Access, Pinned


def written(build: Build, into: Path, access: Mapping[str, Access]) -> Manifest:
    """Write a build into the folder `into`, in place of what is there; `access` says for each
    source where it is had from.

    Raises UserError for what cannot be built: a patch does not apply in any of its versions, or a
    pin cannot be had.
    """
    remove_path(into)
    sources: dict[str, Any] = {}
    for part in build.parts:
        folders = {
            "patches": f"patches/{part.name}",
            **({"overlay": f"overlay/{part.name}"} if part.overlay else {}),
        }
        sources[part.name] = {**part.entry, **folders}
        pinned = acquire(_source(part), access[part.name])
        patches = _fitting(part, pinned)
        write_atomic(
            into / folders["patches"] / "series", "".join(f"{name}\n" for name, _ in part.patches)
        )
        for patch in patches:
            write_atomic(into / folders["patches"] / f"{patch.name}.patch", patch.raw)
        _lay(part, pinned, into / "overlay" / part.name)
    line = build.line or {
        "name": "none",
        "python": "3.11",
        "pythons": ["3.11"],
        "architectures": ["amd64", "arm64"],
    }
    name = line["name"]
    write_atomic(into / f"locks/{build.distribution}-{build.accelerator}.txt", build.lock)
    write_atomic(into / "locks/build.txt", build.tools)
    document = {
        "version": 1,
        "sources": sources,
        **build.rules,
        "lines": {
            name: {
                "python": line["python"],
                "pythons": line["pythons"],
                "common": "locks/common.in",
            }
        },
        "distributions": {
            build.distribution: {
                "line": name,
                "sources": list(sources),
                "accelerators": [build.accelerator],
                "architectures": line["architectures"],
            },
        },
    }
    write_atomic(into / "manifest.yaml", json.dumps(document, indent=1) + "\n")
    return manifest.load(into / "manifest.yaml")


def _source(part: Part) -> GitSource | WheelSource:
    entry, absent = part.entry, tuple(part.entry.get("absent", ()))
    if entry.get("git"):
        return GitSource(
            part.name, entry["git"], entry["track"], entry["commit"], Path(), None, absent
        )
    return WheelSource(part.name, entry["wheel"], entry["sha256"], Path(), None, absent)


def _fitting(part: Part, pinned: Pinned) -> list[Patch]:
    """Return the patches, each in the first version that applies after those before it."""
    chosen = [
        patch_file.parse(Path(f"{name}.patch"), versions[0]) for name, versions in part.patches
    ]
    if all(result.sound for result in patched_source.survey(pinned, chosen, ()).results):
        return chosen
    chosen = []
    for name, versions in part.patches:
        problem = ""
        for raw in versions:
            patch = patch_file.parse(Path(f"{name}.patch"), raw)
            (*_, result) = patched_source.survey(pinned, [*chosen, patch], ()).results
            if result.sound:
                chosen.append(patch)
                break
            problem = problem or f"{result.outcome}: {result.detail}"
        else:
            raise UserError(
                problem, f"{part.name}: {name}.patch", "no version of it at hand applies there"
            )
    return chosen


def _lay(part: Part, pinned: Pinned, folder: Path) -> None:
    """Lay the overlay, each file in place of what upstream has there now, whatever it was written
    against.
    """
    if not part.overlay:
        return
    with Reader(pinned.git) as reader:
        there = {entry.path: entry.sha for entry in walk(reader, pinned.tree)}
    for file in part.overlay:
        write_atomic(
            folder / file.path, file.data, 0o755 if file.mode == git_objects.EXECUTABLE else 0o644
        )
    write_atomic(
        folder / "REPLACES",
        "".join(f"{file.path} {there.get(file.path, 'new')}\n" for file in part.overlay),
    )
