"""The candidates of a tuning: the batch, and the switches that can have an effect on a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.errors import UNKNOWN, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_list
from rosetta.core.variables.setting_values import read_setting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rosetta.core.run_description import Run
    from rosetta.presets.resolution import ResolvedPreset
    from rosetta.tune.search import Choice

BATCH, COMBINE = "batch", "combine"
# The switches are tried in this order. A profile (pgle) is not among them: it takes longer than a
# trial. A plan does not see what the launch switches gain.
LAUNCH_SWITCHES = ("command-buffers", "no-command-buffers", "user-buffers")
LOOP_SWITCHES = ("pipelined-collectives", "double-buffering")
SPLIT_SWITCH = "windowed-einsum"
ALL_CANDIDATES = (BATCH, *LAUNCH_SWITCHES, *LOOP_SWITCHES, SPLIT_SWITCH, COMBINE)


def choose_default_candidates(run: Run, *, planned: bool, on_cpu: bool) -> list[str]:
    """Return the candidates to try if the user names none.

    Args:
        run: The run to tune.
        planned: Whether the trials are plans instead of runs on the GPU.
        on_cpu: Whether the run uses the CPU, for which only the batch is tried.
    """
    if on_cpu:
        return [BATCH]
    has_several_gpus = run.nodes * run.gpus_per_node > 1
    names = [BATCH]
    if not planned:
        names += LAUNCH_SWITCHES if has_several_gpus else LAUNCH_SWITCHES[:2]
    if has_several_gpus:
        names += LOOP_SWITCHES if _has_collective_loop(run) else ()
        names += [SPLIT_SWITCH] if _splits_products(run) else []
        names.append(COMBINE)
    return names


def parse_candidates(text: str, *, planned: bool) -> list[str]:
    """Return the names in a list that is separated by commas.

    Raises:
        UserError: A name is unknown, or a plan does not see its effect.
    """
    names = parse_list("--try", text)
    for name in names:
        if name not in ALL_CANDIDATES:
            raise UserError(
                f"{name!r} cannot be tried",
                "--try",
                f"choose from: {', '.join(ALL_CANDIDATES)}",
                kind=UNKNOWN,
                value=name,
            )
        if planned and name in LAUNCH_SWITCHES:
            raise UserError(
                f"a plan does not see what {name} gains",
                "--try",
                "try it on the GPU itself, without --card",
                kind=UNSUPPORTED,
                value=name,
            )
    return names


def drop_active_candidates(names: Iterable[str], resolved: ResolvedPreset) -> list[str]:
    """Return the candidates that the preset does not use already, each of them once."""
    active = set(resolved.get("switches") or ())
    if resolved.get("combine") == "layers":
        active.add(COMBINE)
    return [name for name in dict.fromkeys(names) if name not in active]


def make_candidate_choice(name: str) -> Choice:
    """Return what a candidate, other than the batch, adds to a choice."""
    from rosetta.tune.search import Choice

    return Choice(fields=((COMBINE, "layers"),)) if name == COMBINE else Choice(switches=(name,))


def _has_collective_loop(run: Run) -> bool:
    """Return whether the step has a loop with collectives, over layers or over microbatches.

    Paxml always computes the layers in a loop.
    """
    return (
        run.framework == "pax"
        or read_setting(run.env, "SCAN_LAYERS")
        or run.batch.get("microbatches", 1) != 1
    )


def _splits_products(run: Run) -> bool:
    """Return whether several GPUs share a matrix product, as in tensor parallelism."""
    if run.framework == "pax":
        return any(shape[-1] > 1 for shape in run.mesh.values())
    return bool(read_setting(run.env, "TP_SIZE") > 1)
