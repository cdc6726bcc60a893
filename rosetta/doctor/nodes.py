"""Check the nodes of a Slurm job: their names, their clocks, and the GPUs of their processes."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from rosetta.doctor import slurm_job
from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.doctor.machine import Machine

MOST_SKEW = 1.0  # seconds, beyond the time that reading the clocks took
_SHOWN = 5  # names in a message


def check(machine: Machine, named_hosts: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield the problems between the nodes of a job.

    Args:
      machine: The machine.
      named_hosts: The nodes to check, instead of those of the Slurm job.
    """
    yield from _check_processes(machine)
    variable = slurm_job.find_node_list_variable(machine.environment)
    hosts = list(named_hosts) or slurm_job.read_job_hosts(machine.environment)
    if variable and not hosts:
        yield Finding(
            "node-list-unread",
            WARNING,
            "is not a valid list of hosts",
            variable,
            "find out what sets the variable: Slurm writes a list such as n[1-4,7],m1",
        )
    if machine.quick or not hosts:
        return
    yield from _check_host_names(machine, hosts, "--hosts" if named_hosts else variable)
    # One process reads the clocks of all nodes.
    is_first_process = machine.environment.get("SLURM_PROCID", "0") == "0"
    if not named_hosts and len(hosts) > 1 and is_first_process:
        yield from _check_clocks(machine, hosts)


def _check_host_names(machine: Machine, hosts: Sequence[str], where: str) -> Iterator[Finding]:
    """Check that the names of the nodes resolve, and not to this node itself."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(32) as pool:
        addresses = dict(zip(hosts, pool.map(machine.resolve_host, hosts)))  # noqa: B905 (Python 3.9 has no strict=)
    unresolved = [host for host in hosts if not addresses[host]]
    if unresolved:
        yield Finding(
            "host-unresolvable",
            BLOCKER,
            f"no address is known for {_shorten_list(unresolved)}",
            where,
            "add the names to DNS or /etc/hosts; in a container, mount /etc/hosts and "
            "/etc/resolv.conf of the host",
        )
    own_names = {
        machine.environment.get("SLURMD_NODENAME", ""),
        machine.read_text("/proc/sys/kernel/hostname"),
    }
    own_names |= {name.partition(".")[0] for name in own_names}
    misdirected = [
        host
        for host in hosts
        if _is_loopback(addresses[host]) and host.partition(".")[0] not in own_names
    ]
    if misdirected and len(hosts) > 1:
        yield Finding(
            "host-is-loopback",
            BLOCKER,
            f"{_shorten_list(misdirected)} resolves to this machine itself, where processes of "
            "other nodes would look for the coordinator",
            where,
            "remove the lines with 127.* for these names from /etc/hosts",
        )


def _is_loopback(addresses: Sequence[str]) -> bool:
    """Return whether there are addresses, and all of them are this machine's own."""
    if not addresses:
        return False
    return all(address.startswith("127.") or address == "::1" for address in addresses)


def _check_clocks(machine: Machine, hosts: Sequence[str]) -> Iterator[Finding]:
    """Check that the clocks of the nodes agree with this node's."""
    before = time.time()
    times = _read_clocks(machine, len(hosts))
    after = time.time()
    if len(times) < len(hosts):
        yield Finding(
            "clocks-not-asked",
            NOTE,
            "the clocks of the nodes were not compared: srun did not answer for all of them",
            "Slurm job",
            "run the command where srun works, such as in the batch script",
        )
        return
    # All clocks were read between `before` and `after`. A time outside is wrong by at least the
    # distance.
    skews = {
        hosts[task]: max(before - clock, clock - after)
        for task, clock in times.items()
        if task < len(hosts)
    }
    wrong = {host: skew for host, skew in skews.items() if skew > MOST_SKEW}
    if wrong:
        yield Finding(
            "clocks-differ",
            WARNING,
            f"{_shorten_list(list(wrong))}: at least {max(wrong.values()):.0f} s off the clock of "
            "this node",
            "Slurm job",
            "let all nodes follow the same time server (chronyc tracking): the newest checkpoint "
            "is found by its time",
        )


def _read_clocks(machine: Machine, node_count: int) -> dict[int, float]:
    """Return the time of each node in seconds, by the number of its task; {} if srun fails."""
    argv = [
        "srun",
        "--overlap",
        f"--nodes={node_count}",
        f"--ntasks={node_count}",
        "--ntasks-per-node=1",
        "--label",
        "--",
        "date",
        "+%s.%N",
    ]
    result = machine.run_command(argv, 30)
    if result is None or result.status:
        return {}
    lines = re.findall(r"^ *(\d+): (\d+\.\d+)$", result.out, re.MULTILINE)
    return {int(task): float(seconds) for task, seconds in lines}


def _check_processes(machine: Machine) -> Iterator[Finding]:
    """Check that each process of a node finds a GPU.

    JAX gives process n of a node its GPU n, unless JAX_LOCAL_DEVICE_IDS is set.
    """
    process_count = slurm_job.count_node_tasks(machine.environment)
    gpu_count = len(machine.gpus)
    if process_count < 2 or not gpu_count or machine.on_cpu:
        return
    if machine.environment.get("JAX_LOCAL_DEVICE_IDS"):
        return
    if process_count > gpu_count:
        yield Finding(
            "gpus-for-processes",
            BLOCKER,
            f"this node has {process_count} processes, but each sees only {gpu_count} GPU(s)",
            "Slurm step",
            "start one process for each GPU, without --gpus-per-task and --gpu-bind: each process "
            "must see all GPUs of its node",
        )
    elif process_count < gpu_count:
        yield Finding(
            "gpus-idle",
            WARNING,
            f"this node has {gpu_count} GPUs, but only {process_count} processes: "
            f"{gpu_count - process_count} GPU(s) stay idle",
            "Slurm step",
            f"set --ntasks-per-node={gpu_count}",
        )


def _shorten_list(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    hidden = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {hidden} more" if hidden > 0 else shown
