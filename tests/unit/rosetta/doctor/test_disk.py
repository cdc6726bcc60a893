from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.core.system_queries import FileSystemSpace
from rosetta.doctor import disk
from tests.support.fake_machine import GIB, find_finding, find_levels, make_machine


def test_folders_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    examined = make_machine(
        tmp_path,
        environment={
            "MODEL_DIR": str(tmp_path / "file" / "run"),
            "TFDS_DATA_DIR": str(tmp_path / "nowhere"),
            "LOG_DIR": "gs://bucket/logs",
        },
    )
    assert find_finding(examined, "not-writable").where == f"MODEL_DIR={tmp_path}/file/run"
    assert find_finding(examined, "not-writable").level == "blocker"
    assert find_finding(examined, "folder-missing").level == "warning"
    assert (
        find_levels(
            make_machine(
                tmp_path,
                environment={"MODEL_DIR": str(tmp_path / "new" / "run"), "TFDS_DATA_DIR": "gs://x"},
                quick=True,
            )
        )
        == {}
    )


@pytest.mark.parametrize(
    ("free", "files", "found"),
    [
        (0, 9, "disk-full"),
        (12_000_000, 9, "disk-low"),
        (1, 9, "disk-low"),
        (0, 0, "disk-full"),
        (GIB << 9, 0, "disk-full"),
        (2 * GIB, 9, "disk-tight"),
        (GIB << 9, 9, None),
    ],
)
def test_free_space(tmp_path: Path, free: int, files: int, found: str | None) -> None:
    examined = make_machine(
        tmp_path,
        environment={"MODEL_DIR": str(tmp_path)},
        query_free_space=lambda _: FileSystemSpace(GIB << 10, free, files),
    )
    where = {each: find_where(examined, each) for each in ("disk-full", "disk-low", "disk-tight")}
    assert [each for each, places in where.items() if f"MODEL_DIR={tmp_path}" in places] == (
        [found] if found else []
    )


def find_where(examined: object, name: str) -> list[str]:
    from rosetta.doctor.machine import Machine

    assert isinstance(examined, Machine)
    return [each.where for each in disk.check(examined) if each.id == name]


def test_an_unwritable_cache_is_not_a_blocker(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (
        find_finding(
            make_machine(
                tmp_path, environment={"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "file")}
            ),
            "not-writable",
        ).level
        == "warning"
    )
    assert find_levels(
        make_machine(tmp_path, environment={"HOME": "/nowhere", "CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    ) == {"no-home": "note"}


def test_a_folder_is_probed_by_writing_a_file(tmp_path: Path) -> None:
    def full(folder: Path) -> float:
        if folder == tmp_path / "run":
            raise OSError(122, "Disk quota exceeded")
        return 0.0

    (tmp_path / "run").mkdir()
    found = find_finding(
        make_machine(tmp_path, probe_folder=full), "not-writable", folders=[str(tmp_path / "run")]
    )
    assert (found.level, found.where) == ("blocker", f"--folder={tmp_path}/run")
    assert "Disk quota exceeded" in found.what
    assert "not-writable" not in find_levels(
        make_machine(tmp_path, probe_folder=full, quick=True), folders=[str(tmp_path / "run")]
    )


@pytest.mark.parametrize(
    ("ahead", "words"), [(30.0, "30 s ahead"), (-7.0, "7 s behind"), (1.0, "")]
)
def test_the_clock_of_a_file_server(tmp_path: Path, ahead: float, words: str) -> None:
    examined = make_machine(
        tmp_path, probe_folder=lambda folder: ahead if folder.name == "run" else 0.0
    )
    (tmp_path / "run").mkdir()
    found = find_levels(examined, folders=[str(tmp_path / "run")])
    assert ("clock-of-files" in found) == bool(words)
    if words:
        assert (
            words in find_finding(examined, "clock-of-files", folders=[str(tmp_path / "run")]).what
        )


def test_a_small_file_system_is_not_called_full(tmp_path: Path) -> None:
    examined = make_machine(
        tmp_path,
        environment={"MODEL_DIR": str(tmp_path)},
        query_free_space=lambda _: FileSystemSpace(16_000_000, 12_000_000, 9),
    )
    findings = [
        finding for finding in disk.check(examined) if finding.where == f"MODEL_DIR={tmp_path}"
    ]
    assert [(finding.level, finding.what) for finding in findings] == [
        ("warning", "only 12 MB are free, less than 64 MB")
    ]
