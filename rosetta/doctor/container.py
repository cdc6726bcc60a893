"""What container runtimes get wrong: GPUs that are not passed on, limits that programs do not see,
proxies for what is local.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.doctor import slurm_job
from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.doctor.machine import Machine

MEMORY_PER_GPU = (
    16 << 30
)  # bytes a card: data, and the copy of its state that a checkpoint is written from
CORES_PER_GPU = 4  # a card: its process, its data
_NO_GPUS = {"", "-1", "none", "void", "nodevfiles"}
_LIBCUDA_PATHS = (
    "/usr/lib*/libcuda.so.1",
    "/usr/lib/*/libcuda.so.1",
    "/usr/local/nvidia/lib*/libcuda.so.1",
    "/.singularity.d/libs/libcuda.so.1",
)
_GPU_REMEDIES = {
    "docker": "start it with --gpus=all",
    "podman": "start it with --device=nvidia.com/gpu=all",
    "apptainer": "start it with --nv",
    "enroot": "set NVIDIA_VISIBLE_DEVICES=all",
    "kubernetes": "ask for nvidia.com/gpu in its resources",
}


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what the place that this runs in keeps from a run."""
    yield from _check_gpus(machine)
    yield from _check_memory(machine)
    yield from _check_cores(machine)
    yield from _check_root_file_system(machine)
    yield from _check_proxy(machine)


def _check_gpus(machine: Machine) -> Iterator[Finding]:
    if not machine.driver or machine.on_cpu:
        return
    environment = machine.environment
    if not machine.devices:
        why = "its driver is there, but no GPU is given to this " + (
            "container" if machine.container else "job"
        )
        do = _GPU_REMEDIES.get(
            machine.container,
            "ask Slurm for them (--gres=gpu:8)"
            if "SLURM_JOB_ID" in environment
            else "start a container with --gpus=all, a job with --gres=gpu:8",
        )
        if (
            machine.container
            and environment.get("NVIDIA_VISIBLE_DEVICES", "all").strip().lower() in _NO_GPUS
        ):
            why, do = (
                "NVIDIA_VISIBLE_DEVICES hides all GPUs from this container",
                f"set NVIDIA_VISIBLE_DEVICES=all, and {do}",
            )
        yield Finding(
            "no-gpu-visible", NOTE if machine.cuda is None else BLOCKER, why, "this machine", do
        )
        return
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and not machine.cards:
        yield Finding(
            "gpus-hidden",
            BLOCKER,
            f"it leaves none of {len(machine.all_cards)} GPU(s)",
            "CUDA_VISIBLE_DEVICES",
            "unset it, or set JAX_PLATFORMS=cpu to run on the CPU",
        )
    given = set(re.split(r"[,\s]+", environment.get("NVIDIA_DRIVER_CAPABILITIES", "").lower()))
    if (
        machine.container
        and not (given >= {"compute", "utility"} or "all" in given)
        and not any(map(machine.names, _LIBCUDA_PATHS))
    ):
        what = (
            "it lacks compute or utility, and there is no libcuda"
            if any(given)
            else "it is not set, and there is no libcuda"
        )
        yield Finding(
            "driver-capabilities",
            WARNING,
            what,
            "NVIDIA_DRIVER_CAPABILITIES",
            "set it to compute,utility when the container is started",
        )
    if not machine.there("/dev/nvidia-uvm") and not machine.there("/dev/dxg"):
        do = "on the host: nvidia-modprobe -u -c=0; then start the container again"
        yield Finding(
            "no-uvm",
            BLOCKER if machine.container else WARNING,
            "there is no /dev/nvidia-uvm, and CUDA does not start without",
            "NVIDIA driver",
            do,
        )


def _read_cgroup_files(machine: Machine, controller: str, *names: str) -> list[str]:
    """Return the texts of a controller's files that hold for this process: those of its own cgroup
    and of each above it, version 2 or 1.
    """
    found = re.findall(
        rf"^\d+:(?:[\w,]*\b{controller}\b[\w,]*)?:(/.*)$",
        machine.text("/proc/self/cgroup"),
        re.MULTILINE,
    )
    texts = list[str]()
    for root in ("/sys/fs/cgroup", f"/sys/fs/cgroup/{controller}"):
        for path in [*found, "/"]:
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts) + 1):
                texts += [
                    text
                    for name in names
                    if (text := machine.text("/".join([root, *parts[:depth], name])))
                ]
    return texts


