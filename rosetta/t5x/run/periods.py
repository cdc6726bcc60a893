"""Fit the default of one period to the other: of checkpoints, and of evaluation.

T5X needs one of the two to be a multiple of the other. A run that looks for its best checkpoint
needs a checkpoint of each step that it evaluates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.t5x.run import preflight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.t5x.run.gin_reader import Configuration

_SAVE, _EVALUATE = "SAVE_PERIOD", "EVAL_PERIOD"


def fit_default_period(
    chosen: Mapping[str, object], configuration: Configuration, user_configuration: Configuration
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the binding of a period that fits the one that the user set, and a note about it.

    Nothing is returned if both fit, if the user set both, or if nothing is evaluated. If the user
    set none, the defaults fit, unless each evaluation needs a checkpoint.

    Args:
      chosen: the variables that are set, by name.
      configuration: the run's gin files and bindings.
      user_configuration: the user's own gin files alone.
    """
    periods = preflight.read_periods(configuration)
    if periods is None:
        return {}, ()
    values = dict(zip((_SAVE, _EVALUATE), periods))  # noqa: B905 (Python 3.9, which a login node may have)
    set_by_user = [name for name in values if name in chosen or user_configuration.binds(name)]
    if len(set_by_user) == len(values) or preflight.do_periods_fit(configuration, *periods):
        return {}, ()
    needs_checkpoints = preflight.needs_evaluated_checkpoints(configuration)
    if not set_by_user and not needs_checkpoints:
        return {}, ()
    given = set_by_user[0] if set_by_user else _EVALUATE
    other = _EVALUATE if given == _SAVE else _SAVE
    if not needs_checkpoints:
        fitted = find_nearest_fit(values[given], values[other])
    elif other == _SAVE:
        fitted = values[given]
    else:
        fitted = values[given] * max(1, round(values[other] / values[given]))
    note = f"{other} is {fitted:,} in place of {values[other]:,}, to fit {given}={values[given]}"
    return {other: fitted}, (note,)


def find_nearest_fit(period: int, wanted: int) -> int:
    """Return the multiple or divisor of a period that is nearest to a wanted period.

    Args:
      period: the period that stays, in steps, like `wanted`.
      wanted: the period to fit to it.
    """
    if wanted >= period:
        return period * max(1, round(wanted / period))
    divisors = [number for number in range(1, period + 1) if not period % number]
    return min(divisors, key=lambda number: abs(number - wanted))
