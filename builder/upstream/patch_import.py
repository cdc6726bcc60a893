"""A commit of someone's clone made into a patch of ours."""

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
_OURS = "rosetta <rosetta@localhost>"
_ON_PATCHED = "make the commit on the patched source (docs/how-to/change-a-patch.md says how)"


@dataclass(frozen=True)
class Adoption:
    """Files to write, in this order, for one commit to become the patch `name`.

    `failing` are the results of the other patches of the series that a build still refuses.
    """

    name: str
    commit: str
    files: tuple[tuple[Path, bytes], ...] = field(repr=False)
    failing: tuple[PatchResult, ...] = ()


def join_clone(pinned: Pinned, repo: Path | None) -> tuple[Pinned, local_mirror.Mirror | None]:
    """Return the source with the objects of a local clone joined to it; git never runs in the
    clone.
    """
    if repo is None:
        return pinned, None
    clone = next(local_mirror.find_mirrors(repo, ""), None) if repo.is_dir() else None
    if clone is None or clone.path not in (repo, repo / ".git"):
        raise UserError(
            "is no git clone", str(repo), "give --repo the folder of a clone", kind=INVALID
        )
    git = replace(pinned.git, alternates=(*pinned.git.alternates, clone.objects))
    return replace(pinned, git=git), clone


def resolve_commit(git: Git, clone: local_mirror.Mirror | None, text: str) -> str:
    """Return the commit that `text` names: hex digits, or with a clone HEAD, a branch or a tag;
    then perhaps ~N or ^.
    """
    found = _REF.fullmatch(text)
    if not found:
        raise UserError(
            f"{text!r} is no name of a commit",
            "import",
            "give a commit, or with --repo HEAD or a branch",
        )
    base = found["base"]
    if clone and (named := _resolve_ref(clone, base)):
        base = named
    elif not re.fullmatch(r"[0-9a-f]{7,40}", base):
        do = "give its SHA, and --repo DIR for a clone that has it"
        raise UserError(
            f"no branch or tag {base!r}{' there' if clone else ' without --repo'}", "import", do
        )
    done = git.run(
        "rev-parse", "--verify", "--quiet", f"{base}{found['steps']}^{{commit}}", check=False
    )
    sha = done.stdout.decode("ascii", "replace").strip()
    if done.returncode or not re.fullmatch(r"[0-9a-f]{40}", sha):
        raise UserError(
            f"no commit {text!r} at hand",
            "import",
            "give --repo DIR or --mirror DIR for a clone that has it",
        )
    return sha


def _resolve_ref(clone: local_mirror.Mirror, name: str) -> str | None:
    if name == "HEAD":
        head = (clone.path / "HEAD").read_text("ascii", "replace").strip()
        if re.fullmatch(r"[0-9a-f]{40}", head):
            return head
        name = head.removeprefix("ref: ")
    for full in (
        *git_server.refs_for(git_server.check_ref(name, "import")),
        f"refs/remotes/{name}",
    ):
        if sha := local_mirror.read_ref(clone, full):
            return sha
    return None


def read_commit_header(git: Git, commit: str) -> tuple[str, str, str]:
    """Parent, author and subject of a commit with one parent."""
    out = git.text("log", "-1", "--no-show-signature", "--format=%P%x00%an <%ae>%x00%s", commit)
    parents, author, subject = (
        re.sub(r"[\x01-\x1f\x7f]", " ", part).strip() for part in out.split("\0", 2)
    )
    if len(parents.split()) != 1:
        what = "is a merge" if parents else "has no parent"
        raise UserError(f"commit {commit} {what}", "import", "give a commit that makes one change")
    return parents, author, subject


