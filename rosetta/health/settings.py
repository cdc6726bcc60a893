"""What a run's health is kept by: variables, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, UserError
from rosetta.core.value_parsing import (
    parse_choice,
    parse_number,
    parse_step_range,
    parse_whole_number,
    read_truth_value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

ON_BAD_LOSS = ("stop", "skip", "ignore")
ON_FULL_DISK = ("once", "stop")
BAD_RECORDS = ("stop", "skip")
CHANGED_DATA = ("stop", "accept")
VARIABLES = (
    "ON_BAD_LOSS",
    "LOSS_SPIKE",
    "WATCHDOG_STEPS",
    "WATCHDOG_SECONDS",
    "CHECKPOINT_MINUTES",
    "ON_FULL_DISK",
    "PROFILE_STEPS",
    "BAD_RECORDS",
    "CHANGED_DATA",
)


@dataclass(frozen=True)
class Settings:
    """How a run is kept well, see docs/health.md.

    Attributes:
      on_bad_loss: one of ON_BAD_LOSS.
      spike: a loss so many times the running median is a bad one; 0: only one that is not finite.
      watchdog_steps, watchdog_seconds: no step for so many medians and seconds ends a run; 0 s:
        never.
      checkpoint_minutes: between checkpoints, beside those by step; 0: only by step.
      on_full_disk: "once": a checkpoint that finds no room is left out, the second one ends the
        run; "stop": the first one does.
      bad_records: what becomes of a record that cannot be used, see rosetta.data.bad_records.
      changed_data: "accept": the run goes on with data that was changed since it began.
      profile: (first step, step after the last) of what is traced; None: nothing is.
    """

    on_bad_loss: str = "stop"
    spike: float = 0.0
    watchdog_steps: float = 20.0
    watchdog_seconds: float = 300.0
    checkpoint_minutes: float = 0.0
    on_full_disk: str = "once"
    profile: tuple[int, int] | None = None
    bad_records: str = "stop"
    changed_data: str = "stop"


def read(given: Mapping[str, str]) -> Settings:
    """Return the settings that variables say; UserError for the first one that is wrong."""
    usual = Settings()
    spike = _number(given, "LOSS_SPIKE", usual.spike)
    if 0 < spike <= 1:
        raise UserError(
            "a loss as high as the median is no spike",
            f"LOSS_SPIKE={given['LOSS_SPIKE']}",
            "give a factor above 1, as in LOSS_SPIKE=3, or 0 for none",
            kind=INVALID,
            value=given["LOSS_SPIKE"],
        )
    return Settings(
        on_bad_loss=parse_choice(
            "ON_BAD_LOSS", given.get("ON_BAD_LOSS") or usual.on_bad_loss, ON_BAD_LOSS
        ),
        spike=spike,
        watchdog_steps=_number(given, "WATCHDOG_STEPS", usual.watchdog_steps),
        watchdog_seconds=_number(given, "WATCHDOG_SECONDS", usual.watchdog_seconds),
        checkpoint_minutes=_number(given, "CHECKPOINT_MINUTES", usual.checkpoint_minutes),
        on_full_disk=parse_choice(
            "ON_FULL_DISK", given.get("ON_FULL_DISK") or usual.on_full_disk, ON_FULL_DISK
        ),
        profile=parse_step_range("PROFILE_STEPS", given["PROFILE_STEPS"])
        if given.get("PROFILE_STEPS")
        else None,
        bad_records=parse_choice(
            "BAD_RECORDS", given.get("BAD_RECORDS") or usual.bad_records, BAD_RECORDS
        ),
        changed_data=parse_choice(
            "CHANGED_DATA", given.get("CHANGED_DATA") or usual.changed_data, CHANGED_DATA
        ),
    )


def check_process_variables(given: Mapping[str, str]) -> None:
    """Check the variables that a run's processes read only after JAX has started, or only on a GPU.

    Args:
      given: the run's variables.

    Raises:
      UserError: one is not valid.
    """
    read_data_workers(given)
    for name in ("ROSETTA_BIND", "ROSETTA_DOCTOR"):
        read_truth_value(given, name)
    if fraction := given.get("XLA_PYTHON_CLIENT_MEM_FRACTION"):
        parse_number("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction, above_zero=True, example="0.9")


def read_data_workers(given: Mapping[str, str]) -> int | None:
    """Return how many processes make batches, None where ROSETTA_DATA_WORKERS does not say."""
    text = given.get("ROSETTA_DATA_WORKERS")
    if not text:
        return None
    return parse_whole_number("ROSETTA_DATA_WORKERS", text, minimum=0, maximum=9999)


def _number(given: Mapping[str, str], name: str, usual: float) -> float:
    text = given.get(name)
    return parse_number(name, text, example=f"{usual:g}") if text else usual
