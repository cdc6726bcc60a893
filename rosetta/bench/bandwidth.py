"""Measure how fast devices exchange data: each pair of devices of a node, each pair of nodes, and
all devices together.

`rosetta doctor --nccl` uses this module. Every process of the job runs the same JAX programs, and
times them by its own clock.
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

# A program transfers its data this many times, so that the cost of starting it hardly counts.
REPEATS = 10
# A program is timed this many times. The median counts.
TURNS = 5
# Processes exchange the names of their hosts in arrays of this size.
_HOST_NAME_BYTES = 64
_WHERE = "doctor --nccl"


@dataclass(frozen=True)
class PairRate:
    """The measured rate of one pair of devices or nodes.

    Attributes:
        between: The names of the two.
        rate: GB/s in each direction, while both directions are in use.
    """

    between: tuple[str, str]
    rate: float


@dataclass(frozen=True)
class Measurement:
    """The result of a measurement. The field names are the keys of its JSON document.

    Attributes:
        devices: The number of devices on all nodes.
        kind: The kind of device, as JAX names it.
        nodes: The names of the nodes.
        size: The bytes that a device sends in one transfer.
        pairs: The pairs of devices within a node; empty if each node has one device.
        links: The pairs of nodes; empty for one node. Each device exchanges data with the device
            of the same number on the other node.
        all_reduce: GB/s of each device in an all-reduce over n devices,
            2 (n - 1) / n x size / seconds.
        all_gather: GB/s of each device in an all-gather over n devices, (n - 1) x size / seconds.
    """

    devices: int
    kind: str
    nodes: tuple[str, ...]
    size: int
    pairs: tuple[PairRate, ...]
    links: tuple[PairRate, ...]
    all_reduce: float
    all_gather: float


def schedule_pairs(count: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of the numbers below `count`, in as few rounds as possible.

    No number is twice in one round. This is the circle method of round-robin tournaments: the
    first number stays in its place, and the others move on by one place after each round.

    Returns:
        The rounds. In each pair the smaller number comes first.
    """
    if count < 2:
        return []
    idle = -1  # the partner of the number that pauses, if the count is odd
    circle = [*range(count), *([idle] if count % 2 else [])]
    half = len(circle) // 2
    rounds = []
    for _ in range(len(circle) - 1):
        opposite = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in opposite if idle not in pair])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def join_processes(environment: Mapping[str, str]) -> None:
    """Start JAX, and connect this process with the other processes of the job.

    The processes are those that JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID
    describe, or those of the Slurm step. Without both, this process measures alone.

    Args:
        environment: The environment variables.

    Raises:
        UserError: JAX is missing or too old, the processes cannot connect, or there is no GPU and
            JAX_PLATFORMS does not ask for the CPU.
    """
    try:
        import jax
    except ModuleNotFoundError as error:
        raise UserError(
            f"the Python package {error.name} is not installed",
            _WHERE,
            "run the command in a baked environment",
            kind=MISSING,
            value=error.name,
        ) from None
    if not hasattr(jax, "shard_map"):
        raise UserError(
            f"JAX {jax.__version__} is too old for this measurement",
            _WHERE,
            "use an environment of t5x or pax",
            kind=UNSUPPORTED,
            value=jax.__version__,
        )
    address = environment.get("JAX_COORDINATOR_ADDRESS")
    count = environment.get("JAX_NUM_PROCESSES")
    rank = environment.get("JAX_PROCESS_ID")
    try:
        if address and count and rank:
            jax.distributed.initialize(
                address,
                parse_whole_number("JAX_NUM_PROCESSES", count),
                parse_whole_number("JAX_PROCESS_ID", rank, minimum=0),
            )
        elif environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
            jax.distributed.initialize()  # JAX reads Slurm's variables
        devices = jax.devices()
    except (RuntimeError, ValueError) as error:
        raise UserError(
            next(iter(str(error).splitlines()), type(error).__name__),
            _WHERE,
            "run `rosetta doctor` on this machine, and start one process per GPU or per node",
            kind=FAILED,
        ) from None
    if devices[0].platform != "gpu" and not asks_for_cpu(environment.get("JAX_PLATFORMS", "")):
        raise UserError(
            "JAX sees no GPU",
            _WHERE,
            "run the command on a machine with GPUs; JAX_PLATFORMS=cpu measures devices of the CPU",
            kind=MISSING,
        )


