"""Try one patch on one tree and explain the outcome.

The explanation is one line that tells the maintainer of the patch what to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.upstream import breakage_search, patch_hunks
from rosetta.core.errors import FAILED, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.upstream.breakage_search import Cause
    from builder.upstream.git_index import Index
    from builder.upstream.git_objects import Reader
    from builder.upstream.patch_file import FilePatch, Patch
    from builder.upstream.source import Pinned

Outcome = Literal["applied", "upstream", "conflict", "gone", "renamed", "empty"]
NO_HISTORY = "upstream's history is not available: give --mirror to see which commit did it"


@dataclass(frozen=True)
class PatchResult:
    """What became of one patch.

    `commit` is set if the patch was applied. `sound` is true if a build may go on.
    """

    name: str
    sha256: str
    subject: str
    outcome: Outcome
    commit: str | None
    detail: str
    cause: Cause | None
    sound: bool


@dataclass(frozen=True)
class State:
    """The tree to which a patch is applied.

    `upstream` maps the paths of the pinned tree to mode and blob. `entries` does so for the tree
    with the patches `earlier` applied.
    """

    pinned: Pinned
    index: Index
    reader: Reader
    upstream: Mapping[str, tuple[str, str]]
    entries: Mapping[str, tuple[str, str]]
    earlier: Sequence[Patch]

    def text(self, path: str) -> list[bytes]:
        """Return the lines of a file with the earlier patches applied."""
        return read_lines(self.reader, self.entries[path][1])

    def earlier_on(self, path: str) -> list[tuple[str, FilePatch]]:
        """Return the names of the earlier patches to the file, with their changes of it."""
        return [
            (patch.name, file)
            for patch in self.earlier
            for file in patch.files
            if file.path == path
        ]


def read_lines(reader: Reader, blob: str) -> list[bytes]:
    """Return the lines of a blob."""
    return patch_hunks.split_lines(reader.read(blob, "blob"))


def try_patch(patch: Patch, state: State, *, merge: bool) -> PatchResult:
    """Apply `patch` to the state's index if it fits beyond doubt, and return what became of it.

    Args:
        patch: The patch.
        state: The tree; its index has the patch afterwards if the outcome is "applied".
        merge: Whether the patch may also be applied by a three-way merge.

    Raises:
        UserError: git cannot apply a patch whose hunks all fit.
    """
    if not patch.files:
        return _make_result(patch, "empty", "the patch changes nothing: drop it")
    for file in patch.files:
        if file.path not in state.entries:
            return _make_result(patch, *_explain_missing_file(file, state))
    doubt = _find_doubt(patch, state)
    if not doubt:
        git_error = state.index.apply(patch.diff)
        if git_error is None:
            return _make_result(patch, "applied", sound=True)
        _check_hunk_fails(patch, state, git_error)
        if _is_contained(patch, state.entries, state):
            return _explain_contained(patch, state)
    before = state.index.write_tree()
    merged = _merge_three_ways(patch, state)
    if merge and merged and merged != before:
        return _make_result(patch, "applied", "by a three-way merge", sound=True)
    state.index.read_tree(before)
    explanation = _explain_conflict(
        patch, state, doubt=doubt, mergeable=merged not in {None, before}, same=merged == before
    )
    return _make_result(patch, *explanation)


def _make_result(
    patch: Patch,
    outcome: Outcome,
    detail: str = "",
    cause: Cause | None = None,
    *,
    sound: bool = False,
) -> PatchResult:
    return PatchResult(patch.name, patch.sha256, patch.subject, outcome, None, detail, cause, sound)


def _check_hunk_fails(patch: Patch, state: State, git_error: str) -> None:
    """Raise a UserError if every hunk fits although git did not apply the patch.

    A full disk looks like that, and the patch must not be blamed for it.
    """
    if not any(_failing_hunks(file, state) for file in patch.files):
        raise UserError(
            f"git cannot apply it, though every hunk fits: {git_error}",
            str(patch.file),
            "free some space, or mend what git names, then run again",
            kind=FAILED,
        )


def _explain_contained(patch: Patch, state: State) -> PatchResult:
    """Return the result of a patch whose change is in the tree already."""
    if not _is_contained(patch, state.upstream, state):
        return _make_result(
            patch, "empty", "an earlier patch of ours does the same: drop one of the two"
        )
    breakage = _find_breaking_commit(patch.files[0], state)
    return _make_result(
        patch,
        "upstream",
        f"upstream has it{_describe_since(breakage)}: drop the patch",
        breakage[0] if breakage else None,
        sound=True,
    )


def _find_doubt(patch: Patch, state: State) -> str | None:
    """Return why the place of the patch is a guess; None if there is no doubt.

    There is no doubt about a file with the very blob for which the patch was made.
    """
    contained = []
    for file in patch.files:
        if state.entries[file.path][1] == file.old:
            contained.append(False)
            continue
        text = state.text(file.path)
        _, fits = patch_hunks.fit_hunks(text, file.hunks)
        for hunk, fit in zip(file.hunks, fits, strict=True):
            if fit.is_ambiguous:
                return (
                    f"the hunk at line {hunk.line} fits {fit.places} places of {file.path}, none "
                    "at its own line"
                )
        all_fit = all(fit.position is not None for fit in fits)
        contained.append(all_fit and not patch_hunks.accepts_hunks(text, file.hunks))
    if all(contained):
        return f"it fits {patch.files[0].path}, but the file has its change already as well"
    return None


def _is_contained(patch: Patch, entries: Mapping[str, tuple[str, str]], state: State) -> bool:
    """Return whether these entries have the change already, proven by lines that it adds."""
    if not any(_adds_text(file) for file in patch.files):
        return False
    return all(
        file.path in entries
        and patch_hunks.contains_hunks(read_lines(state.reader, entries[file.path][1]), file.hunks)
        for file in patch.files
    )


def _adds_text(file: FilePatch) -> bool:
    """Return whether the change adds a line that is not blank."""
    added = (line for hunk in file.hunks for operation, line in hunk.body if operation == "+")
    return any(line.strip() for line in added)


def _merge_three_ways(patch: Patch, state: State) -> str | None:
    """Merge the patch into the state's index with a three-way merge.

    Returns:
        The merged tree; None if the merge conflicts or the old blobs are not available.
    """
    # Older versions are in mirrors and full clones only. Without them git would quietly fall back
    # to plain applying.
    trial = replace(state.index, git=state.pinned.git)
    for file in patch.files:
        if trial.git.run("cat-file", "-e", file.old, check=False).returncode:
            return None
    return trial.write_tree() if trial.merge(patch.diff) is None else None


def _find_breaking_commit(file: FilePatch, state: State) -> tuple[Cause, bool] | None:
    """Return the upstream commit that broke the change, and whether it made the same change."""
    if not state.pinned.history:
        return None
    earlier = [change.hunks for _, change in state.earlier_on(file.path)]
    return breakage_search.find_breaking_commit(
        state.pinned.git, state.pinned.commit, file.path, file.hunks, earlier
    )


def _describe_since(breakage: tuple[Cause, bool] | None) -> str:
    return f", since {breakage[0]}" if breakage else ""


def _explain_conflict(
    patch: Patch, state: State, *, doubt: str | None, mergeable: bool, same: bool
) -> tuple[Outcome, str, Cause | None]:
    """Return outcome, detail and cause of a patch that does not fit beyond doubt.

    Args:
        patch: The patch.
        state: The tree without the patch.
        doubt: Why the place of the patch is a guess, if it is one.
        mergeable: Whether a three-way merge takes the patch.
        same: Whether a three-way merge takes the patch and changes nothing.
    """
    breakages = {
        file.path: _find_breaking_commit(file, state)
        for file in patch.files
        if state.entries[file.path][1] != file.old
    }
    made_upstream = len(breakages) == len(patch.files) and all(
        breakage and breakage[1] for breakage in breakages.values()
    )
    if same or made_upstream:
        first = next((breakage for breakage in breakages.values() if breakage), None)
        return (
            "upstream",
            f"upstream has it{_describe_since(first)}, perhaps changed again since: drop the patch",
            first[0] if first else None,
        )
    hint = "; git can merge it: run `build.py patches refresh`" if mergeable else ""
    failing = [file for file in patch.files if _failing_hunks(file, state)]
    if doubt or not failing:
        return "conflict", f"{doubt}{hint or ': write it anew against the pin'}", None
    breakage = breakages.get(failing[0].path)
    detail = _describe_failing_hunks(failing, state) + _describe_cause(failing[0], state, breakage)
    return "conflict", detail + hint, breakage[0] if breakage else None


def _describe_failing_hunks(failing: Sequence[FilePatch], state: State) -> str:
    """Describe which hunks of the first failing file do not fit."""
    file = failing[0]
    numbers = _failing_hunks(file, state)
    several = len(numbers) > 1
    hunks = f"hunk{'s' if several else ''} {', '.join(map(str, numbers))} of {len(file.hunks)}"
    more = f" (and in {len(failing) - 1} more files)" if len(failing) > 1 else ""
    return f"{hunks} in {file.path}{more} {'fit' if several else 'fits'} nowhere"


def _describe_cause(file: FilePatch, state: State, breakage: tuple[Cause, bool] | None) -> str:
    """Describe what changed the lines that the patch needs."""
    if breakage:
        change = "upstream made that change" if breakage[1] else "changed upstream"
        return f"; {change} in {breakage[0]}"
    if patch_name := _find_own_patch(file, state):
        return f"; our own patch {patch_name} changes those lines before it"
    if not state.pinned.history:
        return f"; {NO_HISTORY}"
    return "; no version of that file in upstream's history takes it"


def _failing_hunks(file: FilePatch, state: State) -> list[int]:
    """Return the numbers, from 1, of the hunks that fit nowhere."""
    _, fits = patch_hunks.fit_hunks(state.text(file.path), file.hunks)
    return [number for number, fit in enumerate(fits, 1) if fit.position is None]


def _find_own_patch(file: FilePatch, state: State) -> str | None:
    """Return the earlier patch of ours after which the change no longer fits."""
    if file.path not in state.upstream:
        return None
    text = read_lines(state.reader, state.upstream[file.path][1])
    if patch_hunks.apply_hunks(text, file.hunks) is None:
        return None
    for patch_name, change in state.earlier_on(file.path):
        text, _ = patch_hunks.fit_hunks(text, change.hunks)
        if patch_hunks.apply_hunks(text, file.hunks) is None:
            return patch_name
    return None


def _explain_missing_file(file: FilePatch, state: State) -> tuple[Outcome, str, Cause | None]:
    """Return outcome, detail and cause of a patch to a file that the tree does not have."""
    if state.pinned.history:
        return _trace_missing_file(file, state)
    for path, (_, blob) in state.entries.items():
        if blob == file.old:
            return (
                "renamed",
                f"{file.path} is now {path} ({NO_HISTORY}): name that in the patch, then refresh",
                None,
            )
    return "gone", f"upstream has no {file.path} ({NO_HISTORY})", None


def _trace_missing_file(file: FilePatch, state: State) -> tuple[Outcome, str, Cause | None]:
    """Follow a file through the renames in upstream's history."""
    pinned, path = state.pinned, file.path
    first_cause: Cause | None = None
    while removal := breakage_search.find_removal(pinned.git, pinned.commit, path):
        cause, new_path = removal
        first_cause = first_cause or cause
        if new_path is None:
            break
        path = new_path
        if path in state.entries:
            detail = f"{file.path} is now {path}, by {first_cause}"
            return "renamed", f"{detail}: name that in the patch, then refresh", first_cause
    if first_cause:
        detail = f"{file.path} was deleted by {first_cause}: see what took its place"
        return "gone", detail, first_cause
    return "gone", f"upstream never had {file.path}: see the path in the patch", None
