"""Read and check the overlay of a source: whole files that replace or add to upstream's files.

The file REPLACES of an overlay has one line for each of its other files, sorted by path:
`PATH BLOB`, where BLOB is the upstream blob that the file replaces, or `PATH new`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.upstream import breakage_search, git_objects, patch_diagnosis, patch_path_rules
from builder.upstream.patch_series import read_text
from rosetta.core.atomic_files import is_temporary
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Whether a file of an overlay can be used, and why not.

    Attributes:
        path: The path of the file in the source.
        blob: The blob of the file in the overlay.
        outcome: "applied"; "upstream" if upstream has the same file; "gone" if upstream has no file
            to replace; "conflict" for everything else that prevents its use.
        detail: One line that tells the maintainer what to do; "" if the file was applied.
        cause: The upstream commit that led to the outcome, if it is known.
    """

    path: str
    blob: str
    outcome: Literal["applied", "upstream", "conflict", "gone"]
    detail: str
    cause: Cause | None = None


def load_overlay(folder: Path | None) -> tuple[OverlayFile, ...]:
    """Return the files of an overlay, in the order of REPLACES.

    Raises:
        UserError: REPLACES is not valid, or does not list exactly the files in the folder.
    """
    if folder is None:
        return ()
    replaced_blobs = _read_replaces(folder / "REPLACES")
    files = _list_files(folder)
    for path in replaced_blobs:
        if path not in files:
            raise UserError(
                f"lists {path}, but the overlay has no such file",
                str(folder / "REPLACES"),
                "add the file or drop the line",
                kind=MISSING,
                value=path,
            )
    if unlisted := sorted(files.keys() - replaced_blobs.keys()):
        raise UserError(
            "is not in REPLACES",
            str(folder / unlisted[0]),
            "add `PATH <blob it replaces>` or `PATH new` to REPLACES",
            kind=UNKNOWN,
        )
    return tuple(_read_file(path, files[path], blob) for path, blob in replaced_blobs.items())


def _read_file(path: str, file: Path, replaces: str | None) -> OverlayFile:
    data = file.read_bytes()
    # Git keeps one permission bit; the others come from the umask of whoever checked the file out.
    mode = git_objects.EXECUTABLE if file.stat().st_mode & 0o100 else git_objects.FILE
    return OverlayFile(path, mode, git_objects.hash_object("blob", data), replaces, data)


def _read_replaces(file: Path) -> dict[str, str | None]:
    """Return path -> replaced upstream blob from REPLACES; the blob of a new file is None."""
    if file.is_symlink() or not file.is_file():
        raise UserError(
            "is missing or not a plain file",
            str(file),
            "create it, with a line `PATH <blob it replaces>` or `PATH new` for each file",
            kind=MISSING,
        )
    replaced: dict[str, str | None] = {}
    last_path = ""
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
        if path in replaced:
            raise UserError(
                f"{path} is listed twice", where, "delete one line", kind=CONFLICT, value=path
            )
        if path < last_path:
            raise UserError(
                f"{path} is out of order",
                where,
                "sort the lines by path",
                kind=INVALID,
                value=path,
            )
        replaced[path] = None if blob == "new" else blob
        last_path = path
    return replaced


def _list_files(folder: Path) -> dict[str, Path]:
    """Return path in the source -> file of an overlay, without REPLACES and temporary files."""
    files_by_path: dict[str, Path] = {}
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            full = Path(root, name)
            path = full.relative_to(folder).as_posix()
            if full.is_symlink() or not (full.is_file() or full.is_dir()):
                raise UserError(
                    "is neither a plain file nor a folder",
                    str(full),
                    "replace it by a plain file",
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
                files_by_path[path] = full
    return files_by_path


def check_file(
    pinned: Pinned, file: OverlayFile, entries: Mapping[str, tuple[str, str]]
) -> OverlayResult:
    """Check whether a file may be laid over the pinned tree.

    Args:
        pinned: The source at its pin.
        file: The file of the overlay.
        entries: The mode and the blob of every file of the pinned tree, by path.
    """
    for parent in patch_path_rules.list_parents(file.path):
        if parent in entries:
            return _conflict(file, f"{parent} is a file or a link upstream")
    if any(path.startswith(file.path + "/") for path in entries):
        return _conflict(file, f"{file.path} is a folder upstream")
    if file.path not in entries:
        return _check_new_file(pinned, file)
    upstream_mode, upstream_blob = entries[file.path]
    if upstream_mode == git_objects.LINK:
        return _conflict(file, f"{file.path} is a link upstream")
    if upstream_blob == file.blob and upstream_mode == file.mode:
        return OverlayResult(
            file.path, file.blob, "upstream", "upstream has the same file: drop it from the overlay"
        )
    if upstream_blob == file.replaces:
        return OverlayResult(file.path, file.blob, "applied", "")
    return _explain_conflict(pinned, file, upstream_blob)


def _conflict(file: OverlayFile, detail: str, cause: Cause | None = None) -> OverlayResult:
    return OverlayResult(file.path, file.blob, "conflict", detail, cause)


def _check_new_file(pinned: Pinned, file: OverlayFile) -> OverlayResult:
    """Return the result for a file that the pinned tree does not have."""
    if file.replaces is None:
        return OverlayResult(file.path, file.blob, "applied", "")
    detail, cause = "upstream has no such file", None
    if pinned.history and (
        removal := breakage_search.find_removal(pinned.git, pinned.commit, file.path)
    ):
        cause, new_path = removal
        change = f"moved to {new_path}" if new_path else "deleted"
        detail += f": {change} by {cause}"
    detail += f"; drop the file, or mark it `new` in REPLACES{_history_hint(pinned)}"
    return OverlayResult(file.path, file.blob, "gone", detail, cause)


def _explain_conflict(pinned: Pinned, file: OverlayFile, upstream_blob: str) -> OverlayResult:
    """Return the result for a file whose blob upstream is not the one that REPLACES states.

    This includes a file that REPLACES marks as new.
    """
    git, commit = pinned.git, pinned.commit
    cause = None
    if file.replaces is None:
        detail = f"upstream now has this file, blob {upstream_blob}"
        if pinned.history:
            cause = breakage_search.find_addition(git, commit, file.path)
    else:
        detail = f"upstream's blob is now {upstream_blob}, not {file.replaces}"
        if pinned.history:
            cause = breakage_search.find_first_change(git, commit, file.path, file.replaces)
    if cause:
        detail += f", since {cause}"
    detail += f"; adapt the file, then write {upstream_blob} into REPLACES"
    return _conflict(file, detail + _history_hint(pinned), cause)


def _history_hint(pinned: Pinned) -> str:
    """Return how a message can also name the cause; "" if upstream's history is available."""
    return "" if pinned.history else f" ({patch_diagnosis.NO_HISTORY})"
