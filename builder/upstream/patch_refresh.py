"""The bytes that each patch should have: the diff between the trees around it, in the one form that
git writes everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.upstream import patch_file, patched_source
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.upstream.git import Git
    from builder.upstream.patch_file import Patch
    from builder.upstream.patched_source import Survey
    from builder.upstream.source import Pinned

_FORM = (
    "-p",
    "-U1",
    "--full-index",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


def diff_trees(git: Git, before: str, after: str) -> bytes:
    """Return what lies between two trees or commits, as a patch holds it."""
    return git.run("diff-tree", *_FORM, "--end-of-options", before, after).stdout


def regenerate_patches(pinned: Pinned, found: Survey) -> dict[str, Patch]:
    """Every patch of the survey that was put in, by name, with the bytes it should have."""
    return {
        step.patch.name: patch_file.parse_patch(
            step.patch.file, step.patch.with_diff(diff_trees(pinned.git, step.before, step.after))
        )
        for step in found.steps
    }


def find_stale_patches(pinned: Pinned, patches: Sequence[Patch]) -> tuple[list[Patch], Survey]:
    """Return the patches that a refresh would change, as they should be, and what became of all.

    Past the first patch that fails nothing is judged: what comes later would be written without it.
    """
    found = patched_source.survey_patches(pinned, patches, (), merge=True)
    new = regenerate_patches(pinned, found)
    better: list[Patch] = []
    for patch, result in zip(patches, found.results, strict=True):
        if not result.sound:
            break
        if patch.name in new and new[patch.name].raw != patch.raw:
            better.append(new[patch.name])
    _check_same_trees(pinned, found, patches, new)
    return better, found


def _check_same_trees(
    pinned: Pinned, found: Survey, patches: Sequence[Patch], new: dict[str, Patch]
) -> None:
    """Fresh patches must give, without merging, the trees that they were taken from."""
    sound = [
        new.get(patch.name, patch)
        for patch, result in zip(patches, found.results, strict=True)
        if result.outcome == "applied"
    ]
    again = patched_source.survey_patches(pinned, sound, ())
    if [step.after for step in again.steps] != [step.after for step in found.steps]:
        raise UserError(
            "a refreshed patch gives another tree than before",
            pinned.name,
            "please report this with the patches",
        )
