from __future__ import annotations

import pytest

from rosetta.core.errors import UserError
from rosetta.health.supervision_settings import Settings, read_settings


def test_what_is_not_given_is_the_usual() -> None:
    usual = Settings("stop", 0.0, 20.0, 300.0, 0.0, "once", None, "stop", "stop")
    empty = dict.fromkeys(("ON_BAD_LOSS", "LOSS_SPIKE", "WATCHDOG_SECONDS", "PROFILE_STEPS"), "")
    assert read_settings({}) == read_settings(empty) == usual


def test_what_is_given_is_read() -> None:
    given = {
        "ON_BAD_LOSS": "skip",
        "LOSS_SPIKE": "2.5",
        "WATCHDOG_STEPS": "5",
        "WATCHDOG_SECONDS": "0",
        "CHECKPOINT_MINUTES": ".5",
        "ON_FULL_DISK": "stop",
        "PROFILE_STEPS": "20:25",
    }
    assert read_settings(given) == Settings(
        "skip", 2.5, 5.0, 0.0, 0.5, "stop", (20, 25), "stop", "stop"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "ON_BAD_LOSS=crash",
        "LOSS_SPIKE=1",
        "LOSS_SPIKE=nan",
        "WATCHDOG_SECONDS=-1",
        "WATCHDOG_STEPS=1e",
        "CHECKPOINT_MINUTES=five",
        "ON_FULL_DISK=x",
        "PROFILE_STEPS=5",
        "PROFILE_STEPS=5:5",
        "LOSS_SPIKE=٣",
        "WATCHDOG_SECONDS=1_0",
        "CHECKPOINT_MINUTES=٣",
        "WATCHDOG_STEPS=" + "9" * 400,
        "PROFILE_STEPS=١:٢",
    ],
)
def test_what_is_wrong_is_said(wrong: str) -> None:
    name, _, value = wrong.partition("=")
    with pytest.raises(UserError) as raised:
        read_settings({name: value})
    assert raised.value.where.partition("=")[0] == name
