"""The input and the result of a command of the builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache


@dataclass(frozen=True)
class Context:
    """The settings that every command works with.

    Attributes:
        root: The folder of this repository.
        manifest_path: The manifest.
        cache: The builder's cache.
        offline: Whether the network may not be used.
        mirrors: Folders with clones of the upstream repositories.
        protocols: The protocols that git may use.
        json: Whether the result is printed as a JSON document.
    """

    root: Path
    manifest_path: Path
    cache: Cache
    offline: bool = False
    mirrors: tuple[Path, ...] = ()
    protocols: tuple[str, ...] = ("https", "ssh")
    json: bool = False


@dataclass(frozen=True)
class Result:
    """The result of a command.

    Attributes:
        data: The result for --json.
        text: The result for people, printed on standard output.
        ok: Whether all checks passed. If not, the exit status is 1.
    """

    data: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    ok: bool = True
