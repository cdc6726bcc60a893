"""Where the builder keeps its state."""

from __future__ import annotations

import os
from pathlib import Path

from rosetta.core.errors import DENIED, EXISTS, UserError

# https://bford.info/cachedir/: what backups go by, and how we know our own.
TAG = "CACHEDIR.TAG"
_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# This is the build cache of rosetta: "
    "everything in it can be made again.\n"
)


def default_root() -> Path:
    """`$ROSETTA_CACHE`, else `$XDG_CACHE_HOME/rosetta`, else `~/.cache/rosetta`."""
    if own := os.environ.get("ROSETTA_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "rosetta"


def prepare(root: Path) -> Path:
    """Make the cache's folder, or make sure that it is one: never work, and above all never prune,
    among a person's own files.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        foreign = any(
            entry.name != TAG for entry in root.iterdir()
        )  # before the tag: another build may be making both
        if not (root / TAG).is_file():
            if foreign:
                raise UserError(
                    "holds files that are not the builder's cache",
                    str(root),
                    "set ROSETTA_CACHE to a new or empty folder; nothing was touched",
                    kind=EXISTS,
                )
            (root / TAG).write_text(_TEXT, encoding="ascii")
    except OSError as error:
        raise UserError(
            f"the cache cannot be written ({error.strerror})",
            str(root),
            "set ROSETTA_CACHE to a folder of yours",
            kind=DENIED,
        ) from error
    return root
