"""What a run's health is kept by: variables, checked before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, UserError
from rosetta.core.value_parsing import above_zero, flag, one_of, parse_decimal

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
        on_bad_loss=one_of(
            "ON_BAD_LOSS", given.get("ON_BAD_LOSS") or usual.on_bad_loss, ON_BAD_LOSS
        ),
        spike=spike,
        watchdog_steps=_number(given, "WATCHDOG_STEPS", usual.watchdog_steps),
        watchdog_seconds=_number(given, "WATCHDOG_SECONDS", usual.watchdog_seconds),
        checkpoint_minutes=_number(given, "CHECKPOINT_MINUTES", usual.checkpoint_minutes),
        on_full_disk=one_of(
            "ON_FULL_DISK", given.get("ON_FULL_DISK") or usual.on_full_disk, ON_FULL_DISK
        ),
        profile=_steps(given.get("PROFILE_STEPS") or ""),
        bad_records=one_of(
            "BAD_RECORDS", given.get("BAD_RECORDS") or usual.bad_records, BAD_RECORDS
        ),
        changed_data=one_of(
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
    workers = given.get("ROSETTA_DATA_WORKERS") or ""
    if workers and not re.fullmatch("[0-9]{1,4}", workers):
        raise UserError(
            "not a valid number of processes",
            f"ROSETTA_DATA_WORKERS={workers}",
            "give a whole number, 0 or more",
            kind=INVALID,
            value=workers,
        )
    if given.get("ROSETTA_DOCTOR"):
        flag("ROSETTA_DOCTOR", given["ROSETTA_DOCTOR"])
    if fraction := given.get("XLA_PYTHON_CLIENT_MEM_FRACTION"):
        above_zero("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction, "0.9")


def _number(given: Mapping[str, str], name: str, usual: float) -> float:
    text = given.get(name) or ""
    if not text:
        return usual
    number = parse_decimal(text)
    if number is None:
        raise UserError(
            "not a valid number of 0 or more",
            f"{name}={text}",
            f"give one, as in {name}={usual:g}",
            kind=INVALID,
            value=text,
        )
    return number


def _steps(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if not found or int(found[1]) >= int(found[2]):
        raise UserError(
            "it names no steps",
            f"PROFILE_STEPS={text}",
            "give the first one and the one after the last, as in PROFILE_STEPS=20:25",
            kind=INVALID,
            value=text,
        )
    return int(found[1]), int(found[2])
