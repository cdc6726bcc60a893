"""The folder in which the builder keeps its cache."""

from __future__ import annotations

import os
from pathlib import Path

from rosetta.core.errors import DENIED, EXISTS, UserError

# Backup programs skip a folder with this file (https://bford.info/cachedir/). The builder knows its
# cache by the file, too.
TAG = "CACHEDIR.TAG"
_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# This is the build cache of rosetta: "
    "everything in it can be made again.\n"
)


def default_root() -> Path:
    """Return `$ROSETTA_CACHE`, else `$XDG_CACHE_HOME/rosetta`, else `~/.cache/rosetta`."""
    if configured := os.environ.get("ROSETTA_CACHE"):
        return Path(configured).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "rosetta"


def prepare_folder(root: Path) -> Path:
    """Make the folder of the cache, or check that an existing folder is a cache.

    The check keeps the builder from working, and above all from pruning, among other files.

    Raises:
        UserError: The folder holds other files, or cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        # The folder is listed before the tag is looked for: another build may be making both.
        has_other_files = any(entry.name != TAG for entry in root.iterdir())
        if not (root / TAG).is_file():
            if has_other_files:
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
