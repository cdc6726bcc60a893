"""Clones on a local disk (`--mirror DIR`): found, vetted and read by hand; git never runs in
one.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DEEPEST = 3
_DO = "give a --mirror that holds plain clones"


@dataclass(frozen=True)
class Mirror:
    """A clone below a mirror folder.

    `objects` is what git may read of it; its config, hooks and refs play no part.
    """

    path: Path
    objects: Path


def find_mirrors(root: Path, word: str) -> Iterator[Mirror]:
    """Yield the vetted clones at `root` or up to three levels below, those first whose path names
    `word` (a repository's name).

    Links to folders are not followed. A clone whose objects lie elsewhere, or are no plain files,
    is a UserError.
    """
    if not root.is_dir():
        raise UserError(
            "is not a folder", str(root), "give --mirror a folder with clones", kind=MISSING
        )
    clones = sorted(_clones(root, 0), key=lambda path: (word not in words(path, root), str(path)))
    for path in clones:
        try:
            objects = _check_objects(path / "objects", root.resolve(), path)
        except OSError as error:
            raise UserError(f"cannot be read ({error.strerror})", f"mirror {path}", _DO) from error
        yield Mirror(path, objects)


def word_of(url: str) -> str:
    """Return the word that a URL's clone is looked for by: t5x for https://host/group/t5x.git."""
    return url.rstrip("/").rpartition("/")[2].removesuffix(".git")


def words(path: Path, root: Path) -> set[str]:
    """Return what a clone's path says about whose clone it is: a+b/c.git says a, b and c."""
    name = "/".join((root.absolute().name, *path.relative_to(root).parts))
    return {word.removesuffix(".git") for word in re.split(r"[/+]", name)}


def _clones(folder: Path, depth: int) -> Iterator[Path]:
    for candidate in (folder, folder / ".git"):
        if (candidate / "objects").is_dir() and (
            (candidate / "refs").is_dir() or (candidate / "packed-refs").is_file()
        ):
            yield candidate
            return
    if depth == _DEEPEST:
        return
    try:
        with os.scandir(folder) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # it may not be read, or has gone meanwhile
        return
    for name in below:
        yield from _clones(folder / name, depth + 1)


def _check_objects(objects: Path, root: Path, clone: Path, depth: int = 0) -> Path:
    where = f"mirror {clone}"
    for folder in (objects, objects / "pack", objects / "info"):
        if folder.is_symlink() and not folder.resolve().is_relative_to(root):
            raise UserError(
                f"its {folder.name}/ is a link that leads out of the mirror folder",
                where,
                _DO,
                kind=INVALID,
            )
    if not objects.resolve().is_relative_to(root):
        raise UserError(
            f"its objects lie in {objects.resolve()}, outside the mirror folder", where, _DO
        )
    for folder in (objects / "pack", objects / "info"):
        for name in os.listdir(folder) if folder.is_dir() else ():
            if not stat.S_ISREG((folder / name).lstat().st_mode):
                raise UserError(
                    f"its {folder.name}/{name} is not a plain file", where, _DO, kind=INVALID
                )
    alternates = objects / "info" / "alternates"
    for line in (
        alternates.read_text("utf-8", "surrogateescape").splitlines()
        if alternates.is_file()
        else ()
    ):
        if line and not line.startswith("#"):
            further = objects / line.strip('"')
            if depth > 4 or not further.resolve().is_relative_to(root):
                raise UserError(
                    f"its objects/info/alternates leads out of the mirror folder, to {line}",
                    where,
                    _DO,
                    kind=INVALID,
                    value=line,
                )
            _check_objects(further, root, clone, depth + 1)
    return objects


def read_ref(mirror: Mirror, name: str) -> str | None:
    """Return the object that a ref of the mirror (`refs/heads/main`) names, read by hand; None
    where it has no such ref.
    """
    loose = mirror.path / name
    if loose.is_file() and loose.resolve().is_relative_to(mirror.path.resolve()):
        text = loose.read_text("ascii", "replace").strip()
        return text if re.fullmatch(r"[0-9a-f]{40}", text) else None
    packed = mirror.path / "packed-refs"
    if not packed.is_file() or packed.is_symlink():
        return None
    lines = packed.read_text("utf-8", "surrogateescape").splitlines()
    for index, line in enumerate(lines):
        if re.fullmatch(r"[0-9a-f]{40} \S+", line) and line[41:] == name:
            after = lines[index + 1] if index + 1 < len(lines) else ""
            return after[1:] if re.fullmatch(r"\^[0-9a-f]{40}", after) else line[:40]
    return None


def read_branches(mirror: Mirror) -> dict[str, str]:
    """Return the branches of the mirror and where they stand, read by hand."""
    names = set()
    heads = mirror.path / "refs/heads"
    for folder, _, files in os.walk(heads):
        names |= {os.path.relpath(os.path.join(folder, name), heads) for name in files}
    packed = mirror.path / "packed-refs"
    if packed.is_file() and not packed.is_symlink():
        names |= set(
            re.findall(
                r"(?m)^[0-9a-f]{40} refs/heads/(\S+)$", packed.read_text("utf-8", "surrogateescape")
            )
        )
    tips = {name: read_ref(mirror, f"refs/heads/{name}") for name in sorted(names)}
    return {name: sha for name, sha in tips.items() if sha}
