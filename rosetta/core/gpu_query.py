"""Find the NVIDIA GPUs of this machine with nvidia-smi, without starting JAX.

The launchers, `rosetta tune` and the doctor use this module, which also decides on which platforms
JAX runs.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.errors import MISSING, UserError
from rosetta.core.value_parsing import parse_digits
from rosetta.core.variables import setting_values

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN_CAPABILITY = (0, 0)
_CUDA_PLATFORMS = "cuda,cpu"


@dataclass(frozen=True)
class DetectedGpu:
    """A GPU of this machine.

    Attributes:
      name: The name that nvidia-smi prints. rosetta.core.gpus has the figures of GPUs by name.
      capability: The compute capability; UNKNOWN_CAPABILITY if the driver does not report it.
    """

    name: str
    capability: tuple[int, int]


def parse_capability(text: str) -> tuple[int, int]:
    """Return a compute capability such as "9.0" as numbers.

    Another text gives UNKNOWN_CAPABILITY.
    """
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", text.strip())
    return (int(match[1]), int(match[2])) if match else UNKNOWN_CAPABILITY


def format_capability(capability: tuple[int, int]) -> str:
    """Return a compute capability as NVIDIA writes it, such as "9.0"."""
    return f"{capability[0]}.{capability[1]}"


def detect_gpus(environment: Mapping[str, str]) -> list[DetectedGpu]:
    """Return the GPUs that a run on this machine may use; empty without a driver.

    Args:
      environment: The variables of the run. CUDA_VISIBLE_DEVICES chooses the GPUs.
    """
    lines = query_nvidia_smi("name,compute_cap").splitlines()
    detected_gpus = [_parse_line(line) for line in lines if "," in line]
    return select_visible_gpus(detected_gpus, environment.get("CUDA_VISIBLE_DEVICES"))


def query_nvidia_smi(fields: str) -> str:
    """Return what nvidia-smi prints for all GPUs, one line each; "" without a driver.

    Args:
      fields: The fields to print, separated by commas, as `nvidia-smi --help-query-gpu` lists them.
    """
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        completed = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout if completed.returncode == 0 else ""


def select_visible_gpus(
    detected_gpus: list[DetectedGpu], visible_devices: str | None
) -> list[DetectedGpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects.

    Args:
      detected_gpus: The GPUs of this machine, in the order of their numbers.
      visible_devices: The value of CUDA_VISIBLE_DEVICES; None selects all GPUs. As in CUDA, the
        first name that is not of a GPU ends the list.
    """
    if visible_devices is None or not detected_gpus:
        return detected_gpus
    visible_gpus = list[DetectedGpu]()
    for item in visible_devices.split(","):
        name = item.strip()
        if name.startswith(("GPU-", "MIG-")):
            # The UUIDs of the GPUs were not queried. The GPUs of one machine are alike, so that the
            # first stands for the one with this UUID.
            visible_gpus.append(detected_gpus[0])
            continue
        number = parse_digits(name)
        if number is None or number >= len(detected_gpus):
            break
        visible_gpus.append(detected_gpus[number])
    return visible_gpus


def _parse_line(line: str) -> DetectedGpu:
    """Return the GPU of one line of nvidia-smi, "NAME, CAPABILITY"."""
    name, _, capability = line.rpartition(",")
    return DetectedGpu(name.strip(), parse_capability(capability))


def has_gpu_device_file() -> bool:
    """Return whether this machine has the device file of a GPU.

    Unlike nvidia-smi, the file is there in every container that was given a GPU.
    """
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def select_jax_platforms(detected_gpus: list[DetectedGpu], environment: Mapping[str, str]) -> str:
    """Return JAX_PLATFORMS for a run: the value that the user set, else CUDA.

    Args:
      detected_gpus: The GPUs that the run may use, see detect_gpus.
      environment: The variables of the run.

    Raises:
      UserError: JAX does not have the platform; or there is no GPU, and JAX_PLATFORMS does not ask
        for the CPU.
    """
    if platforms := setting_values.read_setting(environment, "JAX_PLATFORMS"):
        return ",".join(platforms)  # JAX takes no spaces between them
    visible_devices = environment.get("CUDA_VISIBLE_DEVICES", "?")
    if not detected_gpus and visible_devices.strip() in ("", "-1"):
        raise UserError(
            "this value hides all GPUs",
            f"CUDA_VISIBLE_DEVICES={visible_devices}",
            "unset it, or set JAX_PLATFORMS=cpu to run on the CPU",
            kind=MISSING,
        )
    if not detected_gpus and not has_gpu_device_file():
        raise UserError(
            "no NVIDIA GPU is visible",
            "this machine",
            "start the container with --gpus=all, or set JAX_PLATFORMS=cpu to run on the CPU",
            kind=MISSING,
        )
    return _CUDA_PLATFORMS


def select_jax_platforms_or_error(
    detected_gpus: list[DetectedGpu], environment: Mapping[str, str]
) -> tuple[str, UserError | None]:
    """Return JAX_PLATFORMS for a run, and the error that stops a run on this machine, if any.

    A dry run shows the error and continues, because the run may be for another machine.

    Args:
      detected_gpus: See select_jax_platforms.
      environment: See select_jax_platforms.

    Raises:
      UserError: JAX does not have the platform.
    """
    try:
        return select_jax_platforms(detected_gpus, environment), None
    except UserError as error:
        if error.kind != MISSING:
            raise
        return _CUDA_PLATFORMS, error
