"""Time functions on a device: compiled once, warmed up, called in turns, with a median and spread.

One call of a compiled program computes a function several times, each time on other arrays. XLA
can then neither leave a computation out nor join two, and the kernels follow each other as in a
training step. Several programs are queued before the host waits, so that the time of a launch by
the host does not count if the device is busy for longer.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import jax

from rosetta.bench import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MOST_CALLS = 200


class DeviceFunction:
    """A function that is compiled for several sets of arguments. A call runs it and waits.

    Args:
        function: The function; its result is a tree of arrays.
        argument_sets: The arguments of each computation in one call of the program.
        turn_seconds: How long a turn should take.
        compiler_options: Flags of XLA, without dashes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        argument_sets: Sequence[tuple[Any, ...]],
        *,
        turn_seconds: float,
        compiler_options: Mapping[str, Any] | None = None,
    ) -> None:
        def compute_all(sets: Sequence[tuple[Any, ...]]) -> list[Any]:
            return [function(*arguments) for arguments in sets]

        self._sets = list(argument_sets)
        lowered = jax.jit(compute_all).lower(self._sets)
        self.compiled = lowered.compile(compiler_options=dict(compiler_options or {}))
        jax.block_until_ready(self.compiled(self._sets))  # warms up
        start = time.perf_counter()
        jax.block_until_ready(self.compiled(self._sets))
        seconds = time.perf_counter() - start
        self.calls = max(1, min(_MOST_CALLS, math.ceil(turn_seconds / seconds)))

    @property
    def computations(self) -> int:
        """How often one turn computes the function."""
        return self.calls * len(self._sets)

    def __call__(self) -> None:
        """Run a turn, and wait until its work is done."""
        result = None
        for _ in range(self.calls):
            result = self.compiled(self._sets)
        jax.block_until_ready(result)


def time_functions(
    functions: Mapping[str, DeviceFunction], turns: int
) -> dict[str, timing.Timings]:
    """Return the seconds of one computation of each function, which take turns."""
    per_turn = timing.time_in_turns(functions, turns)
    return {
        name: timing.Timings(
            tuple(seconds / functions[name].computations for seconds in timings.seconds)
        )
        for name, timings in per_turn.items()
    }
