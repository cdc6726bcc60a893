"""Turn errors of the operating system, such as a full disk, into one line for the user."""

from __future__ import annotations

import errno
import os

from rosetta.core.errors import UserError
from rosetta.health import checkpoint_saves

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ADVICE = {
    **dict.fromkeys(_FULL, "free some space there (quotas count too) and start the run again"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM), "let this user read and write there, or name another path"
    ),
    errno.EROFS: "mount it writable, or name another path",
    errno.EIO: "the disk or its file server failed: look at the kernel's log, or name another path",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files: ulimit -n"),
}
_SOME_DISK = "a disk of this machine"
_CHECK_PATH = "check that path on this machine; inside a container it is the mounted one"


def find_system_error(error: BaseException) -> OSError | None:
    """Return the error of the operating system, or None if it raised none.

    Args:
      error: as raised. Gin raises a copy of an OSError that lacks its number and its file's name;
        the original is the copy's context.
    """
    current: BaseException | None = error
    while isinstance(current, OSError):
        if current.errno is not None:
            return current
        current = current.__cause__ or current.__context__
    return None


def explain_system_error(error: BaseException) -> UserError | None:
    """Return an error for the user if the operating system raised it; None for any other error.

    Args:
      error: as raised, or gin's copy of it. TensorStore reports a full disk only in words.
    """
    system_error = find_system_error(error)
    if system_error is not None:
        number = system_error.errno or 0
        what = system_error.strerror or os.strerror(number)
        # A rename has two paths, and writes to the second.
        path = system_error.filename2 or system_error.filename
        if isinstance(path, (str, bytes, os.PathLike)):
            return UserError(what, os.fsdecode(path), _ADVICE.get(number, _CHECK_PATH))
        where = _SOME_DISK if number in _FULL else "this machine"
        return UserError(what, where, _ADVICE.get(number, "correct that and start the run again"))
    if checkpoint_saves.is_disk_full(error):
        return UserError("No space left on device", _SOME_DISK, _ADVICE[errno.ENOSPC])
    return None
