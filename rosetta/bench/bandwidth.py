"""How fast devices talk: a JAX program for each pair of a node, for each pair of nodes, and for all
of them, timed by each process for itself.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import DIFFERS, FAILED, MISSING, UNSUPPORTED, UserError
from rosetta.core.value_parsing import asks_for_cpu, parse_whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

REPEATS = 10  # that a program sends its bytes: one start for all of them
TURNS = 5  # that a program is timed; the median counts
_HOST_NAME_BYTES = 64  # bytes of a host's name


@dataclass(frozen=True)
class PairRate:
    """What was measured between two: `between` are their names, `rate` GB/s in each direction, both
    at once.
    """

    between: tuple[str, str]
    rate: float


@dataclass(frozen=True)
class Measurement:
    """All that was measured.

    Attributes:
      devices: of all nodes; kind: of device.
      nodes: their names.
      size: bytes that a device sends.
      pairs: of devices of a node; empty where each node has one.
      links: of nodes, each device with that of its number on the other; empty for one node.
      all_reduce, all_gather: of all devices, GB/s of a device: 2 (n - 1) / n x size / seconds, and
        (n - 1) x size / seconds.
    """

    devices: int
    kind: str
    nodes: tuple[str, ...]
    size: int
    pairs: tuple[PairRate, ...]
    links: tuple[PairRate, ...]
    all_reduce: float
    all_gather: float


def schedule_pairs(number: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of so many, the smaller first, in as few rounds as there can be, none of
    which has one twice (the circle method of tournaments).
    """
    if number < 2:
        return []
    around = [*range(number), *([-1] if number % 2 else [])]
    found = []
    for _ in range(len(around) - 1):
        half = len(around) // 2
        found.append(
            [
                (min(both), max(both))
                for both in zip(around[:half], reversed(around[half:]), strict=True)
                if -1 not in both
            ]
        )
        around = [around[0], around[-1], *around[1:-1]]
    return found


def join_processes(environment: Mapping[str, str]) -> None:
    """Join the processes of a Slurm step, or those that JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES
    and JAX_PROCESS_ID name; alone otherwise.

    Raises:
      UserError: they do not find each other, there is no JAX, or no GPU, and JAX_PLATFORMS does not
        say cpu.
    """
    try:
        import jax
    except ModuleNotFoundError as error:
        raise UserError(
            f"there is no {error.name} here",
            "doctor --nccl",
            "run it in a baked environment",
            kind=MISSING,
            value=error.name,
        ) from None
    if not hasattr(jax, "shard_map"):
        raise UserError(
            f"JAX {jax.__version__} is too old for it",
            "doctor --nccl",
            "use an environment of t5x or pax",
            kind=UNSUPPORTED,
            value=jax.__version__,
        )
    on_cpu = asks_for_cpu(environment.get("JAX_PLATFORMS", ""))
    address = environment.get("JAX_COORDINATOR_ADDRESS")
    count, rank = environment.get("JAX_NUM_PROCESSES"), environment.get("JAX_PROCESS_ID")
    try:
        if address and count and rank:
            jax.distributed.initialize(
                address,
                parse_whole_number("JAX_NUM_PROCESSES", count),
                parse_whole_number("JAX_PROCESS_ID", rank, minimum=0),
            )
        elif environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
            jax.distributed.initialize()  # JAX reads Slurm's variables
        found = jax.devices()
    except (RuntimeError, ValueError) as error:
        raise UserError(
            next(iter(str(error).splitlines()), type(error).__name__),
            "doctor --nccl",
            (
                "see what `rosetta doctor` says of this machine, and start one process a GPU or "
                "one a node"
            ),
            kind=FAILED,
        ) from None
    if found[0].platform != "gpu" and not on_cpu:
        raise UserError(
            "JAX sees no GPU",
            "doctor --nccl",
            "start it where the GPUs are; JAX_PLATFORMS=cpu measures the CPU's devices",
            kind=MISSING,
        )


