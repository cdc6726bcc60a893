"""The network between nodes as NCCL finds it: RDMA devices, GPUDirect, and the variables that
choose among them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.doctor import slurm_job
from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.doctor.machine import Machine


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what keeps NCCL from its network.

    RDMA matters where a run has several nodes, so that elsewhere it is a note.
    """
    if not machine.cards:
        return
    several = len(slurm_job.read_job_hosts(machine.environment)) > 1
    yield from _check_rdma(machine, WARNING if several else NOTE)
    interfaces = [name.rpartition("/")[2] for name in machine.names("/sys/class/net/*")]
    yield from _check_selection(
        machine,
        "NCCL_SOCKET_IFNAME",
        interfaces,
        BLOCKER if several or len(machine.cards) > 1 else WARNING,
    )


def _check_rdma(machine: Machine, level: str) -> Iterator[Finding]:
    devices = [name.rpartition("/")[2] for name in machine.names("/sys/class/infiniband/*")]
    if not devices:
        return
    yield from _check_selection(machine, "NCCL_IB_HCA", devices, level)
    if machine.environment.get("NCCL_IB_DISABLE", "").strip() == "1":  # NCCL reads a number
        yield Finding(
            "rdma-disabled",
            level,
            f"{len(devices)} RDMA device(s) stay unused: NCCL takes TCP",
            "NCCL_IB_DISABLE=1",
            "unset it",
        )
        return
    if not machine.names("/dev/infiniband/uverbs*"):
        do = (
            "give the container the devices (docker: --device=/dev/infiniband, enroot: "
            "MELLANOX_VISIBLE_DEVICES=all); on a host: modprobe ib_uverbs"
        )
        yield Finding(
            "rdma-devices-hidden",
            level,
            (
                f"the kernel has {', '.join(devices)}, but there is no /dev/infiniband/uverbs: "
                "NCCL takes TCP without a word"
            ),
            "RDMA",
            do,
        )
    states = {
        port: machine.text(f"{port}/state")
        for port in machine.names("/sys/class/infiniband/*/ports/*")
    }
    down = [
        "{4} port {6}".format(*port.split("/"))
        for port, state in states.items()
        if state and "ACTIVE" not in state
    ]
    if down:
        whole = len(down) == len(states)
        do = (
            "see the cable, the switch's port and the subnet manager; NCCL_IB_HCA names the "
            "devices to take"
        )
        yield Finding(
            "rdma-port-down", level if whole else NOTE, f"not active: {', '.join(down)}", "RDMA", do
        )
    peermem = any(
        machine.there(f"/sys/module/{name}") for name in ("nvidia_peermem", "nv_peer_mem")
    )
    # The open kernel modules give GPU memory to network cards by the kernel's own DMA-BUF.
    if (
        machine.driver
        and not peermem
        and "Open Kernel Module" not in machine.text("/proc/driver/nvidia/version")
    ):
        do = "on the host: modprobe nvidia-peermem, or install the driver's open kernel modules"
        yield Finding(
            "no-gpudirect",
            level,
            (
                "neither nvidia_peermem nor DMA-BUF is there: what goes to another node is copied "
                "through host memory"
            ),
            "RDMA",
            do,
        )


def _check_selection(
    machine: Machine, name: str, there: Sequence[str], level: str
) -> Iterator[Finding]:
    """Check a list in NCCL's format: name prefixes, or whole names after `=`, or exclusions after
    `^`.

    A port may follow a colon.
    """
    text = machine.environment.get(name, "").strip()
    if not text or text.startswith("^"):
        return
    exact = text.startswith("=")
    wanted = [each.partition(":")[0] for each in re.sub(r"^=", "", text).split(",") if each]
    if wanted and not any(
        each == one if exact else each.startswith(one) for each in there for one in wanted
    ):
        have = ", ".join(each for each in there if each != "lo")
        yield Finding(
            "nccl-names-nothing",
            level,
            f"it names none that is here ({have or 'there is none'})",
            name,
            "name one of these, or unset it",
        )
