"""Check the NVIDIA driver and the GPUs against the environment and the settings of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import gpus
from rosetta.core.gpu_query import UNKNOWN_CAPABILITY, format_capability
from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.doctor.machine import Machine

# CUDA -> the oldest branch of the driver that it runs on
# (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
OLDEST_DRIVER = {12: 525, 13: 580}
_IN_USE = 0.05  # share of a GPU's memory; if more is in use, another program uses the GPU


def check(machine: Machine) -> Iterator[Finding]:
    """Yield the problems of the driver and the GPUs."""
    if machine.driver or machine.device_count:
        yield from _check_nvidia_smi(machine)
        yield from _check_driver(machine)
        yield from _check_gpus(machine)
    else:
        yield _report_missing_driver(machine)
    yield from _check_requested_features(machine)


def _report_missing_driver(machine: Machine) -> Finding:
    """Return the finding for a machine without an NVIDIA driver."""
    if machine.cuda is None or machine.on_cpu:
        return Finding(
            "no-driver",
            NOTE,
            "no NVIDIA driver is installed, so that a run here uses the CPU",
            "this machine",
            "start GPU runs on a machine with GPUs",
        )
    return Finding(
        "no-driver",
        BLOCKER,
        f"no NVIDIA driver is installed, but this environment is for CUDA {machine.cuda}",
        "this machine",
        "use a node with GPUs, or a container with --gpus=all; or set JAX_PLATFORMS=cpu to run on "
        "the CPU",
    )


def _describe_driver(machine: Machine) -> str:
    """Return the driver as the place of a finding."""
    return f"NVIDIA driver {machine.driver}".rstrip()


def _check_nvidia_smi(machine: Machine) -> Iterator[Finding]:
    """Check that nvidia-smi is installed and works."""
    if not machine.device_count:
        return
    report = machine.nvidia_smi
    if report and report.failure:
        yield Finding(
            "nvidia-smi-fails",
            BLOCKER,
            f"nvidia-smi failed: {report.failure}",
            _describe_driver(machine),
            "start the container again; if nvidia-smi fails on the host too, reload the driver's "
            "kernel module or reboot",
        )
    if report is None and not machine.quick and not machine.on_cpu:
        yield Finding(
            "nvidia-smi-missing",
            WARNING,
            "nvidia-smi cannot be run: the scripts cannot detect the GPUs, and leave FP8 and fused "
            "attention off",
            _describe_driver(machine),
            "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility; elsewhere, put "
            "nvidia-smi on PATH",
        )


def _check_driver(machine: Machine) -> Iterator[Finding]:
    """Check that the driver can run the CUDA of this environment."""
    cuda = machine.cuda
    branch = int(machine.driver.partition(".")[0]) if machine.driver else None
    is_too_old = cuda in OLDEST_DRIVER and branch is not None and branch < OLDEST_DRIVER[cuda]
    # An old driver runs a newer CUDA with NVIDIA's package for forward compatibility, which only
    # libcuda knows of. Loading libcuda takes long, so that the quick checks do it only if needed.
    supported: int | None = 0
    if machine.device_count and not machine.on_cpu and (is_too_old or not machine.quick):
        supported = machine.query_driver_cuda_version()
    if supported is None:
        yield Finding(
            "libcuda-missing",
            BLOCKER,
            "the machine has GPUs, but libcuda.so.1 cannot be loaded",
            _describe_driver(machine),
            "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility; elsewhere, install "
            "the driver's libcuda",
        )
    elif cuda and is_too_old and not machine.on_cpu and supported // 1000 < cuda:
        remedy = f"install driver {OLDEST_DRIVER[cuda]} or newer"
        oldest_for_previous = OLDEST_DRIVER.get(cuda - 1)
        if branch and oldest_for_previous and branch >= oldest_for_previous:
            remedy += f", or use an environment for cuda{cuda - 1}"
        yield Finding(
            "driver-too-old",
            BLOCKER,
            f"CUDA {cuda} of this environment needs driver {OLDEST_DRIVER[cuda]} or newer",
            _describe_driver(machine),
            remedy,
        )


def _check_gpus(machine: Machine) -> Iterator[Finding]:
    """Check that the GPUs are new enough, alike and free."""
    yield from _check_gpu_age(machine)
    names = sorted({detected.name for detected in machine.gpus})
    if len(names) > 1:
        yield Finding(
            "cards-differ",
            WARNING,
            f"the GPUs differ ({', '.join(names)}): each step waits for the slowest",
            "this machine",
            "choose GPUs of one kind with CUDA_VISIBLE_DEVICES",
        )
    used_shares = machine.nvidia_smi.used if machine.nvidia_smi else ()
    busy = [str(number) for number, used in enumerate(used_shares) if used > _IN_USE]
    if busy:
        yield Finding(
            "card-in-use",
            WARNING,
            "another program uses memory of the GPU",
            f"GPU {', '.join(busy)}",
            "end that program (nvidia-smi names it), or choose other GPUs with "
            "CUDA_VISIBLE_DEVICES: JAX takes most of the memory when it starts",
        )


def _check_gpu_age(machine: Machine) -> Iterator[Finding]:
    """Check that the CUDA of this environment supports the GPUs."""
    oldest = gpus.OLDEST_CAPABILITY.get(machine.cuda) if machine.cuda is not None else None
    if oldest is None:
        return
    too_old = [
        detected
        for detected in machine.gpus
        if detected.capability != UNKNOWN_CAPABILITY and detected.capability < oldest
    ]
    if not too_old:
        return
    capability = too_old[0].capability
    has_older_environment = capability >= gpus.OLDEST_CAPABILITY[12]
    yield Finding(
        "card-too-old",
        BLOCKER,
        f"CUDA {machine.cuda} does not support compute capability {format_capability(capability)}",
        too_old[0].name,
        "use an environment for cuda12" if has_older_environment else "use a newer GPU",
    )


def _check_requested_features(machine: Machine) -> Iterator[Finding]:
    """Check that the GPUs and the environment have what ENABLE_FP8 and ENABLE_TE ask for."""
    if machine.on_cpu:
        return
    if machine.is_on("ENABLE_FP8"):
        unsupported = _find_gpu_without(machine, gpus.FP8)
        if unsupported:
            yield Finding(
                "fp8-without-hardware",
                BLOCKER,
                f"{unsupported} has no FP8",
                "ENABLE_FP8",
                f"set ENABLE_FP8=0; {gpus.FP8.requirement}",
            )
    if not machine.is_on("ENABLE_TE"):
        return
    if machine.baked and machine.find_version("transformer-engine-jax") is None:
        reason = machine.record.get("transformer_engine_reason")
        details = f": {reason}" if reason else ""
        yield Finding(
            "te-missing",
            BLOCKER,
            f"this environment does not have Transformer Engine{details}",
            "ENABLE_TE",
            "set ENABLE_TE=0, or use an image that has Transformer Engine",
        )
    unsupported = _find_gpu_without(machine, gpus.TRANSFORMER_ENGINE)
    if unsupported:
        yield Finding(
            "te-without-hardware",
            BLOCKER,
            f"{unsupported} is not supported by Transformer Engine",
            "ENABLE_TE",
            f"set ENABLE_TE=0; {gpus.TRANSFORMER_ENGINE.requirement}",
        )


def _find_gpu_without(machine: Machine, feature: gpus.Feature) -> str:
    """Return the first GPU without a feature and its compute capability; "" if there is none."""
    for detected in machine.gpus:
        capability = detected.capability
        if capability != UNKNOWN_CAPABILITY and not feature.supported_by(capability):
            return f"{detected.name} (compute capability {format_capability(capability)})"
    return ""
