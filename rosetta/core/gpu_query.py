"""The NVIDIA cards of this machine, by asking the driver's own program, so that JAX need not start
for it.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rosetta.core.errors import MISSING, UserError

FP8 = (
    8,
    9,
)  # the oldest compute capability with FP8 matrix products: Ada; Hopper is 9.0
CUDNN = (8, 0)  # the oldest compute capability with cuDNN's fused attention in bfloat16: Ampere


@dataclass(frozen=True)
class Card:
    """A card: its name as nvidia-smi prints it, and its compute capability, (0, 0) where it is not
    known.
    """

    name: str
    capability: tuple[int, int]


def cards() -> list[Card]:
    """Return the cards that this process may use; empty without a driver."""
    found = [_card(line) for line in queried("name,compute_cap").splitlines() if "," in line]
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def queried(fields: str) -> str:
    """Return what nvidia-smi says of all cards, a line for each; empty without a driver."""
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def visible(found: list[Card], chosen: str | None) -> list[Card]:
    """Return the cards that CUDA_VISIBLE_DEVICES leaves, None leaving all.

    As in CUDA, the first name of no card ends the list.
    """
    if chosen is None or not found:
        return found
    left = list[Card]()
    for word in (each.strip() for each in chosen.split(",")):
        if word.startswith(("GPU-", "MIG-")):
            left.append(
                found[0]
            )  # which one it is was not asked for: cards of one machine are alike
        elif word.isdigit() and int(word) < len(found):
            left.append(found[int(word)])
        else:
            break
    return left


def _card(line: str) -> Card:
    name, _, capability = line.rpartition(",")
    major, _, minor = capability.strip().partition(".")
    known = major.isdigit() and minor.isdigit()
    return Card(name.strip(), (int(major), int(minor)) if known else (0, 0))


def present() -> bool:
    """Is there a card's device file? True in containers whose image lacks nvidia-smi, too."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def platform(found: list[Card]) -> str:
    """Return JAX_PLATFORMS for a run: what the user set, else CUDA.

    Raises:
      UserError: there is no card, and nobody asked for the CPU.
    """
    if asked := os.environ.get("JAX_PLATFORMS", ""):
        return asked
    if not found and os.environ.get("CUDA_VISIBLE_DEVICES", "?").strip() in ("", "-1"):
        raise UserError(
            "it hides all GPUs",
            f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}",
            "unset it, or set JAX_PLATFORMS=cpu to run on the CPU",
            kind=MISSING,
        )
    if not found and not present():
        raise UserError(
            "no NVIDIA GPU is visible",
            "this machine",
            "start the container with --gpus=all, or set JAX_PLATFORMS=cpu to run on the CPU",
            kind=MISSING,
        )
    return "cuda,cpu"


def platform_or_refusal(found: list[Card]) -> tuple[str, UserError | None]:
    """Return JAX_PLATFORMS for a run, and why it cannot start on this machine: a dry run may be for
    another one.
    """
    try:
        return platform(found), None
    except UserError as error:
        return "cuda,cpu", error
