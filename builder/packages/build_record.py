"""The record of a build, lock.json: what an environment or an image consists of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.packages.package_parts import text_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.packages.environment_assembly import Part
    from builder.packages.package_installation import Packages
    from builder.upstream.source_tree import PatchedSource


def make_record(wanted: Packages, sources: Mapping[str, PatchedSource]) -> dict[str, Any]:
    """Return the content of lock.json, the record of what an environment consists of."""
    projects = wanted.project_digests()
    return {
        **({"projects": projects} if projects else {}),
        "schema": 1,
        "distribution": wanted.distribution,
        "line": wanted.line,
        "accelerator": wanted.accelerator,
        "architecture": wanted.architecture,
        "python": wanted.python.version,
        "builder": __version__,
        "sources": {name: state.as_json() for name, state in sources.items()},
        "requirements": {"file": wanted.lock.name, "sha256": wanted.digest},
    }


def lock_text(record: dict[str, Any]) -> str:
    """Return the text of lock.json."""
    return json.dumps(record, indent=1) + "\n"


def record_part(record: dict[str, Any]) -> Part:
    """Return the part lock.json."""
    return text_part("lock.json", "lock", lock_text(record))