def list_process_hosts() -> list[str]:
    """Return each process's host; two processes of one host have one node."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    name = (os.environ.get("SLURMD_NODENAME") or socket.gethostname()).encode()[:_HOST_NAME_BYTES]
    if jax.process_count() == 1:
        return [name.decode(errors="replace")]
    every = np.asarray(
        multihost_utils.process_allgather(
            np.frombuffer(name.ljust(_HOST_NAME_BYTES, b"\0"), np.uint8)
        )
    )
    return [
        bytes(each).rstrip(b"\0").decode(errors="replace")
        for each in every.reshape(-1, _HOST_NAME_BYTES)
    ]


def measure_all_devices(
    hosts: Sequence[str], size: int, say: Callable[[str], None] = lambda _: None
) -> Measurement:
    """Measure between all devices.

    Args:
      hosts: of each process.
      size: bytes that a device sends each time.
      say: takes a line about what comes next.

    Raises:
      UserError: there is one device only, or nodes do not have as many each.
    """
    import jax

    return measure_devices(
        jax.devices(), [hosts[each.process_index] for each in jax.devices()], size, say
    )


def measure_devices(
    devices: Sequence[Any],
    hosts: Sequence[str],
    size: int,
    say: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """As `measure`, of these devices, each on its host.

    Devices of one process that are said to be of several nodes are timed as one.
    """
    if len(devices) < 2:
        raise UserError(
            "there is one device, and nothing to measure between",
            "doctor --nccl",
            "give it more GPUs, or start it with srun on several nodes",
            kind=MISSING,
        )
    names = tuple(dict.fromkeys(hosts))
    inside = [[place for place, host in enumerate(hosts) if host == name] for name in names]
    if len({len(each) for each in inside}) > 1:
        raise UserError(
            "nodes have different numbers of devices: "
            + ", ".join(f"{name} {len(each)}" for name, each in zip(names, inside, strict=True)),
            "doctor --nccl",
            "give it as many on each node",
            kind=DIFFERS,
        )
    bench = _TransferPrograms(devices, size)
    local = len(inside[0])
    say(
        f"{len(devices)} devices on {len(names)} node(s): {local * (local - 1) // 2} pairs of "
        f"a node, {len(schedule_pairs(len(names)))} rounds between nodes, then all"
    )
    pairs = list[PairRate]()
    for turn in schedule_pairs(local):
        for a, b in turn:  # one after the other within a node, all nodes at once
            seconds = bench.exchange([(each[a], each[b]) for each in inside])
            pairs += [
                PairRate(
                    (f"{name}:{a}", f"{name}:{b}"),
                    bench.rate(max(seconds[each[a]], seconds[each[b]])),
                )
                for name, each in zip(names, inside, strict=True)
            ]
    links = list[PairRate]()
    for turn in schedule_pairs(len(names)):
        seconds = bench.exchange(
            [both for a, b in turn for both in zip(inside[a], inside[b], strict=True)]
        )
        links += [
            PairRate(
                (names[a], names[b]),
                bench.rate(max(seconds[each] for each in (*inside[a], *inside[b]))),
            )
            for a, b in turn
        ]
    count = len(devices)
    reduced, gathered = bench.all_reduce(), bench.all_gather()
    return Measurement(
        count,
        devices[0].device_kind,
        names,
        size,
        tuple(sorted(pairs, key=lambda each: each.between)),
        tuple(links),
        bench.rate(reduced) * 2 * (count - 1) / count,
        bench.rate(gathered) * (count - 1),
    )


class _TransferPrograms:
    """Programs over devices in a line, each with `size` bytes of its own."""

    def __init__(self, devices: Sequence[Any], size: int) -> None:
        import jax
        import numpy as np

        self.devices, self.size = devices, size
        self.mesh = jax.sharding.Mesh(np.array(devices), ("all",))
        where = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec("all"))
        self.data = jax.jit(
            lambda: jax.numpy.ones((len(devices), max(size // 4, 1)), jax.numpy.float32),
            out_shardings=where,
        )()
        self.meet = self._compiled(lambda x: jax.lax.psum(x[:, :1], "all"), 1)

    def rate(self, seconds: float) -> float:
        """GB/s of `size` bytes in so many seconds."""
        return self.size / seconds / 1e9

    def exchange(self, pairs: Sequence[tuple[int, int]]) -> list[float]:
        """Return seconds of each device for sending its bytes to the other one of its pair, and
        having those; all pairs at once.
        """
        import jax

        both = [(a, b) for a, b in pairs] + [(b, a) for a, b in pairs]
        return self._gathered(
            self._timed(self._compiled(lambda x: jax.lax.ppermute(x, "all", both), REPEATS))
            / REPEATS
        )

    def all_reduce(self) -> float:
        """Return seconds of a sum over all."""
        import jax

        count = len(self.devices)
        return max(
            self._gathered(
                self._timed(self._compiled(lambda x: jax.lax.psum(x, "all") / count, REPEATS))
                / REPEATS
            )
        )

    def all_gather(self) -> float:
        """Return seconds of having the bytes of all."""
        import jax

        # What is gathered is used whole, or XLA would gather less.
        return max(
            self._gathered(
                self._timed(
                    self._compiled(lambda x: jax.lax.all_gather(x, "all").max(axis=0), REPEATS)
                )
                / REPEATS
            )
        )

    def _compiled(self, once: Callable[[Any], Any], times: int) -> Any:
        import jax

        spec = jax.sharding.PartitionSpec("all")

        def program(x: Any) -> Any:
            return (
                once(x)
                if times == 1
                else jax.lax.fori_loop(0, times, lambda _, each: once(each), x)
            )

        made = jax.jit(
            jax.shard_map(program, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False)
        )
        return made.lower(self.data).compile()

    def _timed(self, program: Any) -> float:
        """Seconds of this process: the median of some turns, each begun by all at once, after one
        that is not counted.
        """
        taken = list[float]()
        for _ in range(TURNS + 1):
            self.meet(self.data).block_until_ready()
            begin = time.perf_counter()
            program(self.data).block_until_ready()
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken[1:])

    def _gathered(self, seconds: float) -> list[float]:
        """Return the seconds of each device's process."""
        import jax
        import numpy as np
        from jax.experimental import multihost_utils

        every = (
            np.asarray(multihost_utils.process_allgather(np.float32(seconds))).reshape(-1)
            if jax.process_count() > 1
            else np.array([seconds])
        )
        return [float(every[each.process_index if len(every) > 1 else 0]) for each in self.devices]
