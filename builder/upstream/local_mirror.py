"""Find git clones in a local folder (`--mirror DIR`), check them, and read their refs.

The files are read directly. git never runs in such a clone, because its config and hooks could run
programs.
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

_MAX_DEPTH = 3  # folders below the mirror folder
_MAX_ALTERNATES = 5  # object folders that borrow from each other
_REMEDY = "give a --mirror with complete clones, whose objects all are in the mirror folder"


@dataclass(frozen=True)
class Mirror:
    """A clone in a mirror folder.

    `objects` is its object folder, the only part that git is allowed to read.
    """

    path: Path
    objects: Path


def find_mirrors(root: Path, repository: str) -> Iterator[Mirror]:
    """Yield the clones at `root` and up to three levels below, after checking each.

    Args:
        root: The mirror folder. Links to folders in it are not followed.
        repository: The name of a repository. Clones whose path has this name come first.

    Raises:
        UserError: The object folder of a clone, or an alternate, is outside `root`; or a file in
            its `pack` or `info` is not a regular file.
    """
    if not root.is_dir():
        raise UserError(
            "is not a folder", str(root), "give --mirror a folder with clones", kind=MISSING
        )
    clones = sorted(
        _list_clones(root, 0),
        key=lambda path: (repository not in path_words(path, root), str(path)),
    )
    for path in clones:
        try:
            objects = _check_objects(path / "objects", root.resolve(), path)
        except OSError as error:
            raise UserError(
                f"cannot be read ({error.strerror})", f"mirror {path}", _REMEDY
            ) from error
        yield Mirror(path, objects)


def repository_name(url: str) -> str:
    """Return the name of the repository at a URL: t5x for https://host/group/t5x.git."""
    return url.rstrip("/").rpartition("/")[2].removesuffix(".git")


def path_words(path: Path, root: Path) -> set[str]:
    """Return the parts of a clone's path, split at / and +: a, b and c for a+b/c.git.

    One of them is the name of the repository, if the folders have usual names.
    """
    name = "/".join((root.absolute().name, *path.relative_to(root).parts))
    return {word.removesuffix(".git") for word in re.split(r"[/+]", name)}


def _list_clones(folder: Path, depth: int) -> Iterator[Path]:
    """Yield `folder` if it is a clone (bare, or with .git), and otherwise the clones below it."""
    for candidate in (folder, folder / ".git"):
        if (candidate / "objects").is_dir() and (
            (candidate / "refs").is_dir() or (candidate / "packed-refs").is_file()
        ):
            yield candidate
            return
    if depth == _MAX_DEPTH:
        return
    try:
        with os.scandir(folder) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # it may not be read, or has gone meanwhile
        return
    for name in below:
        yield from _list_clones(folder / name, depth + 1)


def _check_objects(objects: Path, root: Path, clone: Path, depth: int = 0) -> Path:
    """Check that the object folder, its pack, info and alternates are in `root`; return it."""
    where = f"mirror {clone}"
    for folder in (objects, objects / "pack", objects / "info"):
        if folder.is_symlink() and not folder.resolve().is_relative_to(root):
            raise UserError(
                f"its {folder.name}/ is a link that leads out of the mirror folder",
                where,
                _REMEDY,
                kind=INVALID,
            )
    if not objects.resolve().is_relative_to(root):
        raise UserError(
            f"its objects lie in {objects.resolve()}, outside the mirror folder", where, _REMEDY
        )
    for folder in (objects / "pack", objects / "info"):
        for name in os.listdir(folder) if folder.is_dir() else ():
            if not stat.S_ISREG((folder / name).lstat().st_mode):
                raise UserError(
                    f"its {folder.name}/{name} is not a plain file", where, _REMEDY, kind=INVALID
                )
    for alternate in _list_alternates(objects):
        if depth == _MAX_ALTERNATES:
            raise UserError(
                f"its alternates are nested more than {_MAX_ALTERNATES} deep",
                where,
                _REMEDY,
                kind=INVALID,
            )
        if not alternate.resolve().is_relative_to(root):
            raise UserError(
                f"its objects/info/alternates leads out of the mirror folder, to {alternate}",
                where,
                _REMEDY,
                kind=INVALID,
                value=str(alternate),
            )
        _check_objects(alternate, root, clone, depth + 1)
    return objects


def _list_alternates(objects: Path) -> list[Path]:
    """Return the object folders that an object folder borrows from."""
    file = objects / "info" / "alternates"
    if not file.is_file():
        return []
    lines = file.read_text("utf-8", "surrogateescape").splitlines()
    return [objects / line.strip('"') for line in lines if line and not line.startswith("#")]


def read_ref(mirror: Mirror, name: str) -> str | None:
    """Return the SHA-1 that a ref of the mirror (`refs/heads/main`) names; None if there is none.

    An annotated tag gives the commit that it points to if it is in `packed-refs`, and otherwise
    the tag object itself.
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
    """Return the branches of the mirror, and the commit that each one points to."""
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
