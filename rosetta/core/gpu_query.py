"""The NVIDIA GPUs of this machine, by asking the driver's own program, so that JAX need not start
for it.
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


@dataclass(frozen=True)
class DetectedGpu:
    """A GPU of this machine.

    Attributes:
      name: as nvidia-smi prints it; rosetta.core.gpus has the figures of GPUs by name.
      capability: compute capability, UNKNOWN_CAPABILITY where the driver does not say.
    """

    name: str
    capability: tuple[int, int]


def parse_capability(text: str) -> tuple[int, int]:
    """Return a compute capability such as "9.0" as numbers, UNKNOWN_CAPABILITY for another text."""
    found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", text.strip())
    return (int(found[1]), int(found[2])) if found else UNKNOWN_CAPABILITY


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
    """Return what nvidia-smi says of all GPUs, a line for each; empty without a driver."""
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def select_visible_gpus(found: list[DetectedGpu], chosen: str | None) -> list[DetectedGpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, None leaving all.

    As in CUDA, the first name of no GPU ends the list.
    """
    if chosen is None or not found:
        return found
    left = list[DetectedGpu]()
    for word in (each.strip() for each in chosen.split(",")):
        if word.startswith(("GPU-", "MIG-")):
            left.append(
                found[0]
            )  # which one it is was not asked for: GPUs of one machine are alike
        else:
            number = parse_digits(word)
            if number is None or number >= len(found):
                break
            left.append(found[number])
    return left


def _parse_line(line: str) -> DetectedGpu:
    name, _, capability = line.rpartition(",")
    return DetectedGpu(name.strip(), parse_capability(capability))


def has_gpu_device_file() -> bool:
    """Is there a GPU's device file? True in containers whose image lacks nvidia-smi, too."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def select_jax_platforms(found: list[DetectedGpu], environment: Mapping[str, str]) -> str:
    """Return JAX_PLATFORMS for a run: what the user set, else CUDA.

    Args:
      found: The GPUs that the run may use, see detect_gpus.
      environment: The variables of the run.

    Raises:
      UserError: JAX has no such platform; or there is no GPU, and nobody asked for the CPU.
    """
    if asked := setting_values.read_setting(environment, "JAX_PLATFORMS"):
        return ",".join(asked)  # JAX takes no spaces between them
    chosen_gpus = environment.get("CUDA_VISIBLE_DEVICES", "?")
    if not found and chosen_gpus.strip() in ("", "-1"):
        raise UserError(
            "it hides all GPUs",
            f"CUDA_VISIBLE_DEVICES={chosen_gpus}",
            "unset it, or set JAX_PLATFORMS=cpu to run on the CPU",
            kind=MISSING,
        )
    if not found and not has_gpu_device_file():
        raise UserError(
            "no NVIDIA GPU is visible",
            "this machine",
            "start the container with --gpus=all, or set JAX_PLATFORMS=cpu to run on the CPU",
            kind=MISSING,
        )
    return "cuda,cpu"


def select_jax_platforms_or_error(
    found: list[DetectedGpu], environment: Mapping[str, str]
) -> tuple[str, UserError | None]:
    """Return JAX_PLATFORMS for a run, and why it cannot start on this machine: a dry run may be for
    another one.

    Args:
      found: See platform.
      environment: See platform.

    Raises:
      UserError: JAX has no such platform.
    """
    try:
        return select_jax_platforms(found, environment), None
    except UserError as error:
        if error.kind != MISSING:
            raise
        return "cuda,cpu", error
