from __future__ import annotations

import json
from pathlib import Path

import pytest

from rosetta.tune.evidence import Evidence
from rosetta.tune.search import OK, Choice, Outcome
from tests.support import errors

ABOUT = {"preset": "t5x-tiny", "card": "H100", "versions": {"jax": "0.10.2"}}
CHOICE = Choice(16, ("a", "b"), (("combine", "layers"),))


def test_a_killed_tuning_continues(tmp_path: Path) -> None:
    file = tmp_path / "tuned.jsonl"
    first = Evidence(file, ABOUT)
    first.add_outcome(CHOICE, 0, Outcome(OK, 123.5, more={"mfu": 0.4}))
    first.add_outcome(CHOICE, 1, Outcome("out-of-memory", reason="the run does not fit"))
    with file.open("a") as cut:
        cut.write('{"settings": {"batch.per')
    again = Evidence(file, ABOUT)
    assert again.find_outcome(CHOICE, 0) == Outcome(OK, 123.5, more={"mfu": 0.4})
    assert again.find_outcome(CHOICE, 1) == Outcome("out-of-memory", reason="the run does not fit")
    assert again.find_outcome(CHOICE, 2) is None
    again.add_outcome(CHOICE, 2, Outcome(OK, 1.0))
    assert [json.loads(line).get("repeat") for line in file.read_text().splitlines()] == [
        None,
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("kind", ["refused", "failed", "too long"])
def test_failed_trials_are_made_again(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "tuned.jsonl"
    Evidence(file, ABOUT).add_outcome(CHOICE, 0, Outcome(kind, reason="no CUDA"))
    again = Evidence(file, ABOUT)
    assert again.find_outcome(CHOICE, 0) is None
    again.add_outcome(CHOICE, 0, Outcome(OK, 2.0))
    assert Evidence(file, ABOUT).find_outcome(CHOICE, 0) == Outcome(OK, 2.0)


def test_evidence_of_another_tuning_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tuned.jsonl"
    Evidence(file, ABOUT)
    with errors.expect_user_error(
        errors.DIFFERS, where="tuned.jsonl", names=("card", "jax"), remedy="--evidence"
    ):
        Evidence(file, {**ABOUT, "card": "A100", "versions": {"jax": "0.11"}})


@pytest.mark.parametrize("text", ["no evidence\n", "[1]\n", "3\n", 'null\n{"settings": {}}\n'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tuned.jsonl"
    file.write_text(text)
    with errors.expect_user_error(errors.INVALID, where="tuned.jsonl", remedy="--evidence"):
        Evidence(file, ABOUT)
    assert file.read_text() == text
