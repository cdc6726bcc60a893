"""What happens to one patch on one tree, and why: the outcome, and a line that a person can act
on.
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
_NO_HISTORY = "history not at hand: give --mirror to see by which commit"


@dataclass(frozen=True)
class PatchResult:
    """`commit` is set where the patch was put in; `sound` says that a build may go on."""

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
    """The tree that a patch meets: `upstream` are the pinned tree's entries, `entries` those with
    the patches `earlier` in it.
    """

    pinned: Pinned
    index: Index
    reader: Reader
    upstream: Mapping[str, tuple[str, str]]
    entries: Mapping[str, tuple[str, str]]
    earlier: Sequence[Patch]

    def text(self, path: str) -> list[bytes]:
        return read_lines(self.reader, self.entries[path][1])

    def earlier_on(self, path: str) -> list[tuple[str, FilePatch]]:
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
    """Put `patch` into the state's index if it fits beyond doubt; with `merge`, also where a
    three-way merge takes it.
    """

    def result(
        outcome: Outcome, detail: str = "", by: Cause | None = None, *, sound: bool = False
    ) -> PatchResult:
        return PatchResult(
            patch.name, patch.sha256, patch.subject, outcome, None, detail, by, sound
        )

    if not patch.files:
        return result("empty", "the patch changes nothing: drop it")
    for file in patch.files:
        if file.path not in state.entries:
            return result(*_explain_missing_file(file, state))
    doubt = _find_doubt(patch, state)
    said = None if doubt else state.index.apply(patch.diff)
    if not doubt and said is None:
        return result("applied", sound=True)
    if said and not any(_failing_hunks(file, state) for file in patch.files):
        # A full disk looks like this; nothing must be blamed on the patch then.
        raise UserError(
            f"git cannot apply it, though every hunk fits: {said}",
            str(patch.file),
            "free some space, or mend what git names, then run again",
            kind=FAILED,
        )
    if not doubt and _is_contained(patch, state.entries, state):
        if not _is_contained(patch, state.upstream, state):
            return result("empty", "an earlier patch of ours does the same: drop one of the two")
        by = _find_breaking_commit(patch.files[0], state)
        return result(
            "upstream",
            f"upstream has it{_describe_since(by)}: drop the patch",
            by[0] if by else None,
            sound=True,
        )
    before = state.index.write_tree()
    merged = _merge_three_ways(patch, state)
    if merge and merged and merged != before:
        return result("applied", "by a three-way merge", sound=True)
    state.index.read_tree(before)
    return result(
        *_explain_conflict(
            patch, state, doubt=doubt, mergeable=merged not in {None, before}, same=merged == before
        )
    )


def _find_doubt(patch: Patch, state: State) -> str | None:
    """Why it is a guess where the patch belongs.

    There is no doubt about the very blob that it was made for.
    """
    both = []
    for file in patch.files:
        if state.entries[file.path][1] == file.old:
            both.append(False)
            continue
        text = state.text(file.path)
        _, fits = patch_hunks.fit_hunks(text, file.hunks)
        for hunk, fit in zip(file.hunks, fits, strict=True):
            if fit.doubtful:
                return (
                    f"the hunk at line {hunk.line} fits {fit.places} places of {file.path}, none "
                    "at its own line"
                )
        both.append(
            all(fit.at is not None for fit in fits)
            and not patch_hunks.accepts_hunks(text, file.hunks)
        )
    return (
        f"it fits {patch.files[0].path}, but what it makes of it is there already as well"
        if all(both)
        else None
    )


def _is_contained(patch: Patch, entries: Mapping[str, tuple[str, str]], state: State) -> bool:
    """Whether these entries have the change already, proven by lines that it adds."""
    proof = any(
        op == "+" and line.strip()
        for file in patch.files
        for hunk in file.hunks
        for op, line in hunk.body
    )
    return proof and all(
        file.path in entries
        and patch_hunks.contains_hunks(read_lines(state.reader, entries[file.path][1]), file.hunks)
        for file in patch.files
    )


def _merge_three_ways(patch: Patch, state: State) -> str | None:
    """Merge the patch into the state's index three ways; the tree, or None where that conflicts or
    lacks the old blobs.
    """
    # Older versions are in mirrors and full clones only. Without them git would quietly fall back
    # to plain applying.
    trial = replace(state.index, git=state.pinned.git)
    if not all(
        trial.git.run("cat-file", "-e", file.old, check=False).returncode == 0
        for file in patch.files
    ):
        return None
    return trial.write_tree() if trial.merge(patch.diff) is None else None


def _find_breaking_commit(file: FilePatch, state: State) -> tuple[Cause, bool] | None:
    if not state.pinned.history:
        return None
    earlier = [one.hunks for _, one in state.earlier_on(file.path)]
    return breakage_search.find_breaking_commit(
        state.pinned.git, state.pinned.commit, file.path, file.hunks, earlier
    )


def _describe_since(by: tuple[Cause, bool] | None) -> str:
    return f", since {by[0]}" if by else ""


def _explain_conflict(
    patch: Patch, state: State, *, doubt: str | None, mergeable: bool, same: bool
) -> tuple[Outcome, str, Cause | None]:
    """Outcome, detail and cause of a patch that does not fit beyond doubt."""
    found = {
        file.path: _find_breaking_commit(file, state)
        for file in patch.files
        if state.entries[file.path][1] != file.old
    }
    made = len(found) == len(patch.files) and all(by and by[1] for by in found.values())
    if same or made:
        by = next((by for by in found.values() if by), None)
        return (
            "upstream",
            f"upstream has it{_describe_since(by)}, perhaps changed again since: drop the patch",
            by[0] if by else None,
        )
    hint = "; git can merge it: run `build.py patches refresh`" if mergeable else ""
    failing = [(file, bad) for file in patch.files if (bad := _failing_hunks(file, state))]
    if doubt or not failing:
        return "conflict", f"{doubt}{hint or ': write it anew against the pin'}", None
    file, bad = failing[0]
    numbers = f"hunk{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad))} of {len(file.hunks)}"
    more = f" (and in {len(failing) - 1} more files)" if len(failing) > 1 else ""
    says = f"{numbers} in {file.path}{more} fit{'s' if len(bad) == 1 else ''} nowhere"
    by = found.get(file.path)
    if by:
        says += f"; {'upstream made that change' if by[1] else 'changed upstream'} in {by[0]}"
    elif own := _find_own_patch(file, state):
        says += f"; our own patch {own} changes those lines before it"
    elif not state.pinned.history:
        says += f"; {_NO_HISTORY}"
    else:
        says += "; no version of that file in upstream's history takes it"
    return "conflict", says + hint, by[0] if by else None


def _failing_hunks(file: FilePatch, state: State) -> list[int]:
    _, fits = patch_hunks.fit_hunks(state.text(file.path), file.hunks)
    return [number for number, fit in enumerate(fits, 1) if fit.at is None]


def _find_own_patch(file: FilePatch, state: State) -> str | None:
    if file.path not in state.upstream:
        return None
    text = read_lines(state.reader, state.upstream[file.path][1])
    if patch_hunks.apply_hunks(text, file.hunks) is None:
        return None
    for name, one in state.earlier_on(file.path):
        text, _ = patch_hunks.fit_hunks(text, one.hunks)
        if patch_hunks.apply_hunks(text, file.hunks) is None:
            return name
    return None


def _explain_missing_file(file: FilePatch, state: State) -> tuple[Outcome, str, Cause | None]:
    pinned, path = state.pinned, file.path
    by: Cause | None = None
    if pinned.history:
        while found := breakage_search.find_removal(pinned.git, pinned.commit, path):
            by = by or found[0]
            if found[1] is None:
                break
            path = found[1]
            if path in state.entries:
                return (
                    "renamed",
                    f"{file.path} is now {path}, by {by}: name that in the patch, then refresh",
                    by,
                )
        if by:
            return "gone", f"{file.path} was deleted by {by}: see what took its place", by
        return "gone", f"upstream never had {file.path}: see the path in the patch", None
    for other, (_, blob) in state.entries.items():
        if blob == file.old:
            return (
                "renamed",
                f"{file.path} is now {other} ({_NO_HISTORY}): name that in the patch, then refresh",
                None,
            )
    return "gone", f"upstream has no {file.path} ({_NO_HISTORY})", None
