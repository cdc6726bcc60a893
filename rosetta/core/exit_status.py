"""End a program: exit statuses, the error line of an exception, and output that must arrive.

Both programs use this module, and the shell scripts get its numbers. Only the standard library is
used, and Python 3.9 runs it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import traceback
from typing import TYPE_CHECKING, NamedTuple, TextIO

from rosetta.core import errors
from rosetta.core.errors import UserError
from rosetta.core.value_parsing import read_truth_value

if TYPE_CHECKING:
    from collections.abc import Callable

SUCCESS, FAILED, USER_ERROR, INTERNAL_ERROR, INTERRUPTED = 0, 1, 2, 3, 130
# The reader of stdout is gone: 128 + SIGPIPE, the status of programs that this signal ends.
OUTPUT_CLOSED = 141
# A run wrote a checkpoint and ended before its last step: EX_TEMPFAIL of sysexits.h, "try later".
ENDED_EARLY = 75
# Another process hangs or is lost. srun returns the highest status of all processes, and kills the
# others. So the number is above 128 + any signal.
PROCESS_LOST = 200

# The errors that the user's machine, paths and network cause, and the kind of each. Any other error
# of the operating system is a bug of the program.
_KIND_OF_ERRNO = {
    **dict.fromkeys((errno.ENOENT, errno.ENODEV, errno.ENXIO), errors.MISSING),
    errno.EEXIST: errors.EXISTS,
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), errors.DENIED),
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
        errors.TOO_BIG,
    ),
    **dict.fromkeys((errno.EMLINK, errno.ENAMETOOLONG, errno.E2BIG), errors.TOO_BIG),
    **dict.fromkeys((errno.EBUSY, errno.ETXTBSY, errno.EADDRINUSE, errno.EAGAIN), errors.IN_USE),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOEXEC), errors.INVALID),
    **dict.fromkeys((errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK), errors.UNSUPPORTED),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ENOTEMPTY), errors.FAILED),
    **dict.fromkeys(
        (
            errno.ECONNREFUSED,
            errno.ECONNRESET,
            errno.ECONNABORTED,
            errno.EHOSTUNREACH,
            errno.ENETUNREACH,
            errno.ENETDOWN,
            errno.ETIMEDOUT,
            errno.EADDRNOTAVAIL,
        ),
        errors.UNREACHABLE,
    ),
}
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def wants_traceback() -> bool:
    """Return whether ROSETTA_DEBUG asks for tracebacks of errors that are otherwise one line.

    A value that is not valid counts as on, because this function is called while another error is
    reported.
    """
    try:
        return read_truth_value(os.environ, "ROSETTA_DEBUG")
    except UserError:
        return True


def _print_traceback(error: BaseException) -> str:
    """Print the traceback of a bug if ROSETTA_DEBUG is on; return what a report needs."""
    if wants_traceback():
        # Python 3.9 wants all three.
        traceback.print_exception(type(error), error, error.__traceback__)
    return "the output under ROSETTA_DEBUG=1"


class Remedies(NamedTuple):
    """What a program advises about the exceptions that are not errors of its own.

    Attributes:
      interrupted: After Ctrl-C.
      machine: After an error of the operating system.
      module: If Python lacks a module of another package.
      report: Keeps what is needed to report a bug of the program, and returns its name.
    """

    interrupted: str = "run it again"
    machine: str = "free some space, or name another folder"
    module: str = "run it in a baked environment or an image"
    report: Callable[[BaseException], str] = _print_traceback


RUN_REMEDIES = Remedies()


def explain_failure(
    error: BaseException, where: str, remedies: Remedies = RUN_REMEDIES
) -> tuple[int, UserError]:
    """Return the exit status for an exception, and a UserError that describes it in one line.

    Args:
      error: The exception.
      where: The command, for an exception that does not name a place.
      remedies: What the program advises.
    """
    if isinstance(error, UserError):
        return USER_ERROR, error
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, UserError("interrupted", where, remedies.interrupted)
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] not in (
        "rosetta",
        "builder",
    ):
        return USER_ERROR, UserError(
            f"{sys.executable} has no module {error.name!r}",
            where,
            remedies.module,
            kind=errors.MISSING,
            value=error.name,
        )
    if isinstance(error, OSError) and (problem := _explain_system_error(error, where, remedies)):
        return USER_ERROR, problem
    return INTERNAL_ERROR, UserError(
        f"{type(error).__name__}: {error}",
        where,
        f"this is a bug in rosetta: report it with {remedies.report(error)}",
    )


def _explain_system_error(error: OSError, where: str, remedies: Remedies) -> UserError | None:
    """Return the UserError for what the user's machine causes, or None for a bug."""
    number, place, what = error.errno, error.filename, error.strerror
    if type(error).__module__ == "shutil":
        # copytree lists (source, target, reason) for each file.
        copies = error.args[0] if isinstance(error.args[0], list) else []
        match = re.search(r"\[Errno (\d+)\]", str(copies[0][2])) if copies else None
        if match is None:
            return None
        number, place = int(match[1]), copies[0][1]
        what = os.strerror(number)
    elif number is None:  # libraries derive their own errors of servers and files from OSError
        return UserError(str(error), where, remedies.machine, kind=errors.FAILED)
    elif number in _NO_SPACE:  # a copy has two files, and the target is the one without space
        place = error.filename2 or error.filename
    # Errors of name servers have negative numbers.
    kind = errors.UNREACHABLE if number < 0 else _KIND_OF_ERRNO.get(number)
    if kind is None:
        return None
    return UserError(what or os.strerror(number), str(place or where), remedies.machine, kind=kind)


def print_result(text: str) -> None:
    """Print a text on stdout, and make sure that it arrives.

    Raises:
      SystemExit: The reader has closed the pipe, as `head` does. There is no message.
      UserError: The text cannot be written.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        discard_output(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(OUTPUT_CLOSED) from None
        raise UserError(
            error.strerror or str(error),
            "stdout",
            "write the output where there is space, and read it to its end",
        ) from None


def discard_output(stream: TextIO) -> None:
    """Drop the text that a stream which cannot be written still holds.

    Python would try to write it again at its end.
    """
    with contextlib.suppress(OSError, ValueError):  # not every stream has a file behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
