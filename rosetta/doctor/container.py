"""Check what a container or a job passes on to a run: GPUs, memory, cores, and proxies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.core import control_groups
from rosetta.doctor import slurm_job
from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.doctor.machine import Machine

# Bytes of host memory for each GPU. Data needs some of it, and so does the copy of the training
# state from which a checkpoint is written.
MEMORY_PER_GPU = 16 << 30
CORES_PER_GPU = 4  # for the process of the GPU and for reading its data
# The values of NVIDIA_VISIBLE_DEVICES with which a container gets no GPU.
_NO_GPUS = {"", "-1", "none", "void", "nodevfiles"}
_LIBCUDA_PATHS = (
    "/usr/lib*/libcuda.so.1",
    "/usr/lib/*/libcuda.so.1",
    "/usr/local/nvidia/lib*/libcuda.so.1",
    "/.singularity.d/libs/libcuda.so.1",
)
_GPU_REMEDIES = {
    "docker": "start the container with --gpus=all",
    "podman": "start the container with --device=nvidia.com/gpu=all",
    "apptainer": "start the container with --nv",
    "enroot": "set NVIDIA_VISIBLE_DEVICES=all",
    "kubernetes": "request nvidia.com/gpu in the resources of the pod",
}
_NO_PROXY_VARIABLES = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


def check(machine: Machine) -> Iterator[Finding]:
    """Yield the problems of the container or the job that this process is in."""
    yield from _check_gpus(machine)
    yield from _check_memory(machine)
    yield from _check_cores(machine)
    yield from _check_root_file_system(machine)
    yield from _check_proxy(machine)


def _check_gpus(machine: Machine) -> Iterator[Finding]:
    """Check that the GPUs of the machine can be used here."""
    if not machine.driver or machine.on_cpu:
        return
    if not machine.device_count:
        yield _report_no_visible_gpu(machine)
        return
    chosen = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and not machine.gpus:
        yield Finding(
            "gpus-hidden",
            BLOCKER,
            f"hides all {len(machine.all_gpus)} GPU(s) of this machine",
            "CUDA_VISIBLE_DEVICES",
            "unset it, or set JAX_PLATFORMS=cpu to run on the CPU",
        )
    yield from _check_driver_capabilities(machine)
    if not machine.path_exists("/dev/nvidia-uvm") and not machine.path_exists("/dev/dxg"):
        yield Finding(
            "no-uvm",
            BLOCKER if machine.container else WARNING,
            "the device file /dev/nvidia-uvm is missing, and CUDA does not start without it",
            "NVIDIA driver",
            "on the host: nvidia-modprobe -u -c=0; then start the container again",
        )


def _report_no_visible_gpu(machine: Machine) -> Finding:
    """Return the finding for a machine with the driver, but without the device file of a GPU."""
    environment = machine.environment
    place = "container" if machine.container else "job"
    what = f"the NVIDIA driver is loaded, but this {place} was given no GPU"
    if "SLURM_JOB_ID" in environment:
        remedy = "request GPUs from Slurm (--gres=gpu:8)"
    else:
        remedy = "start a container with --gpus=all, or a job with --gres=gpu:8"
    remedy = _GPU_REMEDIES.get(machine.container, remedy)
    visible_devices = environment.get("NVIDIA_VISIBLE_DEVICES", "all").strip().lower()
    if machine.container and visible_devices in _NO_GPUS:
        what = "NVIDIA_VISIBLE_DEVICES hides all GPUs from this container"
        remedy = f"set NVIDIA_VISIBLE_DEVICES=all, and {remedy}"
    level = NOTE if machine.cuda is None else BLOCKER
    return Finding("no-gpu-visible", level, what, "this machine", remedy)


def _check_driver_capabilities(machine: Machine) -> Iterator[Finding]:
    """Check that a container gets libcuda and nvidia-smi of the driver."""
    text = machine.environment.get("NVIDIA_DRIVER_CAPABILITIES", "").lower()
    capabilities = set(re.split(r"[,\s]+", text))
    is_sufficient = capabilities >= {"compute", "utility"} or "all" in capabilities
    if not machine.container or is_sufficient:
        return
    if any(machine.find_paths(pattern) for pattern in _LIBCUDA_PATHS):
        return
    problem = "lacks compute or utility" if any(capabilities) else "is not set"
    yield Finding(
        "driver-capabilities",
        WARNING,
        f"{problem}, and the container has no libcuda",
        "NVIDIA_DRIVER_CAPABILITIES",
        "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )


def _check_memory(machine: Machine) -> Iterator[Finding]:
    """Check that the host has enough memory for the GPUs, and that no limit takes it away."""
    limits = control_groups.read_memory_limits(machine.read_text)
    total = re.search(r"^MemTotal:\s+(\d+) kB", machine.read_text("/proc/meminfo"), re.MULTILINE)
    installed = int(total[1]) << 10 if total else None
    available = min([*limits, *([installed] if installed else [])], default=None)
    gpu_count = len(machine.gpus)
    wanted = MEMORY_PER_GPU * gpu_count
    if available is None or not gpu_count or available >= wanted:
        return
    if installed is None or available < installed:
        subject = "the container or job is limited to"
        remedy = "raise the limit (docker: --memory, Slurm: --mem=0)"
    else:
        subject = "the machine has"
        remedy = "save checkpoints rarely, and use small shuffle buffers"
    what = (
        f"{subject} {available / (1 << 30):.0f} GiB for {gpu_count} GPU(s); "
        f"{wanted >> 30} GiB leave room for data and checkpoints"
    )
    yield Finding("host-memory", WARNING, what, "memory of the host", remedy)


def _check_cores(machine: Machine) -> Iterator[Finding]:
    """Check that there are enough CPU cores for the GPUs, and that programs see how many."""
    cores = _count_allowed_cores(machine)
    quotas = control_groups.read_core_quotas(machine.read_text)
    usable = min([*quotas, *([cores] if cores else [])], default=None)
    # Slurm gives each process cores of its own.
    gpu_count = len(machine.gpus) // slurm_job.count_node_tasks(machine.environment)
    if usable is not None and usable < CORES_PER_GPU * gpu_count:
        yield Finding(
            "few-cores",
            WARNING,
            f"{usable:g} core(s) for {gpu_count} GPU(s): each step will wait for data",
            "CPU",
            "docker: --cpus or --cpuset-cpus; Slurm: --cpus-per-task or --exclusive",
        )
    if cores and quotas and min(quotas) < cores / 2:
        what = (
            f"the quota is {min(quotas):g} core(s), but programs see {cores:g} and start too many "
            "threads"
        )
        yield Finding(
            "cpu-quota",
            NOTE,
            what,
            "CPU",
            "give the container whole cores instead of a share of time (docker: --cpuset-cpus)",
        )


def _count_allowed_cores(machine: Machine) -> float | None:
    """Return the number of cores on which this process may run; None if it is not known."""
    allowed = re.search(
        r"^Cpus_allowed_list:\s+(\S+)", machine.read_text("/proc/self/status"), re.MULTILINE
    )
    ranges = re.findall(r"(\d+)(?:-(\d+))?", allowed[1]) if allowed else []
    return float(sum(int(last or first) - int(first) + 1 for first, last in ranges)) or None


def _check_root_file_system(machine: Machine) -> Iterator[Finding]:
    """Note a root file system that is read-only."""
    options = re.findall(r"^\S+ / \S+ (\S+)", machine.read_text("/proc/mounts"), re.MULTILINE)
    if options and "ro" in options[-1].split(","):
        yield Finding(
            "read-only-root",
            NOTE,
            "is read-only",
            "root file system",
            "mount a folder for ROSETTA_HOME and one for checkpoints; --tmpfs /tmp gives room for "
            "temporary files",
        )


def _check_proxy(machine: Machine) -> Iterator[Finding]:
    """Check that connections between the processes of a run avoid the proxies.

    The processes find each other through gRPC, which uses the proxies of the environment. The
    findings do not show a proxy's address, which may have a password.
    """
    environment = machine.environment
    proxies = sorted(
        name
        for name in environment
        if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
        and environment[name]
    )
    exceptions = [environment.get(name, "") for name in _NO_PROXY_VARIABLES]
    if not proxies or "*" in [text.strip() for text in exceptions]:
        return
    patterns = [pattern.strip() for pattern in ",".join(exceptions).split(",")]
    suffixes = tuple(pattern.lstrip("*").lower() for pattern in patterns if pattern.lstrip("*"))
    hosts = ["localhost", "127.0.0.1", *slurm_job.read_job_hosts(environment)]
    proxied = [host for host in hosts if not (suffixes and host.lower().endswith(suffixes))]
    if not proxied:
        return
    has_several_processes = len(hosts) > 3 or slurm_job.count_node_tasks(environment) > 1
    others = " and other hosts of this job" if len(proxied) > 1 and has_several_processes else ""
    what = (
        f"connections to {proxied[0]}{others} go through a proxy: a run of several processes hangs "
        "at its start"
    )
    yield Finding(
        "proxy-for-local",
        WARNING if has_several_processes else NOTE,
        what,
        ", ".join(proxies),
        "name localhost, 127.0.0.1 and the nodes in no_proxy, or unset the proxy for the run",
    )
