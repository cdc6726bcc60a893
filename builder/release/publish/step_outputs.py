"""The outputs of a step in GitHub's workflows: what later steps of a job are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def append_publication(file: Path, publication: Mapping[str, Any]) -> None:
    """Append the repository and the digest of what was published to a file.

    Args:
        file: The file, which GitHub names in GITHUB_OUTPUT.
        publication: The result of the command `publish`.
    """
    lines = [f"{name}={publication[name]}\n" for name in ("repository", "digest")]
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(lines)
