"""The driver against the CUDA that is baked in, and the GPUs against what is asked of them."""

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
_IN_USE = 0.05  # of a GPU's memory: more is another program's


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what is wrong with driver and GPUs."""
    if machine.driver or machine.devices:
        yield from _check_driver(machine)
        yield from _check_gpus(machine)
    else:
        yield from _report_missing_driver(machine)
    yield from _check_requested_features(machine)


def _report_missing_driver(machine: Machine) -> Iterator[Finding]:
    if machine.cuda is None or machine.on_cpu:
        yield Finding(
            "no-driver",
            NOTE,
            "it has no NVIDIA driver: what runs here runs on the CPU",
            "this machine",
            "start GPU runs where the GPUs are",
        )
    else:
        do = (
            "start it on a node with GPUs, a container with --gpus=all; JAX_PLATFORMS=cpu runs on "
            "the CPU"
        )
        yield Finding(
            "no-driver",
            BLOCKER,
            f"it has no NVIDIA driver, and this environment is for CUDA {machine.cuda}",
            "this machine",
            do,
        )


def _check_driver(machine: Machine) -> Iterator[Finding]:
    where = f"NVIDIA driver {machine.driver}".rstrip()
    if machine.asked and machine.asked.failure and machine.devices:
        do = (
            "start the container again; if the host's nvidia-smi says it too, load the driver's "
            "module anew or boot"
        )
        yield Finding(
            "nvidia-smi-fails", BLOCKER, f"nvidia-smi says: {machine.asked.failure}", where, do
        )
    if machine.asked is None and machine.devices and not machine.quick and not machine.on_cpu:
        do = (
            "give the container NVIDIA_DRIVER_CAPABILITIES=compute,utility; outside of one, put "
            "nvidia-smi on PATH"
        )
        yield Finding(
            "nvidia-smi-missing",
            WARNING,
            (
                "no nvidia-smi can be run: the scripts do not know the GPUs, and leave FP8 and "
                "fused attention off"
            ),
            where,
            do,
        )
    wanted = machine.cuda
    branch = int(machine.driver.partition(".")[0]) if machine.driver else None
    too_old = wanted in OLDEST_DRIVER and branch is not None and branch < OLDEST_DRIVER[wanted]
    # Only libcuda knows of NVIDIA's packages for forward compatibility; it takes long to load.
    api = (
        machine.driver_api()
        if machine.devices and not machine.on_cpu and (too_old or not machine.quick)
        else 0
    )
    if api is None:
        do = (
            "give the container NVIDIA_DRIVER_CAPABILITIES=compute,utility; outside of one, "
            "install the driver's libcuda"
        )
        yield Finding(
            "libcuda-missing",
            BLOCKER,
            "there are GPUs, but libcuda.so.1 cannot be loaded",
            where,
            do,
        )
    elif wanted and too_old and api // 1000 < wanted:
        do = f"install {OLDEST_DRIVER[wanted]} or newer" + (
            f", or use an environment for cuda{wanted - 1}"
            if branch and branch >= OLDEST_DRIVER.get(wanted - 1, branch + 1)
            else ""
        )
        yield Finding(
            "driver-too-old",
            BLOCKER,
            f"CUDA {wanted} of this environment needs driver {OLDEST_DRIVER[wanted]}",
            where,
            do,
        )


def _check_gpus(machine: Machine) -> Iterator[Finding]:
    cards = machine.cards
    known = [each for each in cards if each.capability != UNKNOWN_CAPABILITY]
    if machine.cuda is not None and machine.cuda in gpus.OLDEST_CAPABILITY:
        oldest = gpus.OLDEST_CAPABILITY[machine.cuda]
        old = [gpu for gpu in known if gpu.capability < oldest]
        if old:
            do = (
                "use an environment for cuda12"
                if old[0].capability >= gpus.OLDEST_CAPABILITY[12]
                else "use a newer GPU"
            )
            yield Finding(
                "card-too-old",
                BLOCKER,
                f"CUDA {machine.cuda} has no code for compute capability "
                f"{format_capability(old[0].capability)}",
                old[0].name,
                do,
            )
    if len({each.name for each in cards}) > 1:
        names = ", ".join(sorted({each.name for each in cards}))
        yield Finding(
            "cards-differ",
            WARNING,
            f"the GPUs differ ({names}): each step waits for the slowest",
            "this machine",
            "choose alike ones with CUDA_VISIBLE_DEVICES",
        )
    busy = [
        number
        for number, used in enumerate(machine.asked.used if machine.asked else ())
        if used > _IN_USE
    ]
    if busy:
        do = (
            "end it (nvidia-smi names it), or choose other GPUs with CUDA_VISIBLE_DEVICES: JAX "
            "takes most of the memory at its start"
        )
        yield Finding(
            "card-in-use",
            WARNING,
            "another program holds memory of it",
            f"GPU {', '.join(map(str, busy))}",
            do,
        )


def _check_requested_features(machine: Machine) -> Iterator[Finding]:
    if machine.on_cpu:
        return
    known = [each for each in machine.cards if each.capability != UNKNOWN_CAPABILITY]
    if machine.on("ENABLE_FP8"):
        lacking = [gpu for gpu in known if not gpus.FP8.supported_by(gpu.capability)]
        if lacking:
            capability = format_capability(lacking[0].capability)
            what = f"{lacking[0].name} (compute capability {capability}) has no FP8"
            yield Finding(
                "fp8-without-hardware",
                BLOCKER,
                what,
                "ENABLE_FP8",
                f"set ENABLE_FP8=0; {gpus.FP8.requirement}",
            )
    if machine.on("ENABLE_TE"):
        if machine.baked and machine.version("transformer-engine-jax") is None:
            reason = machine.record.get("transformer_engine_reason")
            what = "Transformer Engine is not in this environment" + (
                f": {reason}" if reason else ""
            )
            yield Finding(
                "te-missing",
                BLOCKER,
                what,
                "ENABLE_TE",
                "set ENABLE_TE=0, or use an image that has it",
            )
        lacking = [gpu for gpu in known if not gpus.TRANSFORMER_ENGINE.supported_by(gpu.capability)]
        if lacking:
            what = (
                f"Transformer Engine has no kernels for {lacking[0].name} (compute capability "
                f"{format_capability(lacking[0].capability)})"
            )
            yield Finding(
                "te-without-hardware",
                BLOCKER,
                what,
                "ENABLE_TE",
                f"set ENABLE_TE=0; {gpus.TRANSFORMER_ENGINE.requirement}",
            )
