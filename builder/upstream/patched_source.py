"""The patched source: the pinned commit, one commit a patch, one for the overlay; the same SHAs on
every machine.

What a build takes is decided by the pinned tree and our files alone. History, which only some
machines have, and three-way merges, which need it, serve to explain and to refresh.
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

_FEW_LINES = 40  # a file's lines that a patch may take away before the half-of-the-file rule counts


@dataclass(frozen=True)
class Patched:
    """A source as it is shipped.

    `exported_tree` is `tree` without the paths that are never exported; `overlay` is (path, blob).
    """

    pinned: Pinned
    commit: str
    tree: str
    exported_tree: str
    patches: tuple[PatchResult, ...]
    overlay: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Step:
    """A patch that was put in, and the trees around it."""

    patch: Patch
    before: str
    after: str


@dataclass(frozen=True)
class Survey:
    """What became of every patch and every overlaid file, and of the source where all that failed
    is left out.
    """

    results: tuple[PatchResult, ...]
    overlaid: tuple[OverlayResult, ...]
    steps: tuple[Step, ...]
    commit: str
    tree: str
    exported_tree: str


def collect_inputs(source: GitSource | WheelSource) -> dict[str, Any]:
    """All that decides a patched source, beside the pinned commit's content: ready for a stage
    key.
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
    """Build the patched source.

    A patch that upstream has word for word is left out with a warning: the tree is the same as with
    it.

    Raises:
        UserError: a patch or an overlaid file does not fit (naming it, its outcome and the
          upstream commit that caused it),
            or a file breaks a rule.
    """
    found = survey_patches(
        pinned, patch_series.load_patches(source.patches), overlay.load_overlay(source.overlay)
    )
    failed = [result for result in found.results if not result.sound]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    for result in failed:
        what = f"{result.outcome}: {result.detail}{more}"
        raise UserError(
            what,
            str(source.patches / f"{result.name}.patch"),
            f"see docs/reference/patches.md and `build.py patches check {source.name}`",
            kind=CONFLICT,
            value=result.outcome,
        )
    for laid in found.overlaid:
        if laid.outcome not in {"applied", "upstream"}:
            where = str((source.overlay or Path()) / laid.path)
            raise UserError(
                f"{laid.outcome}: {laid.detail}",
                where,
                f"see docs/reference/patches.md and `build.py patches check {source.name}`",
                kind=CONFLICT,
                value=laid.outcome,
            )
    for result in found.results:
        if result.outcome == "upstream":
            log.warn(f"{source.name}: {result.name}: {result.detail}")
    # For people who want to look at it; nothing of ours reads it, so a failure to write it does no
    # harm.
    pinned.git.run("update-ref", f"refs/rosetta/{source.name}", found.commit, check=False)
    laid_over = tuple((laid.path, laid.blob) for laid in found.overlaid)
    return Patched(pinned, found.commit, found.tree, found.exported_tree, found.results, laid_over)


def survey_patches(
    pinned: Pinned, patches: Sequence[Patch], files: Sequence[OverlayFile], *, merge: bool = False
) -> Survey:
    """Try every patch and every overlaid file on the pinned tree.

    With `merge`, a three-way merge counts as applied.
    """
    # A build goes without the mirrors: else git would leave out of our repository what a mirror
    # happens to have.
    git = pinned.git if merge else replace(pinned.git, alternates=())
    with tempfile.TemporaryDirectory(prefix="rosetta-") as folder, Reader(git) as reader:
        index = Index(git, Path(folder, "index"))
        index.read_tree(pinned.tree)
        upstream = index.entries()
        results: list[PatchResult] = []
        steps: list[Step] = []
        commit, tree, date, entries = pinned.commit, pinned.tree, pinned.date, dict(upstream)
        for patch in patches:
            _check_targets(patch, entries, pinned, reader)
            state = patch_diagnosis.State(
                pinned, index, reader, upstream, entries, tuple(step.patch for step in steps)
            )
            result = patch_diagnosis.try_patch(patch, state, merge=merge)
            if result.outcome == "applied":
                date += 1
                entries, after = index.entries(), index.write_tree()
                commit = git_index.create_commit(git, after, commit, patch.message, date)
                steps.append(Step(patch, tree, after))
                result, tree = replace(result, commit=commit), after
            results.append(result)
        overlaid = tuple(overlay.check_file(pinned, file, upstream) for file in files)
        patched = {one.path: step.patch.name for step in steps for one in step.patch.files}
        for file in files:
            if file.path in patched or file.path in pinned.absent:
                why = (
                    f"is changed by the patch {patched[file.path]} as well"
                    if file.path in patched
                    else "is listed as absent"
                )
                raise UserError(
                    f"the overlaid file {file.path} {why}",
                    pinned.name,
                    "choose one of the two",
                    kind=CONFLICT,
                    value=file.path,
                )
        good = [
            file
            for file, result in zip(files, overlaid, strict=True)
            if result.outcome == "applied"
        ]
        if good:
            index.put(
                (file.path, file.mode, write_object(git.git_dir, "blob", file.data))
                for file in good
            )
            tree = index.write_tree()
            commit = git_index.create_commit(git, tree, commit, _overlay_message(good), date + 1)
        exported = tree
        if away := [path for path in pinned.absent if path in entries]:
            index.put((path, "0", git_index.NOTHING) for path in away)
            exported = index.write_tree()
    return Survey(tuple(results), overlaid, tuple(steps), commit, tree, exported)


def _overlay_message(files: Sequence[OverlayFile]) -> str:
    return "rosetta: files of ours in place of upstream's\n\n" + "".join(
        f"{file.path}\n" for file in files
    )


def _check_targets(
    patch: Patch, entries: dict[str, tuple[str, str]], pinned: Pinned, reader: Reader
) -> None:
    """Refuse a patch that writes through a link, touches what is never exported, or takes most of a
    file away.
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
                do = "whole files of ours belong into the overlay"
                raise UserError(
                    f"takes {file.removed} of {total} lines out of {file.path}",
                    where,
                    do,
                    kind=TOO_BIG,
                    value=file.removed,
                )
