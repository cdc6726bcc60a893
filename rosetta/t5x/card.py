"""The NVIDIA cards of this machine, by asking the driver's own program, so that JAX need not start for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rosetta.errors import UserError

FP8 = (8, 9)  # the oldest compute capability with FP8 matrix products: Ada; Hopper is 9.0
CUDNN = (8, 0)  # and with cuDNN's fused attention in bfloat16: Ampere


@dataclass(frozen=True)
class Card:
    """A card: its name as nvidia-smi prints it, and its compute capability, (0, 0) where it is not known."""

    name: str
    capability: tuple[int, int]


def cards() -> list[Card]:
    """Return the cards that this process may use; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    argv = [program, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = [_card(line) for line in done.stdout.splitlines() if "," in line] if done.returncode == 0 else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    wanted = [word.strip() for word in visible.split(",") if word.strip()]
    # By number each names one card; by UUID it is enough to know how many there are.
    return [found[int(word) if word.isdigit() and int(word) < len(found) else 0] for word in wanted] if found else []


def _card(line: str) -> Card:
    name, _, capability = line.rpartition(",")
    major, _, minor = capability.strip().partition(".")
    known = major.isdigit() and minor.isdigit()
    return Card(name.strip(), (int(major), int(minor)) if known else (0, 0))


def present() -> bool:
    """Is there a card's device file? True in containers whose image lacks nvidia-smi, too."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def platform() -> str:
    """Return JAX_PLATFORMS for a run: what the user set, else CUDA.

    Raises:
      UserError: there is no card, and nobody asked for the CPU.
    """
    asked = os.environ.get("JAX_PLATFORMS", "")
    if asked:
        return asked
    if not present():
        raise UserError("no NVIDIA GPU is visible", "this machine", "start the container with --gpus=all, or set JAX_PLATFORMS=cpu to train on the CPU")
    return "cuda,cpu"
