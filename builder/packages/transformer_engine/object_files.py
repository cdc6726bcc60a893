"""Compile many sources, each into an object that is kept: a run that was stopped goes on with the
files it lacks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.subprocesses import output_end
from builder.packages import sdist_building
from rosetta.core.errors import FAILED, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.packages.transformer_engine.compiler import Compiler

MEMORY_PER_COMPILER = (
    3_000_000_000  # bytes of memory that one compiler may take: 2.8e9 were measured
)
_CLEAN = ("PATH",)  # of the caller's environment; no CPATH, no index, no token


@dataclass
class Effort:
    """What the work took: seconds by file, and the most memory of one compiler in bytes."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak: int = 0


def compiler_environment(scratch: Path) -> dict[str, str]:
    """Return what a compiler gets to see."""
    passed = {name: os.environ[name] for name in _CLEAN if name in os.environ}
    return passed | {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "315532800", "TMPDIR": str(scratch)}


def default_job_count() -> int:
    """How many compilers this machine bears at once, by its cores and its free memory."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        rows = dict(
            line.split(":", 1)
            for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        )
        free = int(rows["MemAvailable"].split()[0]) * 1024
        return max(1, min(len(os.sched_getaffinity(0)), free // MEMORY_PER_COMPILER))
    return 1


@dataclass
class _Running:
    name: str
    process: subprocess.Popen[bytes]
    start: float
    part: Path
    messages: Path


def compile_all(
    compiler: Compiler,
    sources: Sequence[Path],
    flags: Sequence[str],
    kept: Path,
    scratch: Path,
    *,
    at_once: int,
) -> tuple[list[Path], Effort]:
    """Return the object of every source, in `kept`, in the order of `sources`; those that are there
    already are not made again.

    The longest sources come first, so that the last compiler does not run alone. Without network
    where the machine lets us.
    """
    effort, running = Effort(), list[_Running]()
    waiting = sorted(
        (each for each in sources if not (kept / f"{each.name}.o").is_file()),
        key=lambda each: (-each.stat().st_size, each.name),
    )
    total, done = len(waiting), 0
    if len(sources) > total:
        log.info(f"{len(sources) - total} of {len(sources)} files were compiled before")
    for leftover in kept.glob(".tmp-*"):
        leftover.unlink()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start_compiler(compiler, waiting.pop(0), flags, kept, scratch))
            time.sleep(0.05)
            for each in list(running):
                pid, status, usage = os.wait4(each.process.pid, os.WNOHANG)
                if not pid:
                    continue
                running.remove(each)
                each.process.returncode = os.waitstatus_to_exitcode(
                    status
                )  # it is reaped: Popen must not wait for it again
                _finish_compiler(each, kept, usage, effort)
                done += 1
                log.info(
                    f"  {done}/{total} {each.name}: {effort.seconds[each.name]:.0f} s, "
                    f"{usage.ru_maxrss / 1e6:.1f} GB"
                )
    finally:
        for each in running:
            with contextlib.suppress(OSError):
                os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()
            each.part.unlink(missing_ok=True)
    return [kept / f"{each.name}.o" for each in sources], effort


def _start_compiler(
    compiler: Compiler, source: Path, flags: Sequence[str], kept: Path, scratch: Path
) -> _Running:
    # By our number: the compilers of a run that was killed may still be at work.
    part, messages = (
        kept / f".tmp-{os.getpid()}-{source.name}.o",
        scratch / f"{source.name}.messages",
    )
    # The seed stands for the random numbers that g++ puts into names that are not to be shared.
    argv = [
        *sdist_building.network_isolation_prefix(),
        compiler.program,
        "-c",
        *flags,
        f"-frandom-seed={source.name}",
        str(source),
        "-o",
        str(part),
    ]
    with open(messages, "wb") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=compiler_environment(scratch),
            cwd=scratch,
            start_new_session=True,
        )
    return _Running(source.name, process, time.monotonic(), part, messages)


def _finish_compiler(each: _Running, kept: Path, usage: Any, effort: Effort) -> None:
    if each.process.returncode:
        text = each.messages.read_text(encoding="utf-8", errors="replace")
        if "Killed" in text or each.process.returncode < 0:
            raise UserError(
                "the compiler was killed, most likely for want of memory",
                each.name,
                "free some memory or give --jobs 1, then run again: what was compiled is kept",
            )
        line = next(
            (line.rpartition("/")[2] for line in text.splitlines() if "error" in line), text
        )
        raise UserError(
            f"does not compile: {output_end(line)}",
            each.name,
            "check the versions in the locks against what this release of it asks for",
            kind=FAILED,
        )
    os.replace(each.part, kept / f"{each.name}.o")  # written by one of several compilers at work
    effort.seconds[each.name] = round(time.monotonic() - each.start, 1)
    effort.peak = max(effort.peak, usage.ru_maxrss * 1024)
