from __future__ import annotations

from typing import Any

import pytest

from rosetta.core.errors import UserError
from rosetta.health.settings import Settings, check_process_variables, read
from tests.support import errors


def test_what_is_not_given_is_the_usual() -> None:
    assert (
        read({})
        == Settings()
        == read(
            dict.fromkeys(("ON_BAD_LOSS", "LOSS_SPIKE", "WATCHDOG_SECONDS", "PROFILE_STEPS"), "")
        )
    )


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
    assert read(given) == Settings("skip", 2.5, 5.0, 0.0, 0.5, "stop", (20, 25))


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
        read({name: value})
    assert raised.value.where.partition("=")[0] == name


@pytest.mark.parametrize(
    ("wrong", "kind", "facts"),
    [
        (
            "ROSETTA_DATA_WORKERS=many",
            errors.INVALID,
            {"where": "ROSETTA_DATA_WORKERS", "value": "many", "remedy": "0"},
        ),
        (
            "ROSETTA_DATA_WORKERS=-1",
            errors.INVALID,
            {"where": "ROSETTA_DATA_WORKERS", "value": "-1"},
        ),
        (
            "ROSETTA_DATA_WORKERS=٣",
            errors.INVALID,
            {"where": "ROSETTA_DATA_WORKERS", "value": "٣"},
        ),
        (
            "ROSETTA_DOCTOR=maybe",
            errors.INVALID,
            {"where": "ROSETTA_DOCTOR", "value": "maybe", "remedy": ("0", "1")},
        ),
        (
            "XLA_PYTHON_CLIENT_MEM_FRACTION=lots",
            errors.INVALID,
            {"where": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "lots", "remedy": "0"},
        ),
        (
            "XLA_PYTHON_CLIENT_MEM_FRACTION=0",
            errors.INVALID,
            {"where": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "0"},
        ),
        (
            "XLA_PYTHON_CLIENT_MEM_FRACTION=nan",
            errors.INVALID,
            {"where": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "nan"},
        ),
    ],
)
def test_what_processes_read_later_is_checked_before(
    wrong: str, kind: str, facts: dict[str, Any]
) -> None:
    name, _, value = wrong.partition("=")
    with errors.refused(kind, **facts):
        check_process_variables({name: value})


def test_what_processes_read_later_may_be_empty_or_fine() -> None:
    check_process_variables(
        dict.fromkeys(
            ("ROSETTA_DATA_WORKERS", "ROSETTA_DOCTOR", "XLA_PYTHON_CLIENT_MEM_FRACTION"), ""
        )
    )
    check_process_variables(
        {
            "ROSETTA_DATA_WORKERS": "0",
            "ROSETTA_DOCTOR": "off",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": ".9",
        }
    )
