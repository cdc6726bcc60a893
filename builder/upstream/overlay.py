"""Read and check the overlay of a source: whole files that replace or add to upstream's files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.upstream import breakage_search, git_objects, patch_path_rules
from builder.upstream.patch_series import read_text
from rosetta.core.atomic_files import is_temporary
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.upstream.breakage_search import Cause
    from builder.upstream.source import Pinned


@dataclass(frozen=True)
class OverlayFile:
    """One file of an overlay.

    `replaces` is the upstream blob that the file replaces, None if upstream has no such file.
    """

    path: str
    mode: str
    blob: str
    replaces: str | None
    data: bytes


@dataclass(frozen=True)
class OverlayResult:
    """What became of one file. `detail` is one line that tells the maintainer what to do."""

    path: str
    blob: str
    outcome: Literal["applied", "upstream", "conflict", "gone"]
    detail: str
    cause: Cause | None = None


def load_overlay(folder: Path | None) -> tuple[OverlayFile, ...]:
    """Return the files of an overlay; REPLACES must list exactly the files in the folder."""
    if folder is None:
        return ()
    listed, present = _read_replaces(folder / "REPLACES"), _list_files(folder)
    for path in listed:
        if path not in present:
            raise UserError(
                f"lists {path}, which is not there",
                str(folder / "REPLACES"),
                "add the file or drop the line",
                kind=MISSING,
                value=path,
            )
    if extra := sorted(present.keys() - listed.keys()):
        raise UserError(
            "is not in REPLACES",
            str(folder / extra[0]),
            "add `PATH <blob it replaces>` or `PATH new` there",
            kind=UNKNOWN,
        )
    return tuple(_read_file(path, present[path], replaces) for path, replaces in listed.items())


def _read_file(path: str, file: Path, replaces: str | None) -> OverlayFile:
    data = file.read_bytes()
    # Git keeps one permission bit; the others come from the umask of whoever checked the file out.
    mode = git_objects.EXECUTABLE if file.stat().st_mode & 0o100 else git_objects.FILE
    return OverlayFile(path, mode, git_objects.hash_object("blob", data), replaces, data)


def _read_replaces(file: Path) -> dict[str, str | None]:
    """Return the paths of REPLACES, each with the blob that its file replaces, if any."""
    if file.is_symlink() or not file.is_file():
        raise UserError(
            "is not there",
            str(file),
            "write `PATH <blob it replaces>` or `PATH new` into it, one a line",
            kind=MISSING,
        )
    replaced: dict[str, str | None] = {}
    for number, line in enumerate(read_text(file).splitlines(), 1):
        where = f"{file}:{number}"
        path, _, blob = line.rpartition(" ")
        if blob != "new" and not re.fullmatch(r"[0-9a-f]{40}", blob):
            raise UserError(
                f"{line!r} does not end in a full blob SHA or `new`",
                where,
                "see docs/reference/patches.md",
                kind=INVALID,
                value=line,
            )
        if problem := patch_path_rules.find_path_problem(path):
            raise UserError(
                f"path {path!r} {problem}",
                where,
                "name a plain path inside upstream's tree",
                kind=INVALID,
                value=path,
            )
        if replaced and path <= list(replaced)[-1]:
            raise UserError(
                f"{path} {'comes twice' if path in replaced else 'is out of order'}",
                where,
                "sort the lines by path",
                kind=CONFLICT if path in replaced else INVALID,
                value=path,
            )
        replaced[path] = None if blob == "new" else blob
    return replaced


def _list_files(folder: Path) -> dict[str, Path]:
    """Return the files below the folder of an overlay, by their paths in the source."""
    present: dict[str, Path] = {}
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            full = folder.__class__(root, name)
            path = full.relative_to(folder).as_posix()
            if full.is_symlink() or not (full.is_file() or full.is_dir()):
                raise UserError(
                    "is a link or not a plain file",
                    str(full),
                    "put the file itself there",
                    kind=INVALID,
                )
            if problem := patch_path_rules.find_path_problem(path):
                raise UserError(
                    problem,
                    str(full),
                    "name a plain path inside upstream's tree",
                    kind=INVALID,
                    value=path,
                )
            if full.is_file() and path != "REPLACES" and not is_temporary(name):
                present[path] = full
    return present


def check_file(
    pinned: Pinned, file: OverlayFile, entries: Mapping[str, tuple[str, str]]
) -> OverlayResult:
    """Check whether a file may be laid over the pinned tree.

    Args:
        pinned: The source at its pin.
        file: The file of the overlay.
        entries: The mode and the blob of every path of the pinned tree.
    """
    for parent in patch_path_rules.list_parents(file.path):
        if parent in entries:
            return _conflict(file, f"{parent} is a file or a link upstream")
    if any(path.startswith(file.path + "/") for path in entries):
        return _conflict(file, f"{file.path} is a folder upstream")
    if file.path not in entries:
        return _check_new_file(pinned, file)
    mode, blob = entries[file.path]
    if mode == git_objects.LINK:
        return _conflict(file, "upstream has a link there")
    if blob == file.blob and mode == file.mode:
        return OverlayResult(
            file.path, file.blob, "upstream", "upstream has the same file: drop it from the overlay"
        )
    if blob == file.replaces:
        return OverlayResult(file.path, file.blob, "applied", "")
    return _explain_changed_file(pinned, file, blob)


def _conflict(file: OverlayFile, detail: str, cause: Cause | None = None) -> OverlayResult:
    return OverlayResult(file.path, file.blob, "conflict", detail, cause)


def _check_new_file(pinned: Pinned, file: OverlayFile) -> OverlayResult:
    """Return what becomes of a file that the pinned tree does not have."""
    if file.replaces is None:
        return OverlayResult(file.path, file.blob, "applied", "")
    detail, cause = "upstream has no such file", None
    if pinned.history and (
        removal := breakage_search.find_removal(pinned.git, pinned.commit, file.path)
    ):
        cause, new_path = removal
        change = f"moved to {new_path}" if new_path else "deleted"
        detail += f": {change} by {cause}"
    detail += f"; drop it or mark it `new`{_history_hint(pinned)}"
    return OverlayResult(file.path, file.blob, "gone", detail, cause)


def _explain_changed_file(pinned: Pinned, file: OverlayFile, blob: str) -> OverlayResult:
    """Return the conflict with an upstream file that has another blob than REPLACES states."""
    git, commit = pinned.git, pinned.commit
    cause = None
    if file.replaces is None:
        detail = f"upstream now has this file, blob {blob}"
        if pinned.history:
            cause = breakage_search.find_addition(git, commit, file.path)
    else:
        detail = f"upstream's blob is now {blob}, not {file.replaces}"
        if pinned.history:
            cause = breakage_search.find_first_change(git, commit, file.path, file.replaces)
    if cause:
        detail += f", since {cause}"
    hint = _history_hint(pinned)
    return _conflict(
        file, f"{detail}; see what changed, then write that blob into REPLACES{hint}", cause
    )


def _history_hint(pinned: Pinned) -> str:
    return "" if pinned.history else " (history not at hand: give --mirror to see by which commit)"
