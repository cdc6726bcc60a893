"""What a verb gets and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache


@dataclass(frozen=True)
class Context:
    """What every verb works with."""

    root: Path
    manifest_path: Path
    cache: Cache
    offline: bool = False
    mirrors: tuple[Path, ...] = ()
    protocols: tuple[str, ...] = ("https", "ssh")
    json: bool = False


@dataclass(frozen=True)
class Result:
    """What a verb found: `data` for --json, `text` for people on stdout; not `ok` ends with status
    1.
    """

    data: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    ok: bool = True
