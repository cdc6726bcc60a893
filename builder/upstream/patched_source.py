"""Build the patched source: the pinned commit, one commit per patch, and one for the overlay.

The commits have the same SHAs on every machine, because they depend on the pinned tree and our
files alone. History is on some machines only. It and three-way merges, which need it, are used only
to explain failures and to refresh patches.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.upstream import git_index, overlay, patch_diagnosis, patch_path_rules, patch_series
from builder.upstream.git_index import Index
from builder.upstream.git_objects import LINK, Reader, write_object
from rosetta.core.errors import CONFLICT, INVALID, TOO_BIG, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.manifest import GitSource, WheelSource
    from builder.upstream.overlay import OverlayFile, OverlayResult
    from builder.upstream.patch_diagnosis import PatchResult
    from builder.upstream.patch_file import Patch
    from builder.upstream.source import Pinned

# A patch may remove this many lines of a file even if they are more than half of it.
_FEW_LINES = 40


@dataclass(frozen=True)
class Patched:
    """A source as it is shipped.

    `exported_tree` is `tree` without the paths that are never exported. `overlay` has the path and
    the blob of each overlaid file.
    """

    pinned: Pinned
    commit: str
    tree: str
    exported_tree: str
    patches: tuple[PatchResult, ...]
    overlay: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Step:
    """A patch that was applied, and the trees before and after it."""

    patch: Patch
    before: str
    after: str


@dataclass(frozen=True)
class Survey:
    """What became of every patch and every overlaid file.

    `commit` and the trees are those of the source without the patches and files that failed.
    """

    results: tuple[PatchResult, ...]
    overlaid: tuple[OverlayResult, ...]
    steps: tuple[Step, ...]
    commit: str
    tree: str
    exported_tree: str


def collect_inputs(source: GitSource | WheelSource) -> dict[str, Any]:
    """Return everything that decides a patched source, as data for a stage key.

    The content of the pinned commit is not part of the data: its hash is.
    """
    return {
        "commit": getattr(source, "commit", ""),
        "wheel": getattr(source, "sha256", ""),
        "absent": sorted(source.absent),
        "patches": [
            [patch.name, patch.sha256] for patch in patch_series.load_patches(source.patches)
        ],
        "overlay": [
            [file.path, file.mode, file.blob, file.replaces]
            for file in overlay.load_overlay(source.overlay)
        ],
    }


def build_patched_source(pinned: Pinned, source: GitSource | WheelSource) -> Patched:
    """Apply the patches and the overlay of `source` to the pinned commit.

    A patch that upstream has word for word is left out with a warning, since the tree is the same
    with and without it.

    Raises:
        UserError: a file breaks a rule, or a patch or an overlaid file does not apply. The error
          names the file, the outcome and, if known, the upstream commit that caused it.
    """
    survey = survey_patches(
        pinned, patch_series.load_patches(source.patches), overlay.load_overlay(source.overlay)
    )
    _require_patches(survey, source)
    _require_overlay(survey, source)
    for result in survey.results:
        if result.outcome == "upstream":
            log.warn(f"{source.name}: {result.name}: {result.detail}")
    # The ref keeps the objects from being pruned. Nothing of ours reads it, so a failure to write
    # it does no harm.
    pinned.git.run("update-ref", f"refs/rosetta/{source.name}", survey.commit, check=False)
    overlaid = tuple((result.path, result.blob) for result in survey.overlaid)
    return Patched(
        pinned, survey.commit, survey.tree, survey.exported_tree, survey.results, overlaid
    )


def _require_patches(survey: Survey, source: GitSource | WheelSource) -> None:
    """Raise a UserError for the first patch that stops a build."""
    failed = [result for result in survey.results if not result.sound]
    if not failed:
        return
    first = failed[0]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    raise UserError(
        f"{first.outcome}: {first.detail}{more}",
        str(source.patches / f"{first.name}.patch"),
        f"see docs/reference/patches.md and `build.py patches check {source.name}`",
        kind=CONFLICT,
        value=first.outcome,
    )


def _require_overlay(survey: Survey, source: GitSource | WheelSource) -> None:
    """Raise a UserError for the first overlaid file that stops a build."""
    for result in survey.overlaid:
        if result.outcome not in {"applied", "upstream"}:
            raise UserError(
                f"{result.outcome}: {result.detail}",
                str((source.overlay or Path()) / result.path),
                f"see docs/reference/patches.md and `build.py patches check {source.name}`",
                kind=CONFLICT,
                value=result.outcome,
            )


@dataclass(frozen=True)
class _Tip:
    """The newest commit of a series: its hash, its tree, and its date in seconds since 1970."""

    commit: str
    tree: str
    date: int


def survey_patches(
    pinned: Pinned, patches: Sequence[Patch], files: Sequence[OverlayFile], *, merge: bool = False
) -> Survey:
    """Try every patch and every overlaid file on the pinned tree.

    Args:
        pinned: The source at its pin.
        patches: The patches, in the order in which they are applied.
        files: The overlaid files.
        merge: Whether a three-way merge counts as applied.

    Raises:
        UserError: a patch or an overlaid file may not change its target at all.
    """
    # A build goes without the mirrors. Otherwise git would leave out of our repository whatever a
    # mirror happens to have.
    git = pinned.git if merge else replace(pinned.git, alternates=())
    with tempfile.TemporaryDirectory(prefix="rosetta-") as folder, Reader(git) as reader:
        index = Index(git, Path(folder, "index"))
        index.read_tree(pinned.tree)
        upstream = index.entries()
        results, steps, tip = _apply_patches(pinned, patches, index, reader, merge=merge)
        overlaid = tuple(overlay.check_file(pinned, file, upstream) for file in files)
        _check_overlay_targets(pinned, steps, files)
        accepted = [
            file
            for file, result in zip(files, overlaid, strict=True)
            if result.outcome == "applied"
        ]
        if accepted:
            tip = _commit_overlay(index, tip, accepted)
        exported_tree = _remove_absent(index, pinned, upstream) or tip.tree
    return Survey(results, overlaid, steps, tip.commit, tip.tree, exported_tree)


def _apply_patches(
    pinned: Pinned, patches: Sequence[Patch], index: Index, reader: Reader, *, merge: bool
) -> tuple[tuple[PatchResult, ...], tuple[Step, ...], _Tip]:
    """Apply the patches to the index, each as one commit; skip those that do not apply."""
    results: list[PatchResult] = []
    steps: list[Step] = []
    tip = _Tip(pinned.commit, pinned.tree, pinned.date)
    upstream = index.entries()
    entries = dict(upstream)
    for patch in patches:
        _check_targets(patch, entries, pinned, reader)
        earlier = tuple(step.patch for step in steps)
        state = patch_diagnosis.State(pinned, index, reader, upstream, entries, earlier)
        result = patch_diagnosis.try_patch(patch, state, merge=merge)
        if result.outcome == "applied":
            entries = index.entries()
            before, tip = tip, _commit_index(index, tip, patch.message)
            steps.append(Step(patch, before.tree, tip.tree))
            result = replace(result, commit=tip.commit)
        results.append(result)
    return tuple(results), tuple(steps), tip


def _commit_index(index: Index, tip: _Tip, message: str) -> _Tip:
    """Commit the tree of the index on top of `tip`, one second later."""
    tree, date = index.write_tree(), tip.date + 1
    return _Tip(git_index.create_commit(index.git, tree, tip.commit, message, date), tree, date)


def _check_overlay_targets(
    pinned: Pinned, steps: Sequence[Step], files: Sequence[OverlayFile]
) -> None:
    """Refuse an overlaid file that a patch changes too, or that is never exported."""
    patch_names = {file.path: step.patch.name for step in steps for file in step.patch.files}
    for file in files:
        if file.path in patch_names:
            reason = f"is changed by the patch {patch_names[file.path]} as well"
        elif file.path in pinned.absent:
            reason = "is listed as absent"
        else:
            continue
        raise UserError(
            f"the overlaid file {file.path} {reason}",
            pinned.name,
            "choose one of the two",
            kind=CONFLICT,
            value=file.path,
        )


def _commit_overlay(index: Index, tip: _Tip, files: Sequence[OverlayFile]) -> _Tip:
    """Commit the overlaid files on top of `tip`."""
    git_dir = index.git.git_dir
    index.put((file.path, file.mode, write_object(git_dir, "blob", file.data)) for file in files)
    paths = "".join(f"{file.path}\n" for file in files)
    # The message is part of the commit's hash, which locks record.
    message = f"rosetta: files of ours in place of upstream's\n\n{paths}"
    return _commit_index(index, tip, message)


def _remove_absent(
    index: Index, pinned: Pinned, upstream: dict[str, tuple[str, str]]
) -> str | None:
    """Remove the paths that are never exported, and return the tree; None if there are none."""
    absent = [path for path in pinned.absent if path in upstream]
    if not absent:
        return None
    index.put((path, "0", git_index.NOTHING) for path in absent)
    return index.write_tree()


def _check_targets(
    patch: Patch, entries: dict[str, tuple[str, str]], pinned: Pinned, reader: Reader
) -> None:
    """Check that the patch may change its files.

    Raises:
        UserError: the patch writes through a link, changes a file that is never exported, or
          removes most of a file.
    """
    for file in patch.files:
        where = f"{patch.file}:{file.hunks[0].line}"
        for path in (*patch_path_rules.list_parents(file.path), file.path):
            if path in entries and entries[path][0] == LINK:
                raise UserError(
                    f"writes through the link {path}",
                    where,
                    "patch the file itself",
                    kind=INVALID,
                    value=path,
                )
        if file.path in pinned.absent:
            raise UserError(
                f"changes {file.path}, which is never exported",
                where,
                "drop it from `absent` or from the patch",
                kind=CONFLICT,
                value=file.path,
            )
        if file.removed > _FEW_LINES and file.path in entries:
            total = len(patch_diagnosis.read_lines(reader, entries[file.path][1]))
            if file.removed <= total < file.removed * 2:
                raise UserError(
                    f"takes {file.removed} of {total} lines out of {file.path}",
                    where,
                    "put the whole file into the overlay",
                    kind=TOO_BIG,
                    value=file.removed,
                )