def _check_memory(machine: Machine) -> Iterator[Finding]:
    limits = [
        int(text)
        for text in _read_cgroup_files(machine, "memory", "memory.max", "memory.limit_in_bytes")
        if text.isdecimal()
    ]
    total = re.search(r"^MemTotal:\s+(\d+) kB", machine.text("/proc/meminfo"), re.MULTILINE)
    whole = int(total[1]) << 10 if total else None
    least = min([*limits, *([whole] if whole else [])], default=None)
    wanted = MEMORY_PER_GPU * len(machine.cards)
    if least is not None and machine.cards and least < wanted:
        limited = whole is None or least < whole
        do = (
            "give the container or job more (docker: --memory, Slurm: --mem=0)"
            if limited
            else "save checkpoints seldom, and use small shuffle buffers"
        )
        what = (
            f"{'a limit of ' if limited else 'it has '}{least / (1 << 30):.0f} GiB of memory for "
            f"{len(machine.cards)} GPU(s); {wanted >> 30} GiB leave room for data and checkpoints"
        )
        yield Finding("host-memory", WARNING, what, "memory of the host", do)


def _check_cores(machine: Machine) -> Iterator[Finding]:
    allowed = re.search(
        r"^Cpus_allowed_list:\s+(\S+)", machine.text("/proc/self/status"), re.MULTILINE
    )
    ranges = re.findall(r"(\d+)(?:-(\d+))?", allowed[1]) if allowed else []
    cores = float(sum(int(last or first) - int(first) + 1 for first, last in ranges)) or None
    quotas = [
        re.fullmatch(r"(\d+) (\d+)", text) for text in _read_cgroup_files(machine, "cpu", "cpu.max")
    ]
    shares = [int(match[1]) / int(match[2]) for match in quotas if match and int(match[2])]
    old = [
        (int(quota), int(period))
        for quota, period in zip(  # noqa: B905 (Python 3.9 has no strict=)
            *(
                _read_cgroup_files(machine, "cpu", f"cpu.cfs_{name}_us")
                for name in ("quota", "period")
            )
        )
        if quota.isdecimal() and period.isdecimal()
    ]
    shares += [quota / period for quota, period in old if period]
    least = min([*shares, *([cores] if cores else [])], default=None)
    cards = len(machine.cards) // slurm_job.count_node_tasks(
        machine.environment
    )  # Slurm gives each process cores of its own
    if least is not None and least < CORES_PER_GPU * cards:
        do = "docker: --cpus or --cpuset-cpus; Slurm: --cpus-per-task or --exclusive"
        what = f"{least:g} core(s) for {cards} GPU(s): reading data will be what a step waits for"
        yield Finding("few-cores", WARNING, what, "CPU", do)
    if cores and shares and min(shares) < cores / 2:
        do = "give it cores rather than a share of their time (docker: --cpuset-cpus)"
        yield Finding(
            "cpu-quota",
            NOTE,
            (
                f"a quota of {min(shares):g} core(s) where programs see {cores:g}: they start too "
                "many threads"
            ),
            "CPU",
            do,
        )


def _check_root_file_system(machine: Machine) -> Iterator[Finding]:
    roots = re.findall(r"^\S+ / \S+ (\S+)", machine.text("/proc/mounts"), re.MULTILINE)
    if roots and "ro" in roots[-1].split(","):
        do = (
            "mount a folder for ROSETTA_HOME and one for checkpoints; --tmpfs /tmp gives room for "
            "temporary files"
        )
        yield Finding("read-only-root", NOTE, "it is read-only", "root file system", do)


def _check_proxy(machine: Machine) -> Iterator[Finding]:
    """gRPC, by which the processes of a run find each other, takes the proxies of the environment.

    Their addresses may hold passwords.
    """
    environment = machine.environment
    names = sorted(
        name
        for name in environment
        if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
        and environment[name]
    )
    if not names:
        return
    without = [
        each.strip().lstrip("*").lower()
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy")
        for each in environment.get(name, "").split(",")
    ]
    if "" in without and any(
        environment.get(name, "").strip() == "*"
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy")
    ):
        return
    suffixes = tuple(each for each in without if each)
    local = ["localhost", "127.0.0.1", *slurm_job.read_job_hosts(environment)]
    through = [host for host in local if not (suffixes and host.lower().endswith(suffixes))]
    if through:
        several = len(local) > 3 or slurm_job.count_node_tasks(environment) > 1
        what = (
            "connections to "
            f"{through[0]}{' and others of this job' if len(through) > 1 and several else ''} "
            "would go through a proxy, and starting several processes hangs"
        )
        do = "name localhost, 127.0.0.1 and the nodes in no_proxy, or unset the proxy for the run"
        yield Finding("proxy-for-local", WARNING if several else NOTE, what, ", ".join(names), do)
