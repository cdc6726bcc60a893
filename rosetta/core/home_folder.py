"""Find the folder that rosetta writes to for a user.

The folder is $ROSETTA_HOME, else $HOME/.rosetta, else a folder in /tmp that only the user can
enter.
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

# After /tmp: a container with a read-only root may have only these.
_OTHER_TEMPORARY_FOLDERS = ("/var/tmp", "/dev/shm")  # noqa: S108 (their names are fixed)


def make_home_folder() -> Path:
    """Return the folder; make it with mode 0700 if it does not exist.

    Raises:
      UserError: No folder can be made.
    """
    if rosetta_home := os.environ.get("ROSETTA_HOME"):
        remedy = "set ROSETTA_HOME to a folder that you can write to, or unset it"
        return _make_own_folder(Path(rosetta_home).absolute(), remedy)
    if is_home_usable(os.environ):
        try:
            return _make_own_folder(Path(os.environ["HOME"]) / ".rosetta", "")
        except UserError:
            # The user's quota may be used up, or .rosetta may belong to another user.
            pass
    return _make_temporary_home()


def is_home_usable(environment: Mapping[str, str]) -> bool:
    """Return whether HOME is a folder that this user can write to, other than "/"."""
    home = environment.get("HOME") or "/"
    return os.path.isabs(home) and Path(home) != Path("/") and os.access(home, os.W_OK | os.X_OK)


def get_child_variables() -> dict[str, str]:
    """Return the variables that a child process needs beyond the environment of this process.

    They give it a home if HOME is not usable, and a user name if the user has none.
    """
    variables = {}
    if not is_home_usable(os.environ):
        home = str(make_home_folder())
        variables["ROSETTA_HOME"] = home
        if (os.environ.get("HOME") or "/") == "/" or not os.access(os.environ["HOME"], os.X_OK):
            variables["HOME"] = home
        else:
            variables["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or f"{home}/cache"
            variables["MPLCONFIGDIR"] = os.environ.get("MPLCONFIGDIR") or f"{home}/matplotlib"
    if not any(os.environ.get(name) for name in ("LOGNAME", "USER")) and not _has_user_name():
        variables["LOGNAME"] = variables["USER"] = f"uid{os.getuid()}"
    return variables


def _has_user_name() -> bool:
    """Return whether the system knows a name for this user."""
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _make_own_folder(path: Path, remedy: str) -> Path:
    """Return a folder that this user can write to; make it if it does not exist."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = os.lstat(path)
    except OSError as error:
        raise UserError(
            f"the folder cannot be made: {error.strerror}", str(path), remedy, kind=DENIED
        ) from None
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        raise UserError("not a folder that can be written", str(path), remedy, kind=DENIED)
    if path.name == ".rosetta" and state.st_uid != os.getuid():
        raise UserError("belongs to another user", str(path), remedy, kind=DENIED)
    return path


@cache
def _make_temporary_home() -> Path:
    """Return a folder of this user in /tmp, or in another temporary folder.

    The sticky bit of /tmp keeps other users from replacing the folder.
    """
    parents = [os.environ.get("TMPDIR") or "/tmp", *_OTHER_TEMPORARY_FOLDERS]  # noqa: S108
    for parent in map(Path, parents):
        try:
            return _make_folder_in(parent)
        except OSError:
            continue
    raise UserError(
        "nothing can be written: neither HOME nor /tmp",
        "ROSETTA_HOME",
        "start the container with --tmpfs /tmp, or set ROSETTA_HOME to a mounted folder",
        kind=MISSING,
    )


def _make_folder_in(parent: Path) -> Path:
    """Return the folder rosetta-UID in a temporary folder.

    If that name may be under the control of another user, return a new folder whose name nobody can
    guess.
    """
    path = parent / f"rosetta-{os.getuid()}"
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        state = os.lstat(path)
        is_own_folder = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid()
        if not (is_own_folder and os.stat(parent).st_mode & stat.S_ISVTX):
            return Path(tempfile.mkdtemp(prefix="rosetta-", dir=parent))
        path.chmod(0o700)
    return path
