from __future__ import annotations

import json
from typing import Any

import pytest

from rosetta.core import run_description
from tests.support import errors

RUN = run_description.Run(
    "pax",
    ("rosetta", "pax", "train"),
    "GPT5B",
    mesh={"ici": [1, 8, 1], "dcn": [1, 4, 1]},
    nodes=4,
    mounts=(("/data", "/opt/paxml/datasets"),),
    env={"A": "a b\n$(c)"},
)


def test_parse_run_reads_as_json() -> None:
    assert run_description.parse_run(json.loads(json.dumps(RUN.as_json()))) == RUN


def test_settings_of_the_other_framework_are_left_out() -> None:
    assert "gin" not in RUN.as_json()
    assert "fdl" in RUN.as_json()


@pytest.mark.parametrize(("per", "processes"), [("gpu", 32), ("node", 4)])
def test_processes(per: str, processes: int) -> None:
    assert (
        run_description.Run("t5x", (), "xl", nodes=4, processes_per_node=per).processes == processes
    )


@pytest.mark.parametrize(
    ("change", "kind", "facts"),
    [
        ({"schema": 2}, errors.UNSUPPORTED, {"where": "run description", "value": 2}),
        ({"nodez": 2}, errors.INVALID, {"where": "run description", "value": "nodez"}),
        ({"model": None}, errors.INVALID, {"where": "run description", "value": "model"}),
    ],
)
def test_another_document_is_refused(
    change: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    document = {
        name: value for name, value in {**RUN.as_json(), **change}.items() if value is not None
    }
    with errors.expect_user_error(kind, **facts):
        run_description.parse_run(document)


@pytest.mark.parametrize(
    "change",
    [
        {"framework": "t6x"},
        {"entry": "rosetta pax"},
        {"entry": []},
        {"model": 5},
        {"nodes": "2"},
        {"nodes": True},
        {"gpus_per_node": 0},
        {"processes_per_node": "device"},
        {"mesh": []},
        {"env": {"A_TOKEN": 3, "B_TOKEN": "hidden"}},
        {"xla_flags": {"a": [1]}},
        {"mounts": ["/a:/b"]},
        {"mounts": [["/a"]]},
    ],
)
def test_a_value_of_another_type_is_refused_and_not_shown(change: dict[str, Any]) -> None:
    (name,) = change
    with errors.expect_user_error(errors.INVALID, where="run description", value=name) as refused:
        run_description.parse_run({**RUN.as_json(), **change})
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("document", [[], "x", None])
def test_another_type_than_an_object_is_refused(document: Any) -> None:
    with errors.expect_user_error(errors.INVALID, where="run description", names="JSON"):
        run_description.parse_run(document)
