"""The processes of one node: started together, told where to meet, sent the signals that we are
sent, and ended when one of them fails.

What each process is told is what srun would tell it, in Slurm's variables: the scripts count
processes by them, and JAX finds its place by them.
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

GRACE_SECONDS = (
    60.0  # seconds from the first that fails to the end of those that do not end by themselves
)
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Of an allocation that we are started in, which is not our processes'.
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
    """Where this node's processes are among all.

    Attributes:
      per_node: processes of each node.
      nodes: how many there are.
      node: this one's number, from 0.
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
                f"it is none of {self.nodes} nodes",
                f"--node {self.node}",
                f"give a number from 0 to {self.nodes - 1}",
                kind=INVALID,
                value=self.node,
            )
        if self.coordinator:
            parse_host_and_port("--coordinator", self.coordinator)
        if self.nodes > 1 and not self.coordinator:
            raise UserError(
                f"{self.nodes} nodes have to meet somewhere",
                "--coordinator",
                "name the first node, and a free port of it, to all of them: HOST:PORT",
                kind=MISSING,
            )


def make_environments(layout: ProcessLayout, around: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the environment of each of this node's processes."""
    plain = {name: value for name, value in around.items() if name not in SLURM_VARIABLES}
    total = layout.nodes * layout.per_node
    if total == 1:
        return [plain]
    meeting = layout.coordinator or f"127.0.0.1:{_find_free_port()}"
    host = meeting.rpartition(":")[0]
    shared = {
        "JAX_COORDINATOR_ADDRESS": meeting,
        "SLURM_JOB_ID": str(
            zlib.crc32(meeting.encode())
        ),  # the same for all, and another one for each run
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
            **plain,
            **shared,
            "SLURM_LOCALID": str(local),
            "SLURM_PROCID": str(layout.node * layout.per_node + local),
        }
        for local in range(layout.per_node)
    ]


def run_processes(
    argv: Sequence[str],
    layout: ProcessLayout,
    around: Mapping[str, str],
    grace: float = GRACE_SECONDS,
) -> int:
    """Run this node's processes to their end; return the status of the first that failed, as a
    shell tells it, or 0. A single one takes our place.

    Args:
      argv: what each executes.
      layout: see Layout.
      around: the environment that they share.
      grace: seconds that the others have to end themselves.

    Raises:
      UserError: the program is not there.
    """
    each = make_environments(layout, around)
    argv = [_find_program(argv[0], around), *argv[1:]]
    if len(each) == 1:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.execve(argv[0], argv, each[0])  # noqa: S606
    watched = {signal.SIGCHLD, *FORWARDED_SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        running = {
            _start_process(argv, environment, before): rank for rank, environment in enumerate(each)
        }
        return _wait_for_all(running, layout.node * layout.per_node, watched, grace)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_for_all(
    running: dict[int, int], first: int, watched: set[signal.Signals], grace: float
) -> int:
    """Wait for all of these (process -> number on the node), passing on signals that come
    meanwhile.
    """
    status, deadline = 0, float("inf")
    kills = kill_notice.count_oom_kills()
    while running:
        left = deadline - time.monotonic()
        if left <= 0:
            _send_signal(running, signal.SIGKILL)
            deadline = float("inf")
            continue
        came = signal.sigtimedwait(watched, min(left, 3600.0))
        if came is not None and came.si_signo != signal.SIGCHLD:
            _send_signal(running, signal.Signals(came.si_signo))
        for process, ended in _reap_ended(running):
            rank = running.pop(process)
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
                    log.warn(f"process {first + rank} ended with status {code}; so do the others")
                if code != exit_status.ENDED_EARLY:  # else the others are about to end so too
                    _send_signal(running, signal.SIGTERM)
    return status


def _reap_ended(running: Mapping[int, int]) -> list[tuple[int, int]]:
    """Those that have ended, with what waitpid says of them."""
    states = [os.waitpid(process, os.WNOHANG) for process in running]
    return [state for state in states if state[0]]


def _send_signal(running: Mapping[int, int], number: signal.Signals) -> None:
    for process in running:
        os.kill(process, number)  # it is there: we have not waited for it


def _start_process(
    argv: Sequence[str], environment: Mapping[str, str], mask: set[int] | set[signal.Signals]
) -> int:
    """Start a process in a session of its own: what a terminal sends to us reaches it once, by
    us.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ours, process = os.getpid(), os.fork()
    if process:
        return process
    try:
        os.setsid()
        parent_death.die_with_parent(ours)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execve(argv[0], list(argv), environment)  # noqa: S606
    except OSError as error:
        log.error(f"{argv[0]}: {error.strerror}")
    os._exit(exit_status.USER_ERROR)


def _find_program(name: str, around: Mapping[str, str]) -> str:
    """Where a program is: on PATH, and our own beside us, too."""
    from shutil import which

    from rosetta.core import lock_record

    found = which(name, path=around.get("PATH"))
    if found is None and name == "rosetta" and lock_record.get_lock_path().is_file():
        found = which(str(lock_record.get_lock_path().parent / "bin" / name))
    if found is None:
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
    return found


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
