"""Find the commit of the package rosetta that goes into an environment, for `rosetta info`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.core.baked_package import find_baked_package
from builder.upstream.git import Git

if TYPE_CHECKING:
    from pathlib import Path


def render_revision(package: Path | None = None) -> str | None:
    """Return the text of opt/rosetta/revision.json, or None if the commit is not known.

    The commit is the last one that changed the package. So other commits change no environment. A
    clone without the history before that commit cannot know which one it is.

    Args:
        package: The package; None for the one that the builder bakes.
    """
    folder = package or find_baked_package()
    root = folder.parent
    if not (root / ".git").exists():
        return None
    repository = Git(root / ".git", extra={"GIT_WORK_TREE": str(root)})
    found = repository.run("log", "-1", "--format=%H %P", "--", str(folder), check=False)
    commit, *parents = found.stdout.decode("ascii", "replace").split() or [""]
    if found.returncode or not commit:
        return None
    shallow = repository.run("rev-parse", "--is-shallow-repository", check=False)
    if not parents and shallow.stdout.strip() != b"false":
        return None
    status = repository.run("status", "--porcelain", "--", str(folder), check=False)
    is_clean = status.returncode == 0 and not status.stdout
    return json.dumps({"schema": 1, "commit": commit, "clean": is_clean}, indent=1) + "\n"
