"""Make a patch of a series from a commit, which may be in a local clone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.upstream import (
    git_server,
    local_mirror,
    patch_file,
    patch_refresh,
    patch_series,
    patched_source,
)
from rosetta.core.errors import CONFLICT, EXISTS, INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.upstream.git import Git
    from builder.upstream.patch_diagnosis import PatchResult
    from builder.upstream.patch_file import Patch
    from builder.upstream.source import Pinned

_REF = re.compile(r"(?P<base>[A-Za-z0-9_][A-Za-z0-9._/+-]*)(?P<steps>(?:~[0-9]*|\^)*)")
_LONGEST_NAME = 40
_DEFAULT_SENDER = "rosetta <rosetta@localhost>"
_ON_PATCHED = "make the commit on the patched source (docs/how-to/change-a-patch.md says how)"


@dataclass(frozen=True)
class PlannedImport:
    """The files to write, in this order, so that a commit becomes the patch `name`.

    `failing` has the results of the other patches of the series that a build still refuses.
    """

    name: str
    commit: str
    files: tuple[tuple[Path, bytes], ...] = field(repr=False)
    failing: tuple[PatchResult, ...] = ()


def join_clone(pinned: Pinned, repo: Path | None) -> tuple[Pinned, local_mirror.Mirror | None]:
    """Return the source with the objects of a local clone added to it, and the clone.

    git reads the objects of the clone, but never runs in the clone.
    """
    if repo is None:
        return pinned, None
    clone = next(local_mirror.find_mirrors(repo, ""), None) if repo.is_dir() else None
    if clone is None or clone.path not in (repo, repo / ".git"):
        raise UserError(
            "is not a git clone", str(repo), "give --repo the folder of a clone", kind=INVALID
        )
    git = replace(pinned.git, alternates=(*pinned.git.alternates, clone.objects))
    return replace(pinned, git=git), clone


def resolve_commit(git: Git, clone: local_mirror.Mirror | None, text: str) -> str:
    """Return the hash of the commit that `text` names.

    The text is a hash, or, with a clone, HEAD, a branch or a tag. It may end with ~N or ^.
    """
    match = _REF.fullmatch(text)
    if not match:
        raise UserError(
            f"{text!r} is not a valid name of a commit",
            "import",
            "give a commit, or with --repo HEAD or a branch",
        )
    base = match["base"]
    if clone and (resolved := _resolve_ref(clone, base)):
        base = resolved
    elif not re.fullmatch(r"[0-9a-f]{7,40}", base):
        raise UserError(
            f"no branch or tag {base!r}{' there' if clone else ' without --repo'}",
            "import",
            "give its SHA, and --repo DIR for a clone that has it",
        )
    revision = f"{base}{match['steps']}^{{commit}}"
    process = git.run("rev-parse", "--verify", "--quiet", revision, check=False)
    sha = process.stdout.decode("ascii", "replace").strip()
    if process.returncode or not re.fullmatch(r"[0-9a-f]{40}", sha):
        raise UserError(
            f"no commit {text!r} in the source or in a clone",
            "import",
            "give --repo DIR or --mirror DIR for a clone that has it",
        )
    return sha


def _resolve_ref(clone: local_mirror.Mirror, name: str) -> str | None:
    """Return the object that HEAD, a branch or a tag of the clone names; None if it has no such
    ref.
    """
    if name == "HEAD":
        head = (clone.path / "HEAD").read_text("ascii", "replace").strip()
        if re.fullmatch(r"[0-9a-f]{40}", head):
            return head
        name = head.removeprefix("ref: ")
    refs = git_server.refs_for(git_server.check_ref(name, "import"))
    for ref in (*refs, f"refs/remotes/{name}"):
        if sha := local_mirror.read_ref(clone, ref):
            return sha
    return None


@dataclass(frozen=True)
class _CommitHeader:
    """The parent, the author and the subject of a commit."""

    parent: str
    author: str
    subject: str


def _read_commit_header(git: Git, commit: str) -> _CommitHeader:
    """Return the header of a commit that must have one parent."""
    output = git.text("log", "-1", "--no-show-signature", "--format=%P%x00%an <%ae>%x00%s", commit)
    parents, author, subject = (
        re.sub(r"[\x01-\x1f\x7f]", " ", part).strip() for part in output.split("\0", 2)
    )
    if len(parents.split()) != 1:
        problem = "is a merge" if parents else "has no parent"
        raise UserError(
            f"commit {commit} {problem}", "import", "give a commit that makes one change"
        )
    return _CommitHeader(parents, author, subject)


def derive_name(subject: str) -> str:
    """Return a name for a patch: the first words of the subject, without a prefix and a colon."""
    words = re.sub(r"[^a-z0-9]+", "-", subject.split(": ", 1)[-1].lower()).strip("-")
    words = re.sub(r"^[^a-z]+", "", words)
    short = words if len(words) <= _LONGEST_NAME else words[:_LONGEST_NAME].rpartition("-")[0]
    return short or "change"


def plan_import(
    pinned: Pinned,
    folder: Path,
    commit: str,
    *,
    name: str = "",
    subject: str = "",
    fields: dict[str, str],
    replaces: bool = False,
) -> PlannedImport:
    """Return the files to write so that `commit` becomes a patch of the series.

    A broken patch can be replaced while others are broken too, so that they can be repaired one
    after the other.

    Args:
        pinned: The source at its pin.
        folder: The folder of the series.
        commit: The full hash of the commit.
        name: The name of the patch; made from the subject if empty.
        subject: The subject of the patch; that of the commit if empty.
        fields: The fields of the patch, by their names in the patch file.
        replaces: Whether the patch replaces the patch `name`. Otherwise it is added at the end.

    Raises:
        UserError: the commit is a merge or empty, breaks a rule, does not apply, or breaks a
          patch. Nothing is written.
    """
    header = _read_commit_header(pinned.git, commit)
    name = name.removesuffix(".patch") or derive_name(subject or header.subject)
    file = folder / f"{name}.patch"
    if problem := patch_series.find_name_problem(name):
        raise UserError(problem, "--name", "choose another")
    patches = list(patch_series.load_patches(folder, tolerated=[file.name]))
    old = _find_replaced(patches, file, name, replaces=replaces)
    if old:
        header = replace(header, author=old.sender, subject=old.subject)
        fields = {**old.fields, **fields}
    if subject:
        header = replace(header, subject=subject)
    new = _make_patch(pinned.git, file, commit, header, fields)
    position = patches.index(old) if old else len(patches)
    wanted = [*patches[:position], new, *patches[position + bool(old) :]]
    before = patched_source.survey_patches(pinned, patches, ())
    final, after = _refresh_from(pinned, wanted, position)
    failing = _check_effect(before, after, new, replaces=replaces)
    _check_leftover(file, final[position], replaces=replaces)
    files = [
        (patch.file, patch.raw)
        for index, patch in enumerate(final)
        if index == position or (index > position and patch.raw != wanted[index].raw)
    ]
    if not old:
        files.append(_extend_series(folder, name))
    return PlannedImport(name, commit, tuple(files), failing)


def _find_replaced(
    patches: Sequence[Patch], file: Path, name: str, *, replaces: bool
) -> Patch | None:
    """Return the patch that is replaced; None if the new patch is added.

    Raises:
        UserError: the series has a patch to add, or does not have the patch to replace.
    """
    old = next((patch for patch in patches if patch.name == name), None)
    if old and not replaces:
        raise UserError(
            "is in the series already",
            str(file),
            "give --replace to put the commit in its place",
            kind=EXISTS,
            value=name,
        )
    if replaces and not old:
        raise UserError(
            "is not in the series", str(file), "leave --replace out", kind=MISSING, value=name
        )
    return old


def _make_patch(
    git: Git, file: Path, commit: str, header: _CommitHeader, fields: dict[str, str]
) -> Patch:
    """Return the patch that makes the change of the commit."""
    options = {"Why": "--why", "Upstream-Status": "--status", "Drop-When": "--drop-when"}
    for key in patch_file.REQUIRED:
        if not fields.get(key):
            raise UserError(f"a patch needs its {key}", options[key], "give this option")
    if fields["Upstream-Status"].startswith("Backport"):
        fields = {**fields, "Origin": commit}
    sender = header.author if patch_file.is_valid_sender(header.author) else _DEFAULT_SENDER
    diff = patch_refresh.diff_trees(git, header.parent, commit)
    if not diff:
        raise UserError(f"commit {commit} changes nothing", "import", "give another")
    return patch_file.parse_patch(
        file, patch_file.render_patch(sender, header.subject, fields, diff)
    )


def _extend_series(folder: Path, name: str) -> tuple[Path, bytes]:
    """Return the path of `series` and its content with the patch `name` added at the end."""
    path = folder / "series"
    text = patch_series.read_text(path)
    if text and not text.endswith("\n"):
        text += "\n"
    return path, f"{text}{name}\n".encode()


def _refresh_from(
    pinned: Pinned, wanted: Sequence[Patch], start: int
) -> tuple[list[Patch], patched_source.Survey]:
    """Rewrite the patches from the position `start` on so that they apply without a merge.

    A patch after one that fails keeps its bytes, because a refresh would write it without the
    failing patch. The patch at `start` is the new one, and is always rewritten.

    Returns:
        The series with the rewritten patches, and what a build makes of it.
    """
    merged = patched_source.survey_patches(pinned, wanted, (), merge=True)
    regenerated = patch_refresh.regenerate_patches(pinned, merged)
    final = list(wanted)
    for position, result in enumerate(merged.results):
        if position >= start:
            final[position] = regenerated.get(result.name, wanted[position])
            if not result.sound:
                break
    return final, patched_source.survey_patches(pinned, final, ())


def _check_effect(
    before: patched_source.Survey, after: patched_source.Survey, new: Patch, *, replaces: bool
) -> tuple[PatchResult, ...]:
    """Refuse a change that does not apply or that breaks a patch.

    Args:
        before: What a build makes of the series without the change.
        after: What a build makes of the series with the change.
        new: The patch of the change.
        replaces: Whether a patch of that name is in the series.

    Returns:
        The results that a build still refuses.

    Raises:
        UserError: `new` is not applied, or breaks another patch.
    """
    for result in after.results:
        if result.name == new.name and result.outcome != "applied":
            raise UserError(
                f"with it, {result.name} is {result.outcome}: {result.detail}",
                "import",
                _ON_PATCHED,
                kind=CONFLICT,
                value=result.outcome,
            )
    failing = tuple(result for result in after.results if not result.sound)
    was_failing = {result.name for result in before.results if not result.sound}
    for result in failing:
        if not replaces and result.name in was_failing:
            raise UserError(
                f"{result.name} is broken already ({result.outcome}: {result.detail})",
                "import",
                "repair that patch first (docs/how-to/change-a-patch.md says how)",
                kind=CONFLICT,
                value=result.outcome,
            )
        # Patches after a broken one are tried without it. If its repaired form breaks one of them,
        # the maintainer repairs that patch next.
        if result.name not in was_failing and new.name not in was_failing:
            raise UserError(
                f"with it, {result.name} is {result.outcome}: {result.detail}",
                "import",
                _ON_PATCHED,
                kind=CONFLICT,
                value=result.outcome,
            )
    return failing


def _check_leftover(file: Path, new: Patch, *, replaces: bool) -> None:
    """Refuse to overwrite a file, unless an interrupted import left it."""
    if not replaces and file.exists() and file.read_bytes() != new.raw:
        raise UserError(
            "is there already, but not in the series",
            str(file),
            "move it away or choose another --name",
        )
