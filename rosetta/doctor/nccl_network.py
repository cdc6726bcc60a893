"""Check the network between nodes as NCCL uses it: RDMA devices, GPUDirect and NCCL's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.doctor import slurm_job
from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.doctor.machine import Machine


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what keeps NCCL from the network.

    RDMA matters only to a run on several nodes; elsewhere, its findings are notes.
    """
    if not machine.gpus:
        return
    has_several_nodes = len(slurm_job.read_job_hosts(machine.environment)) > 1
    network_level = WARNING if has_several_nodes else NOTE
    yield from _check_rdma(machine, network_level)
    yield from _check_plugin(machine, network_level)
    interfaces = [path.rpartition("/")[2] for path in machine.find_paths("/sys/class/net/*")]
    needs_nccl = has_several_nodes or len(machine.gpus) > 1
    level = BLOCKER if needs_nccl else WARNING
    yield from _check_selection(machine, "NCCL_SOCKET_IFNAME", interfaces, level)


def _check_rdma(machine: Machine, level: str) -> Iterator[Finding]:
    """Check that NCCL can use the RDMA devices of the machine."""
    paths = machine.find_paths("/sys/class/infiniband/*")
    devices = [path.rpartition("/")[2] for path in paths]
    if not devices:
        return
    yield from _check_selection(machine, "NCCL_IB_HCA", devices, level)
    # NCCL reads this variable as a number, so that "true" does not switch RDMA off.
    if machine.environment.get("NCCL_IB_DISABLE", "").strip() == "1":
        yield Finding(
            "rdma-disabled",
            level,
            f"NCCL does not use the {len(devices)} RDMA device(s), but TCP",
            "NCCL_IB_DISABLE=1",
            "unset it",
        )
        return
    if not machine.find_paths("/dev/infiniband/uverbs*"):
        what = (
            f"the kernel has {', '.join(devices)}, but /dev/infiniband/uverbs* is missing: NCCL "
            "uses TCP, without a message"
        )
        remedy = (
            "give the container the devices (docker: --device=/dev/infiniband, enroot: "
            "MELLANOX_VISIBLE_DEVICES=all); on a host: modprobe ib_uverbs"
        )
        yield Finding("rdma-devices-hidden", level, what, "RDMA", remedy)
    yield from _check_ports(machine, level)
    yield from _check_gpudirect(machine, level)


def _check_ports(machine: Machine, level: str) -> Iterator[Finding]:
    """Check that the ports of the RDMA devices are active; some may be unused."""
    ports = machine.find_paths("/sys/class/infiniband/*/ports/*")
    inactive = []
    for port in ports:
        state = machine.read_text(f"{port}/state")
        if state and "ACTIVE" not in state:
            # /sys/class/infiniband/DEVICE/ports/NUMBER
            parts = port.split("/")
            inactive.append(f"{parts[4]} port {parts[6]}")
    if inactive:
        yield Finding(
            "rdma-port-down",
            level if len(inactive) == len(ports) else NOTE,
            f"not active: {', '.join(inactive)}",
            "RDMA",
            "check the cable, the port of the switch and the subnet manager; NCCL_IB_HCA names the "
            "devices to use",
        )


def _check_gpudirect(machine: Machine, level: str) -> Iterator[Finding]:
    """Check that a network card can read the memory of a GPU.

    It needs the module nvidia_peermem, or DMA-BUF of the kernel, which NVIDIA's open kernel modules
    support.
    """
    modules = ("nvidia_peermem", "nv_peer_mem")
    has_peermem = any(machine.path_exists(f"/sys/module/{module}") for module in modules)
    driver_text = machine.read_text("/proc/driver/nvidia/version")
    if machine.driver and not has_peermem and "Open Kernel Module" not in driver_text:
        yield Finding(
            "no-gpudirect",
            level,
            "neither nvidia_peermem nor DMA-BUF is available: data for another node is copied "
            "through host memory",
            "RDMA",
            "on the host: modprobe nvidia-peermem, or install the driver's open kernel modules",
        )


def _check_plugin(machine: Machine, level: str) -> Iterator[Finding]:
    """Check that NCCL finds the plugin that the network needs.

    NCCL cannot use EFA without a plugin. If NCCL does not find a plugin, it uses TCP, and says so
    only in its log.
    """
    chosen = machine.environment.get("NCCL_NET_PLUGIN", "").strip()
    efa_devices = machine.find_paths("/sys/bus/pci/drivers/efa/*:*:*")
    if chosen == "none" or not (chosen or efa_devices):
        return
    # NCCL takes the value as the path of a library, and as NAME in libnccl-net-NAME.so.
    libraries = [chosen, f"libnccl-net-{chosen}.so"] if chosen else ["libnccl-net.so"]
    if any(_can_load_library(machine, library) for library in libraries):
        return
    needed_by = f"NCCL_NET_PLUGIN={chosen}" if chosen else f"EFA ({len(efa_devices)} device(s))"
    yield Finding(
        "net-plugin-missing",
        level,
        f"NCCL finds no {libraries[-1]}, and uses TCP between nodes",
        needed_by,
        "install the plugin in the image (docs/how-to/use-a-cloud-network.md), or mount it and add "
        "its folder to LD_LIBRARY_PATH",
    )


def _can_load_library(machine: Machine, library: str) -> bool:
    """Return whether the dynamic loader finds a library by its path or its name."""
    if "/" in library:
        return machine.path_exists(library)
    folders = machine.environment.get("LD_LIBRARY_PATH", "").split(":")
    if any(folder and machine.path_exists(f"{folder}/{library}") for folder in folders):
        return True
    # The loader's cache is a binary file that has each path as text, with a zero byte at its end.
    return f"/{library}\0" in machine.read_text("/etc/ld.so.cache")


def _check_selection(
    machine: Machine, name: str, existing: Sequence[str], level: str
) -> Iterator[Finding]:
    """Check that a variable of NCCL selects at least one device or interface.

    Such a variable lists prefixes of names; whole names after a leading `=`, and names to leave out
    after a leading `^`. A colon and a port may follow a name.

    Args:
      machine: The machine.
      name: The variable.
      existing: The names of the devices or interfaces of the machine.
      level: The level of a finding.
    """
    text = machine.environment.get(name, "").strip()
    if not text or text.startswith("^"):
        return
    is_exact = text.startswith("=")
    listed = text[1:] if is_exact else text
    wanted = [entry.partition(":")[0] for entry in listed.split(",") if entry]
    if not wanted:
        return
    if is_exact:
        selected = set(existing) & set(wanted)
    else:
        selected = {device for device in existing if device.startswith(tuple(wanted))}
    if not selected:
        shown = ", ".join(device for device in existing if device != "lo") or "none"
        yield Finding(
            "nccl-names-nothing",
            level,
            f"selects nothing on this machine, which has: {shown}",
            name,
            "select one of the names, or unset the variable",
        )
