"""All that is in one build of a distribution, as values: what two builds can be compared by and
mixed from.
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

    from builder.core.manifest import Manifest
    from builder.packages.lock_file import Pin
    from builder.upstream.overlay import OverlayFile


@dataclass(frozen=True)
class Side:
    """A manifest with all it names on disk, and where it came from.

    `revision` is a commit of this repository, "" for what is none.
    """

    label: str
    manifest: Manifest
    revision: str = ""


@dataclass(frozen=True)
class Part:
    """One source.

    `entry` is what the manifest says of it, without its folders; of a patch several versions may
    do, the likeliest first.
    """

    name: str
    entry: Mapping[str, Any]
    patches: tuple[tuple[str, tuple[bytes, ...]], ...]
    overlay: tuple[OverlayFile, ...]


@dataclass(frozen=True)
class Build:
    """One build. `line` and `rules` are the manifest's line, and its sdists, strip and overrides;
    `pins` are those of the text `lock`, and `tools` is the text of the lock by which sdists are
    built; `ours` is the commit of rosetta/, "" for what lies here.
    """

    distribution: str
    accelerator: str
    line: Mapping[str, Any]
    rules: Mapping[str, list[dict[str, Any]]]
    parts: tuple[Part, ...]
    lock: str
    pins: tuple[Pin, ...]
    tools: str
    ours: str = ""

    @property
    def key(self) -> str:
        """Equal for builds that cannot differ."""
        parts = [
            {
                "name": part.name,
                "entry": dict(part.entry),
                "patches": [
                    [name, [hashlib.sha256(raw).hexdigest() for raw in versions]]
                    for name, versions in part.patches
                ],
                "overlay": [[file.path, file.mode, file.blob] for file in part.overlay],
            }
            for part in self.parts
        ]
        plain = {name: value for name, value in vars(self).items() if name not in ("parts", "pins")}
        return stage_key("bisect", {**plain, "parts": parts})

    def sources_only(self) -> Build:
        """Return the same as far as patched trees go: no packages, nothing of rosetta's."""
        return Build(self.distribution, self.accelerator, {}, {}, self.parts, "", (), "")


def of(side: Side, distribution: str, accelerator: str) -> Build:
    """Return the build that a manifest asks for.

    Raises UserError where it has no such distribution, or a file of it is missing or breaks a
    rule.
    """
    shipped = side.manifest
    entry = shipped.distribution(distribution)
    if accelerator not in entry.accelerators:
        raise UserError(
            f"{distribution} is not built for {accelerator}",
            side.label,
            f"one of: {', '.join(entry.accelerators)}",
        )
    whole = shipped.model_dump(mode="json", by_alias=True, exclude_none=True)
    rules = {key: whole[key] for key in ("sdists", "strip", "overrides")}
    rules["overrides"] = [
        {**each, "lines": [entry.line]}
        for each in rules["overrides"]
        if entry.line in each.get("lines", [entry.line])
    ]
    line = {
        "name": entry.line,
        "python": shipped.lines[entry.line].python,
        "pythons": list(shipped.lines[entry.line].pythons),
        "architectures": list(entry.architectures),
    }
    parts = tuple(_part(shipped, name, whole["sources"][name]) for name in entry.sources)
    locks = shipped.folder("locks")
    lock, tools = locks / f"{distribution}-{accelerator}.txt", locks / "build.txt"
    pins = tuple(lock_file.read(lock))
    return Build(
        distribution,
        accelerator,
        line,
        rules,
        parts,
        lock.read_text(encoding="utf-8"),
        pins,
        tools.read_text(encoding="utf-8") if tools.is_file() else "",
        side.revision,
    )


def _part(shipped: Manifest, name: str, entry: dict[str, Any]) -> Part:
    source = shipped.source(name)
    bare = {key: value for key, value in entry.items() if key not in ("patches", "overlay")}
    return Part(
        name,
        bare,
        tuple((patch.name, (patch.raw,)) for patch in patch_series.load(source.patches)),
        overlay.load(source.overlay),
    )
