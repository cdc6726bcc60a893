"""The candidates that `rosetta tune` tries: the batch, switches of presets, and "combine"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.errors import UNKNOWN, UserError
from rosetta.core.value_parsing import parse_list
from rosetta.core.variables.setting_values import read_setting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rosetta.core.run_description import Run
    from rosetta.presets.resolution import ResolvedPreset
    from rosetta.tune.search import Choice

BATCH = "batch"  # doubles the batch as long as that makes the run faster
COMBINE = "combine"  # sets the field `combine` of presets to "layers"
# The candidates are tried in the order of ALL_CANDIDATES. The switch `pgle` is not one of them,
# because it needs a profile, which takes longer than a trial.
#
GRAPH_SWITCHES = ("command-buffers", "no-command-buffers")
RUNTIME_SWITCHES = (*GRAPH_SWITCHES, "user-buffers")
# Switches for steps that have collectives in a loop.
COLLECTIVE_LOOP_SWITCHES = ("pipelined-collectives", "double-buffering")
TENSOR_PARALLEL_SWITCH = "windowed-einsum"
ALL_CANDIDATES = (
    BATCH,
    *RUNTIME_SWITCHES,
    *COLLECTIVE_LOOP_SWITCHES,
    TENSOR_PARALLEL_SWITCH,
    COMBINE,
)


def choose_default_candidates(run: Run, *, on_cpu: bool) -> list[str]:
    """Return the candidates that can make a run faster, to try if the user names none.

    Args:
        run: The run to tune.
        on_cpu: Whether the run uses the CPU, for which only the batch is tried.
    """
    if on_cpu:
        return [BATCH]
    has_several_gpus = run.nodes * run.gpus_per_node > 1
    names = [BATCH, *(RUNTIME_SWITCHES if has_several_gpus else GRAPH_SWITCHES)]
    if has_several_gpus:
        if _has_collective_loop(run):
            names += COLLECTIVE_LOOP_SWITCHES
        if _uses_tensor_parallelism(run):
            names.append(TENSOR_PARALLEL_SWITCH)
        names.append(COMBINE)
    return names


def parse_candidates(text: str) -> list[str]:
    """Return the candidates that --try names.

    Args:
        text: The value of --try: names, separated by commas.

    Raises:
        UserError: A name is unknown.
    """
    names = parse_list("--try", text)
    for name in names:
        if name not in ALL_CANDIDATES:
            raise UserError(
                f"{name!r} is not a candidate",
                "--try",
                f"choose from: {', '.join(ALL_CANDIDATES)}",
                kind=UNKNOWN,
                value=name,
            )
    return names


def drop_active_candidates(names: Iterable[str], resolved: ResolvedPreset) -> list[str]:
    """Return the candidates that the preset does not use already, without duplicates."""
    active = set(resolved.get("switches") or ())
    if resolved.get("combine") == "layers":
        active.add(COMBINE)
    return [name for name in dict.fromkeys(names) if name not in active]


def make_candidate_choice(name: str) -> Choice:
    """Return the settings of a candidate: a switch, or COMBINE. The batch has no such settings."""
    from rosetta.tune.search import Choice

    if name == COMBINE:
        return Choice(fields=((COMBINE, "layers"),))
    return Choice(switches=(name,))


def _has_collective_loop(run: Run) -> bool:
    """Return whether the step has a loop with collectives, over layers or over microbatches."""
    if run.batch.get("microbatches", 1) != 1:
        return True
    if run.framework == "t5x":
        return bool(read_setting(run.env, "SCAN_LAYERS"))
    from rosetta.pax.run import hyper_parameters
    from rosetta.plan import preset_arguments

    # The value of an experiment of the user is not known: such experiments mostly have the loop.
    hyper = preset_arguments.read_pax_settings(run).hyper
    values = hyper_parameters.resolve_values(run.model, hyper)
    return values.get("USE_REPEATED_LAYER") is not False


def _uses_tensor_parallelism(run: Run) -> bool:
    """Return whether several GPUs share a matrix product."""
    if run.framework == "pax":
        # The last axis of both meshes, within and across nodes, is the tensor axis.
        return any(shape[-1] > 1 for shape in run.mesh.values())
    return bool(read_setting(run.env, "TP_SIZE") > 1)
