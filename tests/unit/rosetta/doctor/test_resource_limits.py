from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.core.system_queries import FileSystemSpace
from tests.support.fake_machine import (
    GIB,
    H100,
    find_finding,
    find_levels,
    make_machine,
    write_files,
)


@pytest.mark.parametrize(
    ("cards", "shm", "level"),
    [
        (8, 64 << 20, "blocker"),
        (1, 64 << 20, "warning"),
        (8, 512 << 20, "warning"),
        (8, GIB, None),
        (0, 64 << 20, None),
    ],
)
def test_shared_memory(tmp_path: Path, cards: int, shm: int, level: str | None) -> None:
    examined = make_machine(tmp_path, gpus=[H100] * cards, shm=shm)
    assert find_levels(examined).get("shm-too-small") == level
    if level:
        found = find_finding(examined, "shm-too-small")
        assert f"{shm >> 20} MiB" in found.what
        assert "--shm-size=8g" in found.do


def test_without_shared_memory(tmp_path: Path) -> None:
    examined = make_machine(
        tmp_path,
        query_free_space=lambda path: (
            None if path.name == "shm" else FileSystemSpace(GIB << 10, GIB << 10, 9)
        ),
    )
    assert find_levels(examined)["shm-missing"] == "blocker"


def test_limits_of_a_process(tmp_path: Path) -> None:
    assert find_finding(make_machine(tmp_path, files="1024"), "open-files").what.startswith(
        "only 1024 files"
    )
    assert "memlock" not in find_levels(make_machine(tmp_path, locked="8388608")), (
        "nothing is locked for a network that is not there"
    )
    write_files(tmp_path, sys__class__infiniband__mlx5_0__x="")
    assert "8192 KiB" in find_finding(make_machine(tmp_path, locked="8388608"), "memlock").what
    assert "memlock" not in find_levels(make_machine(tmp_path, locked="unlimited"))
    write_files(tmp_path, **{"sys__fs__cgroup__pids.max": "2048\n"})
    assert find_levels(make_machine(tmp_path))["processes"] == "warning"
    write_files(tmp_path, **{"sys__fs__cgroup__pids.max": "max\n"})
    assert "processes" not in find_levels(make_machine(tmp_path))
