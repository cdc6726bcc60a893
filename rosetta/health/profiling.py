"""PROFILE_STEPS=A:B: what the devices did in those steps, as JAX's profiler and XLA tell it, and
the ten operations that took longest.

Under Nsight Systems the steps are a capture range of it instead (CUDA takes one profiler at a
time).
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
from rosetta.health import watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOP_COUNT = 10
_NSYS_VARIABLE = "NSYS_PROFILING_SESSION_ID"  # what nsys sets for the processes that it watches


class StepProfiler:
    """Traces a process' steps.

    Args:
      folder: of the run; what is found goes into its `profile`, an object store's into that of the
        working folder.
      steps: (first, after the last); None: none are.
      rank: of this process: rank 0 says the table.
    """

    def __init__(self, folder: str, steps: tuple[int, int] | None, rank: int) -> None:
        self._steps, self._rank = steps, rank
        self._folder = (Path.cwd() if is_address(folder) else Path(folder)) / "profile"
        self._running = False

    def due(self, step: int) -> bool:
        """Return whether tracing begins or ends before this step: steps that were given should be
        done by then.
        """
        return self._steps is not None and (
            step >= self._steps[1] if self._running else self._steps[0] <= step < self._steps[1]
        )

    def close(self) -> None:
        """End it with the run."""
        if self._running:
            self.turn()

    def turn(self, program: Callable[[], Any] | None = None) -> None:
        """Begin to trace, or end it and say what was found. What goes wrong in it, as on a full
        disk, is said and ends no run.

        Args:
          program: gives the compiled step (jax.stages.Compiled), whose text and memory are written
            down; None where there is no such.
        """
        try:
            self._turn(program)
        except Exception as error:  # noqa: BLE001 (see above)
            self._running, self._steps = False, None
            log.warn(
                f"there is no profile of these steps: {type(error).__name__}: "
                f"{watchdog.first_line(error)}",
                terminal=True,
            )

    def _turn(self, program: Callable[[], Any] | None) -> None:
        import jax

        nsys = bool(os.environ.get(_NSYS_VARIABLE))
        if not self._running:
            self._running = True
            self._folder.mkdir(parents=True, exist_ok=True)
            if nsys:
                _call_cuda_driver("cuProfilerStart")
            else:
                jax.profiler.start_trace(str(self._folder), **_make_trace_options(jax.profiler))
            return
        self._running, self._steps = False, None
        if nsys:
            _call_cuda_driver("cuProfilerStop")
        else:
            jax.profiler.stop_trace()
        self._keep("memory.prof", jax.profiler.device_memory_profile)
        if program is not None and self._rank == 0:
            self._keep("step.hlo.txt", lambda: program().as_text().encode())
            self._keep("step.memory.txt", lambda: str(program().memory_analysis()).encode())
        if self._rank:
            return
        log.info(
            f"the profile is in {self._folder}"
            + (", and in Nsight Systems' report" if nsys else ""),
            terminal=True,
        )
        found = sorted(self._folder.glob("plugins/profile/*/*.trace.json.gz"))
        if found and not nsys:
            for line in format_top_operations(
                json.loads(gzip.decompress(found[-1].read_bytes()))["traceEvents"]
            ):
                log.info(line, terminal=True)

    def _keep(self, name: str, make: Callable[[], bytes]) -> None:
        try:
            (self._folder / name).write_bytes(make())
        except Exception as error:  # noqa: BLE001 (not every platform has each of them, and none is worth a run)
            log.warn(
                f"profile: no {name}: {type(error).__name__}: {watchdog.first_line(error)}",
                terminal=True,
            )


def _make_trace_options(profiler: Any) -> dict[str, Any]:
    """No calls of Python's, which fill a trace so that the steps no longer fit; jax 0.4.26 has no
    such option.
    """
    if not hasattr(profiler, "ProfileOptions"):
        return {}
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0
    return {"profiler_options": options}


def format_top_operations(events: Iterable[dict[str, Any]]) -> list[str]:
    """Return the operations that took longest, of the events of a trace as JAX writes it: times in
    microseconds, each of XLA's with its `hlo_op`.
    """
    spent: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for event in events:
        args = event.get("args") or {}
        if event.get("ph") == "X" and args.get("hlo_op"):
            key = (args["hlo_op"], args.get("hlo_module", ""))
            spent[key] += float(event.get("dur", 0.0))
            calls[key] += 1
    whole = sum(spent.values())
    if not whole:
        return ["profile: it holds no operation of XLA's"]
    longest = sorted(spent, key=lambda each: -spent[each])[:TOP_COUNT]
    rows = [
        (
            f"{spent[key] / 1000:10.2f}  {100 * spent[key] / whole:5.1f}%  {calls[key]:6d}  "
            f"{key[0]} ({key[1]})"
        )
        for key in longest
    ]
    return [f"{'ms':>10}  {'share':>6}  {'calls':>6}  operation", *rows]


def _call_cuda_driver(name: str) -> None:
    try:
        getattr(ctypes.CDLL("libcuda.so.1"), name)()
    except (OSError, AttributeError) as error:
        log.warn(f"profile: Nsight Systems is not told of the steps: {error}", terminal=True)
