"""The row `saved`: a training step that is compiled without the GPU, saved, loaded and run.

`rosetta plan` compiles such steps. Whether a GPU can run one is not known: the compiler has neither
the GPU's autotuning nor, before jaxlib 0.11, the graphs of cuDNN. The step of this row calls no
cuDNN. On a CPU, the step is compiled with the device, saved and loaded all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import serialize_executable

from rosetta.accept import steps
from rosetta.accept.records import Check, Measurement, Number, SkipCase
from rosetta.accept.setup import Case, Setup, make_case
from rosetta.bench import timing
from rosetta.plan import t5x_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.bench import modes, t5

MODE = "bf16+mlp"
# The loaded step may have other kernels, which round differently.
LOSS_TOLERANCE = 0.005
_MEGA = 1e6


def list_cases(setup: Setup) -> list[Case]:
    """Return the cases of the row."""
    return [make_case("compiled-without-gpu", lambda: measure_saved_step(setup))]


def describe_absent_devices(setup: Setup) -> tuple[Sequence[Any] | None, str]:
    """Return devices like that of the machine which only the compiler knows, and a note.

    Returns:
        The devices, or None for those of this process, and what to say about them.

    Raises:
        SkipCase: The table of GPUs lacks this GPU.
    """
    if not setup.on_gpu:
        return None, "compiled with the device: JAX compiles for absent GPUs only"
    gpu = setup.find_gpu()
    if gpu is None:
        raise SkipCase(f"{setup.machine.gpu} is not in the table of GPUs")
    return t5x_step.describe_devices(gpu.short_name, 1, 1), f"compiled for {gpu.name}"


def save_and_load(compiled: Any) -> tuple[Any, int]:
    """Return a compiled step as it is read from its saved form, and the size of that in bytes.

    It is loaded for the first device of this process. The saved form contains pickles: it does not
    leave this process.
    """
    saved, in_tree, out_tree = serialize_executable.serialize(compiled)
    loaded = serialize_executable.deserialize_and_load(
        saved, in_tree, out_tree, execution_devices=jax.devices()[:1]
    )
    return loaded, len(saved)


def measure_saved_step(setup: Setup) -> Measurement:
    """Measure the loaded step beside the step that was compiled on the device.

    Raises:
        SkipCase: A package is missing, or the table of GPUs lacks this GPU.
    """
    bench_modes, bench = steps.load_bench()
    task, mode = steps.make_task(setup, 4, 0.0), bench_modes.parse_mode(MODE)
    devices, note = describe_absent_devices(setup)
    loaded, size = save_and_load(bench.compile_mode(task, mode, devices=devices))
    candidates = {
        "compiled here": _make_warm_candidate(task, mode, None),
        "loaded": _make_warm_candidate(task, mode, loaded),
    }
    losses = [candidate.loss for candidate in candidates.values()]
    timings = timing.time_in_turns(candidates, task.turns)
    numbers = [
        Number(name, timed.median / task.steps * 1e3, "ms", timed.spread)
        for name, timed in timings.items()
    ]
    ratio = timings["loaded"].ratio(timings["compiled here"])
    numbers += [
        Number("loaded, time beside the first", ratio, ""),
        Number("size of the saved step", size / _MEGA, "MB"),
    ]
    difference = abs(losses[1] / losses[0] - 1)
    checks = (Check("difference of the losses, as a share", difference, LOSS_TOLERANCE),)
    return Measurement(tuple(numbers), checks, (note,))


def _make_warm_candidate(task: t5.Task, mode: modes.Mode, compiled: Any) -> t5.Candidate:
    """Return a step that has trained some steps from the initial state.

    Args:
        task: The training step.
        mode: Its mode.
        compiled: The compiled step; None to compile it here.
    """
    _modes, bench = steps.load_bench()
    fields = bench.read_model_fields(task)
    shared = bench.SharedState(task, bench.T5Config(**fields))
    network = bench.T5Config(**fields | mode.fields)
    candidate: t5.Candidate = bench.Candidate(mode, network, shared, compiled=compiled)
    candidate()
    return candidate
