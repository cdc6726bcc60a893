"""The settings of a run's supervision, read from variables and checked before the run starts."""

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
      on_bad_loss: what happens after a bad loss, a value of ON_BAD_LOSS.
      spike: a loss above so many times the running median is bad; 0: only a loss that is not finite
        is.
      watchdog_steps: the run ends after so many median step durations without a step.
      watchdog_seconds: the least number of seconds for that; 0: the run never ends for it.
      checkpoint_minutes: minutes between checkpoints by time, which come in addition to those by
        step; 0: there are none.
      on_full_disk: "once": a checkpoint that does not fit on the disk is left out, and the second
        one ends the run; "stop": the first one ends the run.
      profile: (first step, step after the last) of the profile; None: there is none.
      bad_records: what happens to a record that cannot be used, see rosetta.data.bad_records.
      changed_data: "accept": the run resumes with data that has changed since it began.
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
    """Return the settings of these variables.

    Raises:
      UserError: a variable is not valid.
    """
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
