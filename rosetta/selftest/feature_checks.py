"""Check the features that the plain training runs of the self-test do not use.

The checks train a tiny model in FP8, and in FP8 and attention by Transformer Engine, and sum an
array over all GPUs. A check that cannot run says why, and whether the environment or the machine
lacks what the check needs. `build.py promote` reads these results.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rosetta.core import gpu_query, gpus, transformer_engine
from rosetta.nn import fallback_notice
from rosetta.selftest import checkpoint_record, child_process, training

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.selftest.child_process import Context
    from rosetta.selftest.workload import Workload

FP8, TE, COLLECTIVE = "fp8", "te", "collective"
NAMES = (FP8, TE, COLLECTIVE)
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
# What a check that was not run lacks.
ENVIRONMENT, MACHINE, OPTION = "environment", "machine", "option"

STEPS = 15  # the loss is reported three times, so that it can be seen to fall
# What computes the products of each check that trains, as `make_command` names it.
_FP8_MODES = {FP8: "xla", TE: "te"}
_TIMEOUT = 600.0  # seconds for the collective
_CPU_DEVICES = 2  # the fewest virtual devices of the collective on a CPU


@dataclass(frozen=True)
class FeatureCheck:
    """The result of one check.

    Attributes:
        name: One of NAMES.
        outcome: PASSED, FAILED or NOT_RUN.
        lacks: For a check that was not run, what lacks the feature: ENVIRONMENT, MACHINE, or
            OPTION if an option of the self-test switched training off. Otherwise None.
        reason: Why the check was not run; None if it was.
        platform: "cpu" or "cuda".
        devices: The number of devices; 0 if the check was not run.
        losses: The losses by step; empty for the collective.
        wall_s: The seconds that the check took.
        problems: A line for each problem.
    """

    name: str
    outcome: str
    lacks: str | None = None
    reason: str | None = None
    platform: str = field(default_factory=child_process.read_platform)
    devices: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    wall_s: float = 0.0
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the check as it stands in the JSON document of the self-test."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "lacks": self.lacks,
            "reason": self.reason,
            "platform": self.platform,
            "devices": self.devices,
            "losses": {str(step): loss for step, loss in self.losses.items()},
            "wall_s": round(self.wall_s, 1),
        }


def skip_check(name: str, lacks: str, reason: str) -> FeatureCheck:
    """Return the result of a check that was not run."""
    return FeatureCheck(name, NOT_RUN, lacks, reason)


def _find_gpu_problem(feature: gpus.Feature) -> str:
    """Return why the first GPU lacks a feature; "" if it has it, or if it cannot be queried."""
    detected_gpus = gpu_query.detect_gpus(os.environ)
    if not detected_gpus:
        return ""
    gpu = detected_gpus[0]
    if gpu.capability == gpu_query.UNKNOWN_CAPABILITY or feature.supported_by(gpu.capability):
        return ""
    return f"{gpu.name}: {feature.requirement}"


def find_obstacle(name: str, workload: Workload) -> FeatureCheck | None:
    """Return the result of a check that cannot run here; None if the check can run.

    Args:
        name: FP8 or TE.
        workload: The tiny model of the framework.
    """
    if problem := workload.find_fp8_problem():
        return skip_check(name, ENVIRONMENT, problem)
    on_cpu = child_process.read_platform() == "cpu"
    if name == TE:
        if absence := transformer_engine.explain_absence():
            reason = f"Transformer Engine is not in this environment: {absence}"
            return skip_check(name, ENVIRONMENT, reason)
        if on_cpu:
            reason = (
                "Transformer Engine needs an NVIDIA GPU, and this self-test trained on the CPU "
                f"({child_process.PLATFORM_VARIABLE}=cuda trains on a GPU)"
            )
            return skip_check(name, MACHINE, reason)
    for feature in (gpus.FP8, gpus.TRANSFORMER_ENGINE) if name == TE else (gpus.FP8,):
        if not on_cpu and (problem := _find_gpu_problem(feature)):
            return skip_check(name, MACHINE, problem)
    return None


def train_in_fp8(context: Context, workload: Workload, folder: Path, name: str) -> FeatureCheck:
    """Train a few steps in FP8 on one device, and check that FP8 was used.

    Args:
        context: What the child processes of the self-test share.
        workload: The tiny model.
        folder: The folder of the run, which this creates.
        name: FP8 or TE.
    """
    if obstacle := find_obstacle(name, workload):
        return obstacle
    start = time.monotonic()
    folder.mkdir(parents=True)
    workload.write_data(folder)
    log = folder / "train.log"
    command = workload.make_command(folder, steps=STEPS, devices=1, fp8=_FP8_MODES[name])
    losses, problem = training.run_process(
        context, workload, command, log, f"{workload.framework}, {name}"
    )
    problems = [f"training {problem}"] if problem else []
    if not problem:
        checkpoints = workload.list_checkpoint_steps(folder)
        problems += training.find_training_problems(losses, checkpoints, STEPS)
        problems += _find_fp8_problems(folder, log, name)
    return FeatureCheck(
        name,
        FAILED if problems else PASSED,
        devices=1,
        losses=losses,
        wall_s=time.monotonic() - start,
        problems=tuple(problems),
    )


def _find_fp8_problems(folder: Path, log: Path, name: str) -> list[str]:
    """Return why a run that succeeded was not computed as it had to be."""
    problems = []
    if not checkpoint_record.has_fp8_state(folder):
        problems.append("the checkpoint has no FP8 state: the products were not in FP8")
    if name == TE:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        problems += [line for line in lines if fallback_notice.INSTEAD_OF_TE in line]
    return problems


def sum_over_all_devices(context: Context, workdir: Path, cpu_devices: int) -> FeatureCheck:
    """Sum an array over all GPUs, or over virtual CPU devices, and compare each element.

    Args:
        context: What the child processes of the self-test share.
        workdir: The folder for the log.
        cpu_devices: The number of virtual devices on a CPU; at least two are used.
    """
    start = time.monotonic()
    result, log = (workdir / f"{COLLECTIVE}.{suffix}" for suffix in ("json", "log"))
    count = max(cpu_devices, _CPU_DEVICES)
    status = child_process.run_process(
        context,
        [sys.executable, "-P", "-m", "rosetta.selftest.all_reduce", str(result)],
        log,
        env={"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"},
        timeout=_TIMEOUT,
        all_gpus=True,
    )
    devices, problems = 0, list[str]()
    if status == 0:
        document = json.loads(result.read_text(encoding="utf-8"))
        devices = document["devices"]
        if devices < 2:
            reason = f"a collective needs two GPUs, and this machine has one ({document['kind']})"
            return skip_check(COLLECTIVE, MACHINE, reason)
        problems = [
            f"device {index} has {wrong} wrong elements in the sum over {devices} devices"
            for index, wrong in enumerate(document["wrong"])
            if wrong
        ]
    else:
        problems.append(
            f"the sum over all devices {child_process.describe_exit(status)}; the end of {log}:\n"
            f"{child_process.read_log_end(log)}"
        )
    return FeatureCheck(
        COLLECTIVE,
        FAILED if problems else PASSED,
        devices=devices,
        wall_s=time.monotonic() - start,
        problems=tuple(problems),
    )
