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
    from collections.abc import Collection, Mapping, Sequence

    from rosetta.accept.setup import Setup
    from rosetta.bench import t5
    from rosetta.core.gpus import Gpu

# How far the memory of the program may be from the plan's, as a share.
MEMORY_TOLERANCE = 0.1
OPTION = "accept --plan"
# Switches of `rosetta plan --with` after which the model does not have its size any more.
MODEL_SWITCHES = (
    *("num_encoder_layers", "num_decoder_layers", "emb_dim", "num_heads", "head_dim", "mlp_dim"),
    *("vocab_size", "mlp_activations"),
)


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
        step: A step of T5: `family`, `size`, the global `batch`, the lengths `inputs` and
            `targets`, and the names of `switches` that were set. Empty for other models.
    """

    name: str
    seconds: float
    fastest: float
    slowest: float
    peak: float
    fp8: bool
    gpu: str
    gpu_count: int
    step: Mapping[str, Any]

    def explain_difference(self, gpu: Gpu | None, task: t5.Task) -> str:
        """Return why the plan is not for a step that was measured; "" if it is.

        Args:
            gpu: The GPU that was measured, if the table of GPUs has it.
            task: The step that was measured.
        """
        if gpu is None or gpu.name != self.gpu or self.gpu_count != 1:
            return f"it is for {self.gpu_count} x {self.gpu}"
        measured = {
            "family": "t5_1_1",
            "size": task.size,
            "batch": task.batch,
            "inputs": task.inputs,
            "targets": task.targets,
        }
        if any(self.step.get(name) != value for name, value in measured.items()):
            return f"it is not for {task.size} with {task.batch} x {task.inputs}/{task.targets}"
        changed = [name for name in self.step["switches"] if name in MODEL_SWITCHES]
        return f"it sets {', '.join(changed)}" if changed else ""


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
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
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
        dict(run.get("step") or {}),
    )


def _read_golden(file: str, document: dict[str, Any]) -> RecordedPlan:
    """Return the plan of a golden, with the range that roofline's factors give."""
    words = document["plan"].split()
    options, switches = _split_words(words)
    gpu_count, step = int(options.get("--gpus", 1)), dict[str, Any]()
    if words[0] == "t5x":
        step = {
            "family": options.get("--family", "t5_1_1"),
            "size": options.get("--size", "large"),
            "batch": gpu_count
            // int(options.get("--tp", 1))
            * int(options.get("--batch-per-gpu", 32)),
            "inputs": int(options.get("--inputs", 512)),
            "targets": int(options.get("--targets", 128)),
            "switches": switches,
        }
    figures = document["figures"]
    seconds = float(figures["time"])
    gpu = gpus.GPUS[options["--card"]]
    return RecordedPlan(
        Path(file).name,
        seconds,
        seconds / roofline.FASTEST,
        seconds / roofline.SLOWEST,
        float(figures["peak"]),
        float(figures.get("fp8-share") or 0.0) > 0,
        gpu.name,
        gpu_count,
        step,
    )


def _split_words(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of a recorded command with their last value, and the switches it sets."""
    options, switches, option = dict[str, str](), list[str](), ""
    for word in words[1:]:
        if word.startswith("--"):
            option = word
        elif option == "--with":
            switches.append(word.partition("=")[0])
        else:
            options[option] = word
    return options, switches


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
    setup: Setup, name: str, *, seconds: float, peak: int | None, fp8: bool, task: t5.Task
) -> Measurement:
    """Compare a measured step with the recorded plans of the same precision.

    Returns:
        The ratios and the checks. A plan for another GPU, for several, or for another step is
        compared but not checked.
    """
    numbers, checks, notes = list[Number](), list[Check](), list[str]()
    for plan in map(read_plan, setup.plans):
        if plan.fp8 != fp8:
            continue
        numbers.append(Number(f"{name}, measured beside {plan.name}", seconds / plan.seconds, ""))
        memory_ratio = math.nan if peak is None else peak / plan.peak
        numbers.append(Number(f"{name}, memory beside {plan.name}", memory_ratio, ""))
        if difference := plan.explain_difference(setup.find_gpu(), task):
            notes.append(f"{plan.name} is not checked: {difference}")
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


def describe_plans_without_step(setup: Setup, measured_fp8: Collection[bool]) -> list[str]:
    """Return a note for each plan that was not compared: no step of its precision was measured.

    Args:
        setup: What to measure.
        measured_fp8: Whether products were in FP8, of each step that was measured.
    """
    notes = []
    for plan in map(read_plan, setup.plans):
        if plan.fp8 not in measured_fp8:
            precision = "FP8" if plan.fp8 else "bfloat16"
            notes.append(f"{plan.name} is not compared: no step in {precision} was measured")
    return notes
