"""Profile the steps of PROFILE_STEPS=A:B, and list the ten operations that took longest.

The profile is a trace of JAX's profiler, with XLA's text and memory use of the step. Under Nsight
Systems, the steps are a capture range of its report instead, since CUDA allows one profiler at a
time.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import log
from rosetta.core.value_parsing import is_address
from rosetta.health.error_text import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOP_COUNT = 10
_NSYS_VARIABLE = "NSYS_PROFILING_SESSION_ID"  # nsys sets it for the processes that it profiles


class StepProfiler:
    """Profiles some steps of a process.

    Args:
      folder: of the run. The profile goes into its `profile`; for an object store, into that of the
        working folder.
      steps: the first step, and the step after the last; None: there is no profile.
      rank: of this process; rank 0 prints the table.
    """

    def __init__(self, folder: str, steps: tuple[int, int] | None, rank: int) -> None:
        self._steps, self._rank = steps, rank
        self._folder = (Path.cwd() if is_address(folder) else Path(folder)) / "profile"
        self._is_running = False

    def is_due(self, step: int) -> bool:
        """Return whether the profile begins or ends before this step.

        If so, the dispatched steps should be done before `toggle` is called.
        """
        if self._steps is None:
            return False
        first, end = self._steps
        return step >= end if self._is_running else first <= step < end

    def close(self) -> None:
        """End a profile that is running, at the end of the run."""
        if self._is_running:
            self.toggle()

    def toggle(self, program: Callable[[], Any] | None = None) -> None:
        """Begin the profile, or end it and print its table.

        An error, for example of a full disk, is only a warning, and the run goes on.

        Args:
          program: returns the compiled step (jax.stages.Compiled), whose text and memory use are
            written; None if there is none.
        """
        try:
            if self._is_running:
                self._end(program)
            else:
                self._begin()
        except Exception as error:  # noqa: BLE001 (no error of a profile is worth a run)
            self._is_running, self._steps = False, None
            log.warn(
                f"there is no profile of these steps: {type(error).__name__}: {first_line(error)}",
            )

    def _begin(self) -> None:
        """Begin the profile."""
        import jax

        self._is_running = True
        self._folder.mkdir(parents=True, exist_ok=True)
        if os.environ.get(_NSYS_VARIABLE):
            _call_cuda_driver("cuProfilerStart")
        else:
            jax.profiler.start_trace(str(self._folder), **_make_trace_options(jax.profiler))

    def _end(self, program: Callable[[], Any] | None) -> None:
        """End the profile, write its files and print its table; see `toggle`."""
        import jax

        under_nsys = bool(os.environ.get(_NSYS_VARIABLE))
        self._is_running, self._steps = False, None
        if under_nsys:
            _call_cuda_driver("cuProfilerStop")
        else:
            jax.profiler.stop_trace()
        self._write_file("memory.prof", jax.profiler.device_memory_profile)
        if program is not None and self._rank == 0:
            self._write_file("step.hlo.txt", lambda: program().as_text().encode())
            self._write_file("step.memory.txt", lambda: str(program().memory_analysis()).encode())
        if self._rank:
            return
        log.info(
            f"the profile is in {self._folder}"
            + (", and in Nsight Systems' report" if under_nsys else ""),
        )
        traces = sorted(self._folder.glob("plugins/profile/*/*.trace.json.gz"))
        if traces and not under_nsys:
            trace = json.loads(gzip.decompress(traces[-1].read_bytes()))
            for line in format_top_operations(trace["traceEvents"]):
                log.info(line)

    def _write_file(self, name: str, make_content: Callable[[], bytes]) -> None:
        """Write a file of the profile; an error is only a warning."""
        try:
            (self._folder / name).write_bytes(make_content())
        except Exception as error:  # noqa: BLE001 (not every platform can make each file)
            log.warn(
                f"profile: no {name}: {type(error).__name__}: {first_line(error)}",
            )


def _make_trace_options(profiler: Any) -> dict[str, Any]:
    """Return arguments that leave Python's calls out of the trace, where they would fill it.

    jax 0.4.26 does not have this option.
    """
    if not hasattr(profiler, "ProfileOptions"):
        return {}
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0
    return {"profiler_options": options}


def format_top_operations(events: Iterable[dict[str, Any]]) -> list[str]:
    """Return a table of the operations that took longest.

    Args:
      events: of a trace that JAX wrote. Times are in microseconds, and XLA's events have an
        `hlo_op`.
    """
    microseconds: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for event in events:
        args = event.get("args") or {}
        if event.get("ph") == "X" and args.get("hlo_op"):
            operation = (args["hlo_op"], args.get("hlo_module", ""))
            microseconds[operation] += float(event.get("dur", 0.0))
            calls[operation] += 1
    total = sum(microseconds.values())
    if not total:
        return ["profile: the trace has no operation of XLA's"]
    longest = sorted(microseconds, key=lambda operation: -microseconds[operation])[:TOP_COUNT]
    rows = [f"{'ms':>10}  {'share':>6}  {'calls':>6}  operation"]
    for name, module in longest:
        time = microseconds[name, module]
        share = 100 * time / total
        count = calls[name, module]
        rows.append(f"{time / 1000:10.2f}  {share:5.1f}%  {count:6d}  {name} ({module})")
    return rows


def _call_cuda_driver(name: str) -> None:
    """Call a function of CUDA's driver without arguments; an error is only a warning."""
    try:
        getattr(ctypes.CDLL("libcuda.so.1"), name)()
    except (OSError, AttributeError) as error:
        log.warn(f"profile: Nsight Systems is not told of the steps: {error}")
