from __future__ import annotations

import json
from typing import Any

import pytest

from rosetta.errors import UserError
from rosetta.launch import description

RUN = description.Run("pax", ("rosetta", "pax", "train"), "GPT5B", mesh={"ici": [1, 8, 1], "dcn": [1, 4, 1]}, nodes=4, mounts=(("/data", "/opt/paxml/datasets"),), env={"A": "a b\n$(c)"})


def test_read_is_the_inverse() -> None:
    assert description.read(json.loads(json.dumps(RUN.as_json()))) == RUN


def test_the_other_frameworks_settings_are_not_in_it() -> None:
    assert "gin" not in RUN.as_json()
    assert "fdl" in RUN.as_json()


@pytest.mark.parametrize(("per", "processes"), [("gpu", 32), ("node", 4)])
def test_processes(per: str, processes: int) -> None:
    assert description.Run("t5x", (), "xl", nodes=4, processes_per_node=per).processes == processes


@pytest.mark.parametrize(("change", "what"), [({"schema": 2}, "schema is 2"), ({"nodez": 2}, "no field nodez"), ({"model": None}, "lacks model")])
def test_another_document_is_refused(change: dict[str, Any], what: str) -> None:
    document = {name: value for name, value in {**RUN.as_json(), **change}.items() if value is not None}
    with pytest.raises(UserError, match=what):
        description.read(document)
