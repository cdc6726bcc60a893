"""Compile many sources into object files that are kept.

A build that was stopped compiles only the files that are still missing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import log
from builder.core.subprocesses import output_end
from builder.packages import sdist_building
from rosetta.core.errors import FAILED, UserError

if TYPE_CHECKING:
    import resource
    from collections.abc import Sequence

    from builder.packages.transformer_engine.compiler import Compiler

MEMORY_PER_COMPILER = 3_000_000_000  # bytes; one compiler took 2.8e9 when measured
# The variables of the caller that a compiler gets: no CPATH, no index settings, no token.
_PASSED_VARIABLES = ("PATH",)


@dataclass
class Effort:
    """The cost of a compilation.

    Attributes:
        seconds: The time of each compiled file, by file name.
        peak: The most memory that one compiler took, in bytes.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peak: int = 0


def compiler_environment(scratch: Path) -> dict[str, str]:
    """Return the environment variables of a compiler."""
    passed = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    return passed | {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "315532800", "TMPDIR": str(scratch)}


def default_job_count() -> int:
    """Return the number of compilers for which this machine has cores and free memory."""
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
    partial_object: Path
    messages: Path


def compile_all(
    compiler: Compiler,
    sources: Sequence[Path],
    flags: Sequence[str],
    objects_folder: Path,
    scratch: Path,
    *,
    at_once: int,
) -> tuple[list[Path], Effort]:
    """Compile every source whose object is missing.

    The largest sources come first, so that the last compiler does not run alone for long. The
    compilers have no network if this machine allows to cut it off.

    Args:
        compiler: The compiler.
        sources: The C++ files, with names that are unique.
        flags: The options for each file.
        objects_folder: The folder of the object files, which is kept after a failure.
        scratch: A folder for temporary files.
        at_once: The number of compilers that run at the same time.

    Returns:
        The object files in the order of `sources`, and the cost of the compilation.

    Raises:
        UserError: A file does not compile, or a compiler was killed.
    """
    effort, running = Effort(), list[_Running]()
    waiting = sorted(
        (source for source in sources if not _object_path(objects_folder, source.name).is_file()),
        key=lambda source: (-source.stat().st_size, source.name),
    )
    total = len(waiting)
    if len(sources) > total:
        log.info(f"{len(sources) - total} of {len(sources)} files were compiled before")
    for leftover in objects_folder.glob(".tmp-*"):
        leftover.unlink()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(
                    _start_compiler(compiler, waiting.pop(0), flags, objects_folder, scratch)
                )
            time.sleep(0.05)
            for job in list(running):
                usage = _poll_compiler(job)
                if usage is None:
                    continue
                running.remove(job)
                _finish_compiler(job, objects_folder, usage, effort)
                log.info(
                    f"  {len(effort.seconds)}/{total} {job.name}: "
                    f"{effort.seconds[job.name]:.0f} s, {usage.ru_maxrss / 1e6:.1f} GB"
                )
    finally:
        for job in running:
            _kill_compiler(job)
    return [_object_path(objects_folder, source.name) for source in sources], effort


def _object_path(objects_folder: Path, source_name: str) -> Path:
    return objects_folder / f"{source_name}.o"


def _poll_compiler(job: _Running) -> resource.struct_rusage | None:
    """Return the resources that a compiler has used; None while it runs."""
    pid, status, usage = os.wait4(job.process.pid, os.WNOHANG)
    if not pid:
        return None
    # os.wait4 has reaped the process, so Popen must not wait for it again.
    job.process.returncode = os.waitstatus_to_exitcode(status)
    return usage


def _kill_compiler(job: _Running) -> None:
    with contextlib.suppress(OSError):
        os.killpg(job.process.pid, signal.SIGKILL)
    job.process.wait()
    job.partial_object.unlink(missing_ok=True)


def _start_compiler(
    compiler: Compiler, source: Path, flags: Sequence[str], objects_folder: Path, scratch: Path
) -> _Running:
    # With the process id, because compilers of a killed build may still be running.
    partial_object = objects_folder / f".tmp-{os.getpid()}-{source.name}.o"
    messages = scratch / f"{source.name}.messages"
    # The seed replaces the random numbers in the names that g++ gives to local symbols.
    argv = [
        *sdist_building.network_isolation_prefix(),
        compiler.program,
        "-c",
        *flags,
        f"-frandom-seed={source.name}",
        str(source),
        "-o",
        str(partial_object),
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
    return _Running(source.name, process, time.monotonic(), partial_object, messages)


def _finish_compiler(
    job: _Running, objects_folder: Path, usage: resource.struct_rusage, effort: Effort
) -> None:
    if job.process.returncode:
        text = job.messages.read_text(encoding="utf-8", errors="replace")
        if "Killed" in text or job.process.returncode < 0:
            raise UserError(
                "the compiler was killed, probably because memory ran out",
                job.name,
                "free some memory or give --jobs 1, then run again: compiled files are kept",
            )
        line = next(
            (line.rpartition("/")[2] for line in text.splitlines() if "error" in line), text
        )
        raise UserError(
            f"does not compile: {output_end(line)}",
            job.name,
            "check the versions in the locks against the requirements of this release",
            kind=FAILED,
        )
    # Another build may compile the same file at the same time.
    os.replace(job.partial_object, _object_path(objects_folder, job.name))
    effort.seconds[job.name] = round(time.monotonic() - job.start, 1)
    effort.peak = max(effort.peak, usage.ru_maxrss * 1024)
