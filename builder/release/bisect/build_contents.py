"""Everything that goes into one build of a distribution, as values.

Two builds can be compared, and a third one can be mixed from both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core.cache import stage_key
from builder.packages import lock_file
from builder.upstream import overlay, patch_series
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.core.manifest import Distribution, Manifest
    from builder.packages.lock_file import Pin
    from builder.upstream.overlay import OverlayFile


@dataclass(frozen=True)
class EndpointManifest:
    """The manifest of an end of the bisect, with all files that it names on disk.

    Attributes:
        label: The end in words, for messages.
        manifest: The manifest.
        revision: The commit of this repository that the manifest is from, or "".
        distribution: The only distribution that the end is a build of, or "".
        accelerator: The only accelerator that the end is a build for, or "".
    """

    label: str
    manifest: Manifest
    revision: str = ""
    distribution: str = ""
    accelerator: str = ""


@dataclass(frozen=True)
class SourceContents:
    """One source of a build.

    Attributes:
        name: The name of the source.
        entry: The source's entry in the manifest, without its folders.
        patches: The name and the versions of each patch, in the order of the series. The version
            that most likely applies comes first.
        overlay: The files that replace upstream's.
    """

    name: str
    entry: Mapping[str, Any]
    patches: tuple[tuple[str, tuple[bytes, ...]], ...]
    overlay: tuple[OverlayFile, ...]


@dataclass(frozen=True)
class Build:
    """All inputs of one build.

    Attributes:
        distribution: The name of the distribution.
        accelerator: The accelerator.
        line: The name, Python versions and architectures of the manifest's line.
        rules: The manifest's `sdists`, `strip` and `overrides`.
        sources: The sources, in the order of the manifest.
        lock: The text of the lock.
        pins: The packages that `lock` pins.
        build_tools_lock: The text of the lock of the tools that build sdists.
        rosetta_commit: The commit whose `rosetta/` is used, or "" for the one of this checkout.
    """

    distribution: str
    accelerator: str
    line: Mapping[str, Any]
    rules: Mapping[str, list[dict[str, Any]]]
    sources: tuple[SourceContents, ...]
    lock: str
    pins: tuple[Pin, ...]
    build_tools_lock: str
    rosetta_commit: str = ""

    @property
    def key(self) -> str:
        """The hash of all inputs: equal for builds that cannot differ."""
        return stage_key(
            "bisect",
            {
                "distribution": self.distribution,
                "accelerator": self.accelerator,
                "line": self.line,
                "rules": self.rules,
                "parts": [_hashable_source(source) for source in self.sources],
                "lock": self.lock,
                "tools": self.build_tools_lock,
                "ours": self.rosetta_commit,
            },
        )

    def sources_only(self) -> Build:
        """Return a build of the patched sources alone, without packages and `rosetta/`."""
        return Build(self.distribution, self.accelerator, {}, {}, self.sources, "", (), "")


def _hashable_source(source: SourceContents) -> dict[str, Any]:
    """Return a source as JSON, with hashes in place of contents."""
    patches = [
        [name, [hashlib.sha256(version).hexdigest() for version in versions]]
        for name, versions in source.patches
    ]
    return {
        "name": source.name,
        "entry": dict(source.entry),
        "patches": patches,
        "overlay": [[file.path, file.mode, file.blob] for file in source.overlay],
    }


def read_build(endpoint: EndpointManifest, distribution: str, accelerator: str) -> Build:
    """Read the inputs of the build that a manifest describes.

    Raises:
        UserError: the manifest does not have the distribution for the accelerator, or a file of
            the distribution is missing or invalid.
    """
    manifest = endpoint.manifest
    entry = manifest.distribution(distribution)
    if accelerator not in entry.accelerators:
        raise UserError(
            f"{distribution} is not built for {accelerator}",
            endpoint.label,
            f"one of: {', '.join(entry.accelerators)}",
        )
    document = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    locks = manifest.folder("locks")
    lock, build_tools_lock = locks / f"{distribution}-{accelerator}.txt", locks / "build.txt"
    return Build(
        distribution=distribution,
        accelerator=accelerator,
        line=_read_line(manifest, entry),
        rules=rules_of_line(document, entry.line),
        sources=tuple(
            _read_source(manifest, name, document["sources"][name]) for name in entry.sources
        ),
        pins=tuple(lock_file.read_lock(lock)),
        lock=lock.read_text(encoding="utf-8"),
        build_tools_lock=(
            build_tools_lock.read_text(encoding="utf-8") if build_tools_lock.is_file() else ""
        ),
        rosetta_commit=endpoint.revision,
    )


def rules_of_line(document: Mapping[str, Any], line: str) -> dict[str, list[dict[str, Any]]]:
    """Return a manifest's `sdists`, and the entries of `strip` and `overrides` for one line.

    Args:
        document: The manifest as JSON.
        line: The name of the line. Each entry is returned as one for this line alone.
    """
    rules: dict[str, list[dict[str, Any]]] = {"sdists": document["sdists"]}
    for key in ("strip", "overrides"):
        rules[key] = [
            {**entry, "lines": [line]}
            for entry in document[key]
            if line in (entry.get("lines") or [line])
        ]
    return rules


def _read_line(manifest: Manifest, entry: Distribution) -> dict[str, Any]:
    line = manifest.lines[entry.line]
    return {
        "name": entry.line,
        "python": line.python,
        "pythons": list(line.pythons),
        "architectures": list(entry.architectures),
    }


def _read_source(manifest: Manifest, name: str, entry: dict[str, Any]) -> SourceContents:
    source = manifest.source(name)
    return SourceContents(
        name,
        {key: value for key, value in entry.items() if key not in ("patches", "overlay")},
        tuple((patch.name, (patch.raw,)) for patch in patch_series.load_patches(source.patches)),
        overlay.load_overlay(source.overlay),
    )
