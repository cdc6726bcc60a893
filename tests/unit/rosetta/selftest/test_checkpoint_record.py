from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING

from rosetta.selftest.checkpoint_record import has_fp8_state, read_mesh

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, age: int, *shardings: dict[str, object]) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(
        json.dumps({str(i): json.dumps(sharding) for i, sharding in enumerate(shardings)})
    )
    os.utime(path, (1e9 - age, 1e9 - age))


def test_the_largest_mesh_of_the_newest_checkpoint_is_read(tmp_path: Path) -> None:
    named = {"sharding_type": "NamedSharding", "axis_names": ["data", "model"]}
    write(tmp_path / "checkpoint_10/state/_sharding", 100, {**named, "shape": [8, 8]})
    write(
        tmp_path / "checkpoint_20/state/_sharding",
        0,
        {"sharding_type": "SingleDeviceSharding"},
        {**named, "shape": [2, 2]},
    )
    assert read_mesh(tmp_path) == {"data": 2, "model": 2}


def test_the_mesh_is_empty_without_records(tmp_path: Path) -> None:
    assert read_mesh(tmp_path) == {}
    write(
        tmp_path / "c/_sharding",
        0,
        {"sharding_type": "SingleDeviceSharding", "device_str": "TFRT_CPU_0"},
    )
    assert read_mesh(tmp_path) == {}


def test_fp8_state_is_known_by_the_names_of_the_arrays(tmp_path: Path) -> None:
    assert not has_fp8_state(tmp_path)
    for number, (name, has_state) in enumerate(
        [("params.kernel", False), ("state.kernel_amax_history", True), ("amax_history.x", False)]
    ):
        path = tmp_path / f"checkpoint_{number}/_sharding"
        write(path, 100 - number)
        path.write_text(json.dumps({base64.b64encode(name.encode()).decode(): "{}"}))
        os.utime(path, (1e9 + number, 1e9 + number))
        assert has_fp8_state(tmp_path) is has_state
