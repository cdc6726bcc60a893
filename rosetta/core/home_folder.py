"""Where rosetta writes for the user: `$ROSETTA_HOME`, else `$HOME/.rosetta`, else a folder in /tmp
that no one else can enter.
"""

from __future__ import annotations

import os
import stat
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.errors import DENIED, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OTHER_TEMPORARY_FOLDERS = ("/var/tmp", "/dev/shm")  # noqa: S108 (after /tmp: a read-only root may leave only these)


def make_home_folder() -> Path:
    """Return the folder, made with mode 0700 if it was not there; UserError where none can be
    had.
    """
    if asked := os.environ.get("ROSETTA_HOME"):
        return _make_own_folder(
            Path(asked).absolute(), "set ROSETTA_HOME to a folder of yours, or unset it"
        )
    if is_home_usable(os.environ):
        try:
            return _make_own_folder(Path(os.environ["HOME"]) / ".rosetta", "")
        except UserError:
            pass  # its quota is used up, say, or .rosetta is another's
    return _make_temporary_home()


def is_home_usable(environment: Mapping[str, str]) -> bool:
    """Is `HOME` there, more than the root of the file system, and writable for us?"""
    home = environment.get("HOME") or "/"
    return os.path.isabs(home) and Path(home) != Path("/") and os.access(home, os.W_OK | os.X_OK)


def get_child_variables() -> dict[str, str]:
    """Return what a child has to be given beyond our environment: a home where there is none, a
    name where the user has none.
    """
    found = {}
    if not is_home_usable(os.environ):
        place = str(make_home_folder())
        found["ROSETTA_HOME"] = place
        if (os.environ.get("HOME") or "/") == "/" or not os.access(os.environ["HOME"], os.X_OK):
            found["HOME"] = place
        else:
            found["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or f"{place}/cache"
            found["MPLCONFIGDIR"] = os.environ.get("MPLCONFIGDIR") or f"{place}/matplotlib"
    if not any(os.environ.get(name) for name in ("LOGNAME", "USER")) and not _has_user_name():
        found["LOGNAME"] = found["USER"] = f"uid{os.getuid()}"
    return found


def _has_user_name() -> bool:
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _make_own_folder(path: Path, do: str) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = os.lstat(path)
    except OSError as error:
        raise UserError(f"cannot be made: {error.strerror}", str(path), do, kind=DENIED) from None
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        raise UserError("is no folder that can be written", str(path), do, kind=DENIED)
    if path.name == ".rosetta" and state.st_uid != os.getuid():
        raise UserError("belongs to another user", str(path), do, kind=DENIED)
    return path


@cache
def _make_temporary_home() -> Path:
    """Return a folder of our own in /tmp; the sticky bit of /tmp keeps others from replacing it.

    Where the name is taken by anything else, it is a new one that nobody can guess.
    """
    for place in (Path(os.environ.get("TMPDIR") or "/tmp"), *map(Path, _OTHER_TEMPORARY_FOLDERS)):  # noqa: S108
        path = place / f"rosetta-{os.getuid()}"
        try:
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                state = os.lstat(path)
                ours = (
                    stat.S_ISDIR(state.st_mode)
                    and state.st_uid == os.getuid()
                    and os.stat(place).st_mode & stat.S_ISVTX
                )
                if not ours:
                    return Path(tempfile.mkdtemp(prefix="rosetta-", dir=place))
                path.chmod(0o700)
            return path
        except OSError:
            continue
    raise UserError(
        "nothing can be written: neither HOME nor /tmp",
        "ROSETTA_HOME",
        "start the container with --tmpfs /tmp, or set it to a mounted folder",
        kind=MISSING,
    )