def list_process_hosts() -> list[str]:
    """Return the name of each process's host, by the number of the process.

    All processes must call this function. Processes with the same host belong to one node.
    """
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    name = (os.environ.get("SLURMD_NODENAME") or socket.gethostname()).encode()[:_HOST_NAME_BYTES]
    if jax.process_count() == 1:
        return [name.decode(errors="replace")]
    padded = np.frombuffer(name.ljust(_HOST_NAME_BYTES, b"\0"), np.uint8)
    gathered = np.asarray(multihost_utils.process_allgather(padded))
    return [
        bytes(host).rstrip(b"\0").decode(errors="replace")
        for host in gathered.reshape(-1, _HOST_NAME_BYTES)
    ]


def measure_all_devices(
    hosts: Sequence[str], size: int, say: Callable[[str], None] = lambda _: None
) -> Measurement:
    """Measure the rates between all devices that JAX sees.

    Args:
        hosts: The host of each process, by the number of the process.
        size: The bytes that a device sends in one transfer.
        say: Called with a line that describes the work to come.

    Raises:
        UserError: There is only one device, or the nodes have different numbers of devices.
    """
    import jax

    devices = jax.devices()
    return measure_devices(devices, [hosts[device.process_index] for device in devices], size, say)


def measure_devices(
    devices: Sequence[Any],
    hosts: Sequence[str],
    size: int,
    say: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Measure the rates between the given devices.

    If devices of one process are given different hosts, they still share that process's clock.

    Args:
        devices: The devices of JAX.
        hosts: The host of each device.
        size: The bytes that a device sends in one transfer.
        say: Called with a line that describes the work to come.

    Raises:
        UserError: There is only one device, or the nodes have different numbers of devices.
    """
    if len(devices) < 2:
        raise UserError(
            "there is only one device, so there is no other device to measure against",
            _WHERE,
            "give the command more GPUs, or start it with srun on several nodes",
            kind=MISSING,
        )
    nodes = _group_by_node(hosts)
    programs = _TransferPrograms(devices, size)
    per_node = len(next(iter(nodes.values())))
    say(
        f"{len(devices)} devices on {len(nodes)} node(s): {per_node * (per_node - 1) // 2} pairs "
        f"within a node, {len(schedule_pairs(len(nodes)))} rounds between nodes, then all devices"
    )
    pairs = _measure_within_nodes(programs, nodes, per_node)
    links = _measure_between_nodes(programs, nodes)
    count = len(devices)
    all_reduce_seconds, all_gather_seconds = programs.time_all_reduce(), programs.time_all_gather()
    return Measurement(
        count,
        devices[0].device_kind,
        tuple(nodes),
        size,
        tuple(sorted(pairs, key=lambda pair: pair.between)),
        tuple(links),
        programs.compute_rate(all_reduce_seconds) * 2 * (count - 1) / count,
        programs.compute_rate(all_gather_seconds) * (count - 1),
    )


def _group_by_node(hosts: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the devices of each node, by the node's name."""
    nodes: dict[str, list[int]] = {}
    for number, host in enumerate(hosts):
        nodes.setdefault(host, []).append(number)
    if len({len(numbers) for numbers in nodes.values()}) > 1:
        counts = ", ".join(f"{name} {len(numbers)}" for name, numbers in nodes.items())
        raise UserError(
            f"the nodes have different numbers of devices: {counts}",
            _WHERE,
            "give the command the same number of devices on each node",
            kind=DIFFERS,
        )
    return nodes


def _measure_within_nodes(
    programs: _TransferPrograms, nodes: Mapping[str, Sequence[int]], per_node: int
) -> list[PairRate]:
    """Measure the pairs of devices within a node: one pair after the other, all nodes at once."""
    rates = list[PairRate]()
    for turn in schedule_pairs(per_node):
        for a, b in turn:
            seconds = programs.time_exchange(
                [(numbers[a], numbers[b]) for numbers in nodes.values()]
            )
            for name, numbers in nodes.items():
                slower = max(seconds[numbers[a]], seconds[numbers[b]])
                rates.append(
                    PairRate((f"{name}:{a}", f"{name}:{b}"), programs.compute_rate(slower))
                )
    return rates


def _measure_between_nodes(
    programs: _TransferPrograms, nodes: Mapping[str, Sequence[int]]
) -> list[PairRate]:
    """Measure the pairs of nodes: all pairs of a round at once, with all their devices."""
    names = list(nodes)
    rates = list[PairRate]()
    for turn in schedule_pairs(len(nodes)):
        pairs: list[tuple[int, int]] = []
        for a, b in turn:
            pairs += zip(nodes[names[a]], nodes[names[b]], strict=True)
        seconds = programs.time_exchange(pairs)
        for a, b in turn:
            slowest = max(seconds[number] for number in (*nodes[names[a]], *nodes[names[b]]))
            rates.append(PairRate((names[a], names[b]), programs.compute_rate(slowest)))
    return rates


class _TransferPrograms:
    """The timed programs, over devices in a row that have `size` bytes each."""

    def __init__(self, devices: Sequence[Any], size: int) -> None:
        import jax
        import numpy as np

        self.devices, self.size = devices, size
        self.mesh = jax.sharding.Mesh(np.array(devices), ("all",))
        one_row_each = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec("all"))
        self.data = jax.jit(
            lambda: jax.numpy.ones((len(devices), max(size // 4, 1)), jax.numpy.float32),
            out_shardings=one_row_each,
        )()
        self.barrier = self._compile(lambda rows: jax.lax.psum(rows[:, :1], "all"), 1)

    def compute_rate(self, seconds: float) -> float:
        """Return GB/s for `size` bytes in the given seconds."""
        return self.size / seconds / 1e9

    def time_exchange(self, pairs: Sequence[tuple[int, int]]) -> list[float]:
        """Let the devices of each pair exchange their bytes, all pairs at once.

        Returns:
            Seconds of one transfer, of the process of each device.
        """
        import jax

        directions = [*pairs, *((b, a) for a, b in pairs)]
        return self._time_transfer(lambda rows: jax.lax.ppermute(rows, "all", directions))

    def time_all_reduce(self) -> float:
        """Return the seconds of one sum over all devices, of the slowest process."""
        import jax

        count = len(self.devices)
        return max(self._time_transfer(lambda rows: jax.lax.psum(rows, "all") / count))

    def time_all_gather(self) -> float:
        """Return the seconds of gathering the bytes of all devices, of the slowest process."""
        import jax

        # The program uses all of the gathered data: otherwise XLA would gather only a part.
        return max(self._time_transfer(lambda rows: jax.lax.all_gather(rows, "all").max(axis=0)))

    def _time_transfer(self, transfer: Callable[[Any], Any]) -> list[float]:
        """Return the seconds of one transfer, of the process of each device."""
        seconds = self._time_program(self._compile(transfer, REPEATS))
        return self._gather_seconds(seconds / REPEATS)

    def _compile(self, transfer: Callable[[Any], Any], repeats: int) -> Any:
        """Compile a program that does a transfer `repeats` times in turn."""
        import jax

        spec = jax.sharding.PartitionSpec("all")

        def program(rows: Any) -> Any:
            if repeats == 1:
                return transfer(rows)
            return jax.lax.fori_loop(0, repeats, lambda _, current: transfer(current), rows)

        mapped = jax.shard_map(
            program, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
        return jax.jit(mapped).lower(self.data).compile()

    def _time_program(self, program: Any) -> float:
        """Return the median seconds of this process; the first run warms up and does not count.

        All processes begin each run together.
        """
        seconds = list[float]()
        for _ in range(TURNS + 1):
            self.barrier(self.data).block_until_ready()
            start = time.perf_counter()
            program(self.data).block_until_ready()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[1:])

    def _gather_seconds(self, seconds: float) -> list[float]:
        """Return the seconds that each device's process measured."""
        import jax
        import numpy as np
        from jax.experimental import multihost_utils

        if jax.process_count() == 1:
            return [seconds] * len(self.devices)
        gathered = np.asarray(multihost_utils.process_allgather(np.float32(seconds))).reshape(-1)
        return [float(gathered[device.process_index]) for device in self.devices]
