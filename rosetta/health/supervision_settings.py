"""What a run's health is kept by: variables, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core.variables.setting_values import read_setting

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Settings:
    """How a run is supervised, see docs/explanation/supervision.md.

    Attributes:
      on_bad_loss: what a bad loss does, a value of ON_BAD_LOSS.
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

    on_bad_loss: str
    spike: float
    watchdog_steps: float
    watchdog_seconds: float
    checkpoint_minutes: float
    on_full_disk: str
    profile: tuple[int, int] | None
    bad_records: str
    changed_data: str


def read_settings(variables: Mapping[str, str]) -> Settings:
    """Return the settings that variables say; UserError for the first one that is wrong."""
    return Settings(
        on_bad_loss=read_setting(variables, "ON_BAD_LOSS"),
        spike=read_setting(variables, "LOSS_SPIKE"),
        watchdog_steps=read_setting(variables, "WATCHDOG_STEPS"),
        watchdog_seconds=read_setting(variables, "WATCHDOG_SECONDS"),
        checkpoint_minutes=read_setting(variables, "CHECKPOINT_MINUTES"),
        on_full_disk=read_setting(variables, "ON_FULL_DISK"),
        profile=read_setting(variables, "PROFILE_STEPS"),
        bad_records=read_setting(variables, "BAD_RECORDS"),
        changed_data=read_setting(variables, "CHANGED_DATA"),
    )
