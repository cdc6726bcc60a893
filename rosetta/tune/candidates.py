"""What is tried: the batch, and switches of presets that mean something for a run."""

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
# Each is tried by itself, in this order. A profile (pgle) takes longer than a trial.
LAUNCH_SWITCHES = (
    "command-buffers",
    "no-command-buffers",
    "user-buffers",
)  # which a plan does not see
LOOP_SWITCHES = ("pipelined-collectives", "double-buffering")
SPLIT_SWITCH = "windowed-einsum"
ALL_CANDIDATES = (BATCH, *LAUNCH_SWITCHES, *LOOP_SWITCHES, SPLIT_SWITCH, COMBINE)


def choose_default_candidates(run: Run, *, planned: bool, on_cpu: bool) -> list[str]:
    """Return what is tried of a run where nothing else is asked for: the switches are of cards, and
    most of them of what goes between cards.
    """
    names = [BATCH]
    if on_cpu:
        return names
    names += [] if planned else LAUNCH_SWITCHES[:2]
    if run.nodes * run.gpus_per_node > 1:
        names += [
            *([] if planned else LAUNCH_SWITCHES[2:]),
            *(LOOP_SWITCHES if _has_collective_loop(run) else ()),
            *([SPLIT_SWITCH] if _splits_products(run) else []),
            COMBINE,
        ]
    return names


def parse_candidates(text: str, *, planned: bool) -> list[str]:
    """Return what a list with commas names.

    UserError for what cannot be tried, or not be planned.
    """
    names = parse_list("--try", text)
    for each in names:
        if each not in ALL_CANDIDATES:
            raise UserError(
                f"{each!r} cannot be tried",
                "--try",
                f"choose of {', '.join(ALL_CANDIDATES)}",
                kind=UNKNOWN,
                value=each,
            )
        if planned and each in LAUNCH_SWITCHES:
            raise UserError(
                f"a plan does not see what {each} gains",
                "--try",
                "try it on the card itself, without --card",
                kind=UNSUPPORTED,
                value=each,
            )
    return names


def drop_active_candidates(names: Iterable[str], resolved: ResolvedPreset) -> list[str]:
    """Return those that are not on already, each once."""
    there = {
        *(resolved.get("switches") or ()),
        *((COMBINE,) if resolved.get("combine") == "layers" else ()),
    }
    return [each for each in dict.fromkeys(names) if each not in there]


def make_candidate_choice(name: str) -> Choice:
    """Return what a switch adds to a choice."""
    from rosetta.tune.search import Choice

    return Choice(fields=((COMBINE, "layers"),)) if name == COMBINE else Choice(switches=(name,))


def _has_collective_loop(run: Run) -> bool:
    """Has the step a loop with collectives in it: over layers, or microbatches?

    Paxml's layers are one.
    """
    return (
        run.framework == "pax"
        or read_setting(run.env, "SCAN_LAYERS")
        or run.batch.get("microbatches", 1) != 1
    )


def _splits_products(run: Run) -> bool:
    """Do several devices share a product?"""
    return (
        any(shape[-1] > 1 for shape in run.mesh.values())
        if run.framework == "pax"
        else read_setting(run.env, "TP_SIZE") > 1
    )
