"""Whole files of ours that stand in for upstream's, each with the blob it replaces."""

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
    """One file; `replaces` is the upstream blob it was written against, None where upstream has no
    such file.
    """

    path: str
    mode: str
    blob: str
    replaces: str | None
    data: bytes


@dataclass(frozen=True)
class OverlayResult:
    """What became of one file. `detail` is a line that a person can act on."""

    path: str
    blob: str
    outcome: Literal["applied", "upstream", "conflict", "gone"]
    detail: str
    cause: Cause | None = None


def load_overlay(folder: Path | None) -> tuple[OverlayFile, ...]:
    """Return the files of an overlay, read; REPLACES and the folder must name the same ones."""
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
    if file.is_symlink() or not file.is_file():
        raise UserError(
            "is not there",
            str(file),
            "write `PATH <blob it replaces>` or `PATH new` into it, one a line",
            kind=MISSING,
        )
    found: dict[str, str | None] = {}
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
        if found and path <= list(found)[-1]:
            raise UserError(
                f"{path} {'comes twice' if path in found else 'is out of order'}",
                where,
                "sort the lines by path",
                kind=CONFLICT if path in found else INVALID,
                value=path,
            )
        found[path] = None if blob == "new" else blob
    return found


def _list_files(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            full = folder.__class__(root, name)
            path = full.relative_to(folder).as_posix()
            if full.is_symlink() or not (full.is_file() or full.is_dir()):
                raise UserError(
                    "is a link or no plain file",
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
                found[path] = full
    return found


def check_file(
    pinned: Pinned, file: OverlayFile, entries: Mapping[str, tuple[str, str]]
) -> OverlayResult:
    """Whether one file may be laid over the pinned tree, whose `entries` are path -> (mode,
    blob).
    """
    for parent in patch_path_rules.list_parents(file.path):
        if parent in entries:
            return OverlayResult(
                file.path, file.blob, "conflict", f"{parent} is a file or a link upstream"
            )
    if any(path.startswith(file.path + "/") for path in entries):
        return OverlayResult(file.path, file.blob, "conflict", f"{file.path} is a folder upstream")
    there = entries.get(file.path)
    git, commit = pinned.git, pinned.commit
    if there is None and file.replaces is None:
        return OverlayResult(file.path, file.blob, "applied", "")
    if there is None:
        found = breakage_search.find_removal(git, commit, file.path) if pinned.history else None
        detail = "upstream has no such file" + (
            f": {'moved to ' + found[1] if found[1] else 'deleted'} by {found[0]}" if found else ""
        )
        return OverlayResult(
            file.path,
            file.blob,
            "gone",
            f"{detail}; drop it or mark it `new`{_history_hint(pinned)}",
            found[0] if found else None,
        )
    mode, blob = there
    if mode == git_objects.LINK:
        return OverlayResult(file.path, file.blob, "conflict", "upstream has a link there")
    if blob == file.blob and mode == file.mode:
        return OverlayResult(
            file.path, file.blob, "upstream", "upstream has the same file: drop it from the overlay"
        )
    if blob == file.replaces:
        return OverlayResult(file.path, file.blob, "applied", "")
    if file.replaces is None:
        by = breakage_search.find_addition(git, commit, file.path) if pinned.history else None
        detail = f"upstream now has this file, blob {blob}"
    else:
        by = (
            breakage_search.find_first_change(git, commit, file.path, file.replaces)
            if pinned.history
            else None
        )
        detail = f"upstream's blob is now {blob}, not {file.replaces}"
    detail += f", since {by}" if by else ""
    return OverlayResult(
        file.path,
        file.blob,
        "conflict",
        f"{detail}; see what changed, then write that blob into REPLACES{_history_hint(pinned)}",
        by,
    )


def _history_hint(pinned: Pinned) -> str:
    return "" if pinned.history else " (history not at hand: give --mirror to see by which commit)"
