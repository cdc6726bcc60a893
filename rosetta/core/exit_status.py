"""How a command ends: exit statuses, what is said of an error, and output that has to arrive."""

from __future__ import annotations

import errno
import os
import sys
import traceback

from rosetta.core import errors
from rosetta.core.errors import UserError

FINE, FAILED, USER, OURS, INTERRUPTED = 0, 1, 2, 3, 130
CLOSED = 141  # nobody reads stdout any more: 128 + SIGPIPE, as of programs that the signal ends
# Of a run that wrote a checkpoint and ended before its time: EX_TEMPFAIL of sysexits.h, "go on
# later".
EARLY = 75
# Another process hangs or is lost; above 128 + any signal, as srun gives the highest status of all
# and the other one is killed.
LOST = 200
_KIND_OF_ERRNO = {
    errno.ENOENT: errors.MISSING,
    errno.EEXIST: errors.EXISTS,
    errno.EACCES: errors.DENIED,
    errno.EPERM: errors.DENIED,
    errno.EROFS: errors.DENIED,
    errno.ENOSPC: errors.TOO_BIG,
    errno.EDQUOT: errors.TOO_BIG,
    errno.EFBIG: errors.TOO_BIG,
}


def failure(error: BaseException, where: str) -> tuple[int, UserError]:
    """Return the exit status for an error, and it as one line; with ROSETTA_DEBUG set, print where
    a fault of ours came from.

    Args:
      error: what was raised.
      where: the command, for what does not say where it comes from.
    """
    if isinstance(error, UserError):
        return USER, error
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, UserError("interrupted", where, "run it again")
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] != "rosetta":
        return USER, UserError(
            f"{sys.executable} has no module {error.name!r}",
            where,
            "run it in a baked environment or an image",
            kind=errors.MISSING,
            value=error.name,
        )
    if isinstance(error, OSError):
        return USER, UserError(
            error.strerror or str(error),
            str(error.filename or where),
            "make room or name another folder",
            kind=_KIND_OF_ERRNO.get(error.errno or 0, errors.FAILED),
        )
    if os.environ.get("ROSETTA_DEBUG"):
        traceback.print_exception(
            type(error), error, error.__traceback__
        )  # Python 3.9 wants all three
    return OURS, UserError(
        f"{type(error).__name__}: {error}",
        where,
        "this is a fault of ours: report it with the output under ROSETTA_DEBUG=1",
    )


def say(text: str) -> None:
    """Print on stdout, and see that it arrives.

    Raises:
      SystemExit: whoever read it has had enough, as `head` has; nothing is said of that.
      UserError: it does not arrive.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 1
        )  # what is left in the buffer would fail once more when Python ends
        if isinstance(error, BrokenPipeError):
            raise SystemExit(CLOSED) from None
        raise UserError(
            error.strerror or str(error),
            "stdout",
            "write it to where there is room, and read it to its end",
        ) from None
