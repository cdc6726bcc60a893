"""The nodes of a job: do their names resolve, do their clocks agree, and does each process find its
GPU?
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from rosetta.doctor import slurm_job
from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.doctor.machine import Machine

MOST_SKEW = 1.0  # seconds beyond what the question itself took
_SHOWN = 5  # names in a line


def check(machine: Machine, named: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield what is wrong between the nodes of the Slurm job that this runs in, or these."""
    yield from _check_processes(machine)
    environment = machine.environment
    listed = next(
        (
            name
            for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")
            if environment.get(name)
        ),
        "",
    )
    hosts = list(named) or slurm_job.read_job_hosts(environment)
    if listed and not hosts:
        yield Finding(
            "node-list-unread",
            WARNING,
            "it is no list of hosts",
            listed,
            "see who set it: Slurm writes it as in n[1-4,7],m1",
        )
    if machine.quick or not hosts:
        return
    yield from _check_host_names(machine, hosts, "--hosts" if named else listed)
    if (
        not named and len(hosts) > 1 and environment.get("SLURM_PROCID", "0") == "0"
    ):  # one process asks for all
        yield from _check_clocks(machine, hosts)


def _check_host_names(machine: Machine, hosts: Sequence[str], where: str) -> Iterator[Finding]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(32) as pool:
        found = dict(zip(hosts, pool.map(machine.addresses, hosts)))  # noqa: B905 (Python 3.9 has no strict=)
    missing = [host for host in hosts if not found[host]]
    if missing:
        do = (
            "add them to DNS or /etc/hosts; in a container, mount the host's /etc/hosts and "
            "/etc/resolv.conf"
        )
        yield Finding(
            "host-unresolvable",
            BLOCKER,
            f"no address is known for {_shorten_list(missing)}",
            where,
            do,
        )
    ours = {
        machine.environment.get("SLURMD_NODENAME", ""),
        machine.text("/proc/sys/kernel/hostname"),
    }
    ours |= {name.partition(".")[0] for name in ours}
    inside = [
        host
        for host in hosts
        if found[host] and all(each.startswith("127.") or each == "::1" for each in found[host])
    ]
    wrong = (
        [host for host in inside if host.partition(".")[0] not in ours] if len(hosts) > 1 else []
    )
    if wrong:
        do = (
            "take their lines with 127.* out of /etc/hosts: processes of other nodes would look "
            "for the coordinator on their own"
        )
        yield Finding(
            "host-is-loopback",
            BLOCKER,
            f"{_shorten_list(wrong)} resolves to this machine itself",
            where,
            do,
        )


def _check_clocks(machine: Machine, hosts: Sequence[str]) -> Iterator[Finding]:
    number = str(len(hosts))
    argv = [
        "srun",
        "--overlap",
        f"--nodes={number}",
        f"--ntasks={number}",
        "--ntasks-per-node=1",
        "--label",
        "--",
        "date",
        "+%s.%N",
    ]
    before = time.time()
    done = machine.run(argv, 30)
    after = time.time()
    read = (
        {
            int(task): float(stamp)
            for task, stamp in re.findall(r"^ *(\d+): (\d+\.\d+)$", done.out, re.MULTILINE)
        }
        if done and not done.status
        else {}
    )
    if len(read) < len(hosts):
        yield Finding(
            "clocks-not-asked",
            NOTE,
            "the clocks of its nodes were not compared: srun did not answer for all",
            "Slurm job",
            "run this where srun works, as in the batch script",
        )
        return
    # Each clock was read between `before` and `after` of ours: what lies outside, is off by at
    # least that much.
    off = {
        hosts[task]: max(before - stamp, stamp - after)
        for task, stamp in read.items()
        if task < len(hosts)
    }
    wrong = {host: seconds for host, seconds in off.items() if seconds > MOST_SKEW}
    if wrong:
        what = (
            f"{_shorten_list(list(wrong))}: at least {max(wrong.values()):.0f} s off this "
            "node's clock"
        )
        yield Finding(
            "clocks-differ",
            WARNING,
            what,
            "Slurm job",
            (
                "let all nodes follow the same time server (chronyc tracking): the newest "
                "checkpoint is told by time"
            ),
        )


def _check_processes(machine: Machine) -> Iterator[Finding]:
    """JAX gives process n of a node its GPU n, unless JAX_LOCAL_DEVICE_IDS says otherwise."""
    processes, gpus = slurm_job.count_node_tasks(machine.environment), len(machine.cards)
    if (
        processes < 2
        or not gpus
        or machine.on_cpu
        or machine.environment.get("JAX_LOCAL_DEVICE_IDS")
    ):
        return
    if processes > gpus:
        what = f"{processes} processes run on this node, and each sees {gpus} GPU(s)"
        do = (
            "start one process a GPU, and leave out --gpus-per-task and --gpu-bind: each has to "
            "see all GPUs of its node"
        )
        yield Finding("gpus-for-processes", BLOCKER, what, "Slurm step", do)
    elif processes < gpus:
        yield Finding(
            "gpus-idle",
            WARNING,
            (
                f"{processes} processes run on this node, which has {gpus} GPUs: "
                f"{gpus - processes} stay idle"
            ),
            "Slurm step",
            f"set --ntasks-per-node={gpus}",
        )


def _shorten_list(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )
