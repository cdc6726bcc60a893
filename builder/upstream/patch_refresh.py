"""Regenerate the diffs of patches, in one form that does not depend on anyone's git settings."""

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

# Each option replaces a default that git's configuration can change, or fixes the form of a patch.
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
    """Return the patches that a survey applied, by name, each with a newly written diff."""
    patches: dict[str, Patch] = {}
    for step in survey.steps:
        diff = diff_trees(pinned.git, step.before, step.after)
        patches[step.patch.name] = patch_file.parse_patch(
            step.patch.file, step.patch.with_diff(diff)
        )
    return patches


def find_stale_patches(pinned: Pinned, patches: Sequence[Patch]) -> tuple[list[Patch], Survey]:
    """Regenerate a series, and return the patches whose text changes.

    Patches after the first failing one are left out: their new diffs would be based on a tree
    without the failing patch.

    Returns:
        The new versions of the patches that a refresh would change, and the survey of the series.

    Raises:
        UserError: The regenerated patches give other trees than the old ones.
    """
    survey = patched_source.survey_patches(pinned, patches, (), merge=True)
    regenerated = regenerate_patches(pinned, survey)
    changed_patches: list[Patch] = []
    for patch, result in zip(patches, survey.results, strict=True):
        if not result.sound:
            break
        new_patch = regenerated.get(patch.name)
        if new_patch and new_patch.raw != patch.raw:
            changed_patches.append(new_patch)
    _check_same_trees(pinned, survey, patches, regenerated)
    return changed_patches, survey


def _check_same_trees(
    pinned: Pinned, survey: Survey, patches: Sequence[Patch], regenerated: dict[str, Patch]
) -> None:
    """Check that the regenerated patches apply without merges, and give the same trees.

    Args:
        pinned: The source at its pin.
        survey: The survey of the old patches, with merges.
        patches: The old patches.
        regenerated: The regenerated patches, by name.

    Raises:
        UserError: The trees differ.
    """
    new_series = [
        regenerated.get(patch.name, patch)
        for patch, result in zip(patches, survey.results, strict=True)
        if result.outcome == "applied"
    ]
    second_survey = patched_source.survey_patches(pinned, new_series, ())
    if [step.after for step in second_survey.steps] != [step.after for step in survey.steps]:
        raise UserError(
            "the refreshed patches give a different source tree than the old ones",
            pinned.name,
            "report this as a bug of the builder, with the patches",
        )
