"""Run another program; if it fails, the error shows the end of what the program printed."""

from __future__ import annotations

import subprocess
from pathlib import PurePath
from typing import TYPE_CHECKING

from builder.core.secrets import redact
from rosetta.core.errors import FAILED, MISSING, UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

LONGEST = 600  # characters of an output that an error shows


def output_end(output: str | bytes, *, prefer: Sequence[str] = (), longest: int = LONGEST) -> str:
    """Return the end of a program's output on one line, without secrets and control characters.

    Args:
        output: What the program printed.
        prefer: Beginnings of lines that say what went wrong, for example "E: ". If there are such
            lines, only they are shown.
        longest: How many characters to show at most. The end of the output is kept.
    """
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
    return join_lines(text.splitlines(), prefer=prefer, longest=longest)


def join_lines(lines: Iterable[str], *, prefer: Sequence[str] = (), longest: int = LONGEST) -> str:
    """Return the last of these lines as `output_end` does."""
    cleaned = [" ".join(escape(redact(line), keep="\t").split()) for line in lines]
    distinct = list(dict.fromkeys(line for line in cleaned if line))
    preferred = [line for line in distinct if line.startswith(tuple(prefer))] if prefer else []
    text = " | ".join(preferred or distinct)
    if not text:
        return "it printed no message"
    return text if len(text) <= longest else f"...{text[3 - longest :]}"


def run_program(
    argv: Sequence[str],
    *,
    where: str = "",
    what: str = "",
    do: str = "",
    prefer: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a program and return what it printed on its standard output.

    Args:
        argv: The program and its arguments.
        where: The place that an error names. Default: the program.
        what: What failed. Default: "PROGRAM failed".
        do: What to do about a failure.
        prefer: See `output_end`.
        env: The program's environment. Default: that of this process.
        cwd: The folder that it runs in.

    Raises:
        UserError: The program cannot be started, or its exit status is not 0. The message shows
            the end of its output.
    """
    name = PurePath(argv[0]).name
    try:
        done = subprocess.run(
            argv, capture_output=True, check=False, env=env, cwd=cwd, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise UserError(
            f"{name} cannot be run ({error.strerror})",
            where or name,
            do or f"install {name}",
            kind=MISSING,
        ) from error
    if done.returncode:
        shown = output_end(done.stderr if done.stderr.strip() else done.stdout, prefer=prefer)
        if done.returncode < 0:
            shown = f"ended by signal {-done.returncode}: {shown}"
        raise UserError(
            f"{what or f'{name} failed'}: {shown}",
            where or name,
            do or f"do what {name} asks for, then run again",
            kind=FAILED,
        )
    return done.stdout.decode("utf-8", "replace")
