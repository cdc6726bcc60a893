"""Regenerate patches: write the diff of each in the one form that git writes on every machine."""

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

_DIFF_OPTIONS = (
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
    """Return the diff between two trees or commits, in the form that a patch file has."""
    return git.run("diff-tree", *_DIFF_OPTIONS, "--end-of-options", before, after).stdout


def regenerate_patches(pinned: Pinned, survey: Survey) -> dict[str, Patch]:
    """Return the patches that were applied, by name, with the bytes that they should have."""
    patches: dict[str, Patch] = {}
    for step in survey.steps:
        diff = diff_trees(pinned.git, step.before, step.after)
        patches[step.patch.name] = patch_file.parse_patch(
            step.patch.file, step.patch.with_diff(diff)
        )
    return patches


def find_stale_patches(pinned: Pinned, patches: Sequence[Patch]) -> tuple[list[Patch], Survey]:
    """Find the patches that a refresh would change.

    The patches after the first one that fails are left out: a refresh would write them without the
    failing patch.

    Returns:
        The stale patches as they should be, and what became of every patch.
    """
    survey = patched_source.survey_patches(pinned, patches, (), merge=True)
    regenerated = regenerate_patches(pinned, survey)
    stale: list[Patch] = []
    for patch, result in zip(patches, survey.results, strict=True):
        if not result.sound:
            break
        new = regenerated.get(patch.name)
        if new and new.raw != patch.raw:
            stale.append(new)
    _check_same_trees(pinned, survey, patches, regenerated)
    return stale, survey


def _check_same_trees(
    pinned: Pinned, survey: Survey, patches: Sequence[Patch], regenerated: dict[str, Patch]
) -> None:
    """Check that the regenerated patches give the same trees without merging.

    Args:
        pinned: The source at its pin.
        survey: What became of the patches before they were regenerated.
        patches: The patches before they were regenerated.
        regenerated: The regenerated patches, by name.
    """
    applied = [
        regenerated.get(patch.name, patch)
        for patch, result in zip(patches, survey.results, strict=True)
        if result.outcome == "applied"
    ]
    second_survey = patched_source.survey_patches(pinned, applied, ())
    if [step.after for step in second_survey.steps] != [step.after for step in survey.steps]:
        raise UserError(
            "a refreshed patch gives another tree than before",
            pinned.name,
            "please report this with the patches",
        )
