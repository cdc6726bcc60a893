from __future__ import annotations

import json
from typing import Any

import pytest

from rosetta.core import run_description
from rosetta.core.errors import UserError

RUN = run_description.Run(
    "pax",
    ("rosetta", "pax", "train"),
    "GPT5B",
    mesh={"ici": [1, 8, 1], "dcn": [1, 4, 1]},
    nodes=4,
    mounts=(("/data", "/opt/paxml/datasets"),),
    env={"A": "a b\n$(c)"},
)


def test_read_is_the_inverse() -> None:
    assert run_description.read(json.loads(json.dumps(RUN.as_json()))) == RUN


def test_the_other_frameworks_settings_are_not_in_it() -> None:
    assert "gin" not in RUN.as_json()
    assert "fdl" in RUN.as_json()


@pytest.mark.parametrize(("per", "processes"), [("gpu", 32), ("node", 4)])
def test_processes(per: str, processes: int) -> None:
    assert (
        run_description.Run("t5x", (), "xl", nodes=4, processes_per_node=per).processes == processes
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"schema": 2}, "schema is 2"),
        ({"nodez": 2}, "no field nodez"),
        ({"model": None}, "lacks model"),
    ],
)
def test_another_document_is_refused(change: dict[str, Any], what: str) -> None:
    document = {
        name: value for name, value in {**RUN.as_json(), **change}.items() if value is not None
    }
    with pytest.raises(UserError, match=what):
        run_description.read(document)


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
        {"processes_per_node": "card"},
        {"mesh": []},
        {"env": {"A_TOKEN": 3, "B_TOKEN": "hidden"}},
        {"xla_flags": {"a": [1]}},
        {"mounts": ["/a:/b"]},
        {"mounts": [["/a"]]},
    ],
)
def test_another_kind_is_refused_without_its_value(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(
        UserError, match=f"run description: its {name} is of another kind; give "
    ) as refused:
        run_description.read({**RUN.as_json(), **change})
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("document", [[], "x", None])
def test_what_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(UserError, match="it is no JSON object"):
        run_description.read(document)
