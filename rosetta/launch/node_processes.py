"""Run the processes of one node, as `rosetta run` and `rosetta spawn` do.

The processes are started together, get the signals that this process gets, and are ended if one of
them fails. They find each other by the variables that srun would set: the scripts count processes
by them, and JAX finds its rank by them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core import exit_status, kill_notice, log, parent_death
from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.core.value_parsing import parse_host_and_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Seconds after the first failure in which the other processes have to end by themselves.
GRACE_SECONDS = 60.0
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Variables of an allocation in which this process was started. They do not hold for ours.
SLURM_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
)


@dataclass(frozen=True)
class ProcessLayout:
    """The place of this node's processes among all processes of a run.

    Attributes:
      per_node: the processes of each node.
      nodes: the number of nodes.
      node: the number of this node, from 0.
      coordinator: HOST:PORT of the first process, which every node can reach; "" for a free port of
        this machine.
    """

    per_node: int
    nodes: int = 1
    node: int = 0
    coordinator: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.node < self.nodes:
            raise UserError(
                f"not the number of a node: the run has {self.nodes} nodes",
                f"--node {self.node}",
                f"give a number from 0 to {self.nodes - 1}",
                kind=INVALID,
                value=self.node,
            )
        if self.coordinator:
            parse_host_and_port("--coordinator", self.coordinator)
        if self.nodes > 1 and not self.coordinator:
            raise UserError(
                f"the processes of {self.nodes} nodes need a common address",
                "--coordinator",
                "give every node the name of the first node and a free port of it: HOST:PORT",
                kind=MISSING,
            )


def make_environments(
    layout: ProcessLayout, environment: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return the environment of each of this node's processes."""
    inherited = {name: value for name, value in environment.items() if name not in SLURM_VARIABLES}
    total = layout.nodes * layout.per_node
    if total == 1:
        return [inherited]
    coordinator = layout.coordinator or f"127.0.0.1:{_find_free_port()}"
    host = coordinator.rpartition(":")[0]
    shared = {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        # The same for all processes of a run, and different for each run.
        "SLURM_JOB_ID": str(zlib.crc32(coordinator.encode())),
        "SLURM_NTASKS": str(total),
        "SLURM_JOB_NUM_NODES": str(layout.nodes),
        "SLURM_NNODES": str(layout.nodes),
        "SLURM_STEP_NUM_NODES": str(layout.nodes),
        "SLURM_STEP_NODELIST": host,
        "SLURM_JOB_NODELIST": host,
        "SLURM_NODEID": str(layout.node),
        "SLURM_STEP_TASKS_PER_NODE": f"{layout.per_node}(x{layout.nodes})",
    }
    return [
        {
            **inherited,
            **shared,
            "SLURM_LOCALID": str(local),
            "SLURM_PROCID": str(layout.node * layout.per_node + local),
        }
        for local in range(layout.per_node)
    ]


def run_processes(
    argv: Sequence[str],
    layout: ProcessLayout,
    environment: Mapping[str, str],
    grace: float = GRACE_SECONDS,
) -> int:
    """Run this node's processes to their end.

    A single process takes the place of this one.

    Args:
      argv: the command line of each process.
      layout: the place of the processes among all.
      environment: that the processes share.
      grace: seconds that the others have to end by themselves after one has failed.

    Returns:
      The status of the first process that failed, as a shell reports it, or 0.

    Raises:
      UserError: the program does not exist.
    """
    environments = make_environments(layout, environment)
    argv = [_find_program(argv[0], environment), *argv[1:]]
    if len(environments) == 1:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.execve(argv[0], argv, environments[0])  # noqa: S606
    watched = {signal.SIGCHLD, *FORWARDED_SIGNALS}
    earlier_mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        running = {
            _start_process(argv, process_environment, earlier_mask): local_rank
            for local_rank, process_environment in enumerate(environments)
        }
        return _wait_for_all(running, layout.node * layout.per_node, watched, grace)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier_mask)


def _wait_for_all(
    running: dict[int, int], first: int, watched: set[signal.Signals], grace: float
) -> int:
    """Wait for all processes, and pass on the signals that arrive meanwhile.

    Args:
      running: process id -> number on the node.
      first: the rank of the node's first process.
      watched: the signals to wait for.
      grace: see run_processes.

    Returns:
      See run_processes.
    """
    status, deadline = 0, float("inf")
    kills = kill_notice.count_oom_kills()
    while running:
        left = deadline - time.monotonic()
        if left <= 0:
            _send_signal(running, signal.SIGKILL)
            deadline = float("inf")
            continue
        received = signal.sigtimedwait(watched, min(left, 3600.0))
        if received is not None and received.si_signo != signal.SIGCHLD:
            _send_signal(running, signal.Signals(received.si_signo))
        for rank, ended in _reap_ended(running):
            code = os.waitstatus_to_exitcode(ended)
            code = code if code >= 0 else 128 - code
            if (
                line := None
                if status
                else kill_notice.describe_kill(f"process {first + rank}", code, kills)
            ):
                log.warn(line)
            if code and not status:
                status, deadline = code, time.monotonic() + grace
                if running:
                    log.warn(f"process {first + rank} ended with status {code}; the others end too")
                if (
                    code != exit_status.ENDED_EARLY
                ):  # With this status, the others are about to end, too.
                    _send_signal(running, signal.SIGTERM)
    return status


def _reap_ended(running: dict[int, int]) -> list[tuple[int, int]]:
    """Take the processes that have ended out of `running`.

    All are taken out at once, because the id of a reaped process may belong to another one.

    Returns:
      The number on the node and the wait status of each process that has ended.
    """
    states = [os.waitpid(process, os.WNOHANG) for process in running]
    return [(running.pop(process), status) for process, status in states if process]


def _send_signal(running: Mapping[int, int], number: signal.Signals) -> None:
    """Send a signal to all processes; those that have ended still have their ids."""
    for process in running:
        os.kill(process, number)


def _start_process(
    argv: Sequence[str], environment: Mapping[str, str], mask: set[int] | set[signal.Signals]
) -> int:
    """Start a process in a session of its own; return its id.

    So a signal of the terminal reaches it once: passed on by this process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent, process = os.getpid(), os.fork()
    if process:
        return process
    try:
        os.setsid()
        parent_death.die_with_parent(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execve(argv[0], list(argv), environment)  # noqa: S606
    except OSError as error:
        log.error(f"{argv[0]}: {error.strerror}")
    os._exit(exit_status.USER_ERROR)


def _find_program(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program on PATH; rosetta itself is also found in its environment."""
    from shutil import which

    from rosetta.core import lock_record

    path = which(name, path=environment.get("PATH"))
    if path is None and name == "rosetta" and lock_record.get_lock_path().is_file():
        path = which(str(lock_record.get_lock_path().parent / "bin" / name))
    if path is None:
        raise UserError(
            "there is no such program on PATH",
            name,
            (
                "put the bin of a baked environment first on PATH, or run it in an image: --on "
                "docker --image IMAGE"
            ),
            kind=MISSING,
            value=name,
        )
    return path


def _find_free_port() -> int:
    """Return a TCP port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
