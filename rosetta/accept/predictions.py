"""Compare measured steps with predictions: of rosetta's roofline, and of recorded plans.

A recorded plan is what `rosetta plan --json` prints, or a golden of tests/plans.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.accept.records import Check, Measurement, Number
from rosetta.core import gpus
from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.plan import roofline, step_time

if TYPE_CHECKING:
    from rosetta.accept.setup import Setup
    from rosetta.bench import t5

# How far the memory of the program may be from the plan's, as a share.
MEMORY_TOLERANCE = 0.1
OPTION = "accept --plan"


@dataclass(frozen=True)
class RecordedPlan:
    """The figures of a plan for one GPU.

    Attributes:
        name: The name of its file.
        seconds: The predicted time of a step.
        fastest: The lower end of the range.
        slowest: The upper end.
        peak: The predicted memory in bytes.
        fp8: Whether products are in FP8.
        gpu: NVIDIA's name of the GPU.
        gpu_count: The GPUs of the step.
    """

    name: str
    seconds: float
    fastest: float
    slowest: float
    peak: float
    fp8: bool
    gpu: str
    gpu_count: int


def read_plan(file: str) -> RecordedPlan:
    """Return the plan in a file.

    Raises:
        UserError: The file cannot be read, or is not a plan with figures.
    """
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})",
            f"{OPTION} {file}",
            "name a file with the output of `rosetta plan --json`",
            kind=MISSING,
        ) from None
    except ValueError:
        document = None
    try:
        return _read_golden(file, document) if "plan" in document else _read_result(file, document)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            "not a plan with figures",
            f"{OPTION} {file}",
            "name a file with the output of `rosetta plan --json`, or a recorded golden of "
            "tests/plans",
            kind=INVALID,
        ) from None


def _read_result(file: str, document: dict[str, Any]) -> RecordedPlan:
    """Return the plan that `rosetta plan --json` printed."""
    result = document["result"]
    seconds, run = result["time"]["seconds"], result["run"]
    return RecordedPlan(
        Path(file).name,
        float(seconds["likely"]),
        float(seconds["fastest"]),
        float(seconds["slowest"]),
        float(result["memory"]["peak"]),
        result["gemms"]["fp8"] > 0,
        str(run["gpu"]),
        int(run["gpus"]),
    )


def _read_golden(file: str, document: dict[str, Any]) -> RecordedPlan:
    """Return the plan of a golden, with the range that roofline's factors give."""
    words = document["plan"].split()
    figures = document["figures"]
    seconds = float(figures["time"])
    gpu = gpus.GPUS[words[words.index("--card") + 1]]
    return RecordedPlan(
        Path(file).name,
        seconds,
        seconds / roofline.FASTEST,
        seconds / roofline.SLOWEST,
        float(figures["peak"]),
        float(figures.get("fp8-share") or 0.0) > 0,
        gpu.name,
        int(words[words.index("--gpus") + 1]) if "--gpus" in words else 1,
    )


def predict_step(setup: Setup, text: str, name: str, seconds: float, task: t5.Task) -> list[Number]:
    """Return the time that the roofline predicts for the program that was measured.

    Args:
        setup: What to measure. If the table of GPUs does not have its GPU, there is no prediction.
        text: The optimised module.
        name: The name of the mode.
        seconds: The measured time.
        task: The step.
    """
    gpu = setup.find_gpu()
    if gpu is None:
        return []
    workload = step_time.Workload(
        task.batch, task.inputs + task.targets, task.devices, task.devices
    )
    predicted = step_time.report_time(text, gpu, workload)["seconds"]["likely"]
    return [
        Number(f"{name}, predicted", predicted * 1e3, "ms"),
        Number(f"{name}, measured beside predicted", seconds / predicted, ""),
    ]


def compare_with_plans(
    setup: Setup, name: str, *, seconds: float, peak: int | None, fp8: bool
) -> Measurement:
    """Compare a measured step with the recorded plans of the same precision.

    Returns:
        The ratios and the checks. A plan for another GPU, or for several, is compared
        but not checked.
    """
    numbers, checks, notes = list[Number](), list[Check](), list[str]()
    for plan in map(read_plan, setup.plans):
        if plan.fp8 != fp8:
            continue
        numbers.append(Number(f"{name}, measured beside {plan.name}", seconds / plan.seconds, ""))
        memory_ratio = math.nan if peak is None else peak / plan.peak
        numbers.append(Number(f"{name}, memory beside {plan.name}", memory_ratio, ""))
        gpu = setup.find_gpu()
        if gpu is None or gpu.name != plan.gpu or plan.gpu_count != 1:
            notes.append(f"{plan.name} is for {plan.gpu_count} x {plan.gpu}: it is not checked")
            continue
        checks += [
            Check(f"{name}, time beside the slowest of {plan.name}", seconds / plan.slowest, 1.0),
            Check(f"{name}, the fastest of {plan.name} beside it", plan.fastest / seconds, 1.0),
            Check(
                f"{name}, distance from the memory of {plan.name}",
                abs(memory_ratio - 1),
                MEMORY_TOLERANCE,
            ),
        ]
    return Measurement(tuple(numbers), tuple(checks), tuple(notes))