def derive_name(subject: str) -> str:
    """Return a file name from a subject: its first words, without what stands before a colon."""
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
) -> Adoption:
    """Return the files for `commit` as a patch at the end of the series, or, with `replaces`, in
    the place of the patch `name`.

    A broken patch can be replaced while others are broken too: they are mended one after the other.

    Raises:
        UserError: the commit is a merge or empty, breaks a rule, does not apply, or breaks a
          patch. Nothing is written.
    """
    git = pinned.git
    parent, author, found_subject = read_commit_header(git, commit)
    name = name.removesuffix(".patch") or derive_name(subject or found_subject)
    file = folder / f"{name}.patch"
    if problem := patch_series.find_name_problem(name):
        raise UserError(problem, "--name", "choose another")
    patches = list(patch_series.load_patches(folder, tolerated=[file.name]))
    old = next((patch for patch in patches if patch.name == name), None)
    if bool(old) != replaces:
        what = "is in the series already" if old else "is not in the series"
        raise UserError(
            what,
            str(file),
            "give --replace to put the commit in its place" if old else "leave --replace out",
            kind=EXISTS if old else MISSING,
            value=name,
        )
    if old:
        author, subject, fields = old.sender, subject or old.subject, {**old.fields, **fields}
    if missing := [key for key in patch_file.REQUIRED if not fields.get(key)]:
        options = {"Why": "--why", "Upstream-Status": "--status", "Drop-When": "--drop-when"}
        raise UserError(f"a patch needs its {missing[0]}", options[missing[0]], "say it")
    if fields["Upstream-Status"].startswith("Backport"):
        fields = {**fields, "Origin": commit}
    sender = author if patch_file.is_valid_sender(author) else _OURS
    change = patch_refresh.diff_trees(git, parent, commit)
    if not change:
        raise UserError(f"commit {commit} changes nothing", "import", "give another")
    new = patch_file.parse_patch(
        file, patch_file.render_patch(sender, subject or found_subject, fields, change)
    )
    at = patches.index(old) if old else len(patches)
    wanted = [*patches[:at], new, *patches[at + bool(old) :]]
    before = patched_source.survey_patches(pinned, patches, ())
    final, after = _refresh_from(pinned, wanted, at)
    failing = _check_effect(before, after, new, replaces=replaces)
    final = final[at:]
    _check_leftover(file, final[0], replaces=replaces)
    files = [
        (patch.file, patch.raw)
        for patch, before in zip(final, wanted[at:], strict=True)
        if patch is final[0] or patch.raw != before.raw
    ]
    if not old:
        text = patch_series.read_text(folder / "series")
        files.append(
            (
                folder / "series",
                f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{name}\n".encode(),
            )
        )
    return Adoption(name, commit, tuple(files), failing)


def _refresh_from(
    pinned: Pinned, wanted: Sequence[Patch], at: int
) -> tuple[list[Patch], patched_source.Survey]:
    """Return the series with the patches from `at` on as they must be to apply plainly, and what a
    build makes of it.

    A patch behind one that fails keeps its bytes: they would be written without the failing one.
    The patch at `at` is the new one, and is always written.
    """
    merged = patched_source.survey_patches(pinned, wanted, (), merge=True)
    fresh = patch_refresh.regenerate_patches(pinned, merged)
    final = list(wanted)
    for position, result in enumerate(merged.results):
        if position >= at:
            final[position] = fresh.get(result.name, wanted[position])
        if position >= at and not result.sound:
            break
    return final, patched_source.survey_patches(pinned, final, ())


def _check_effect(
    before: patched_source.Survey, after: patched_source.Survey, new: Patch, *, replaces: bool
) -> tuple[PatchResult, ...]:
    """Refuse a change that does not apply or that breaks a patch; return what a build still
    refuses.

    Args:
        before: What a build makes of the series as it stands.
        after: What a build makes of the series with the change.
        new: The patch of the change.
        replaces: Whether a patch of that name is in the series.

    Raises:
        UserError: `new` is not applied, or another patch fails that must not.
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
                "mend that patch first (docs/how-to/change-a-patch.md says how)",
                kind=CONFLICT,
                value=result.outcome,
            )
        # While a broken patch is left out, those behind it are judged without it. What its mended
        # form breaks is next to mend.
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
    """Refuse a file that is there, unless an interrupted import left it."""
    if not replaces and file.exists() and file.read_bytes() != new.raw:
        raise UserError(
            "is there already, but not in the series",
            str(file),
            "move it away or choose another --name",
        )
