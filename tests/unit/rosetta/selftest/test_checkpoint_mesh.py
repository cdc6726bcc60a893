from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from rosetta.selftest.checkpoint_mesh import read_mesh

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
