from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rosetta.core import disk_space, system_queries
from tests.support import errors, pax_scripts, t5x_scripts

place_ = t5x_scripts.place_  # a fixture
GB = 10**9


def set_free_space(monkeypatch: pytest.MonkeyPatch, free: int | None) -> None:
    monkeypatch.setattr(
        system_queries,
        "query_free_space",
        lambda _: None if free is None else system_queries.FileSystemSpace(10**15, free, 1000),
    )


@pytest.mark.parametrize(
    ("saves", "keep", "existing", "added"),
    [
        (5, None, 0, 5),
        (5, 2, 0, 3),
        (5, 2, 1, 2),
        (5, 2, 2, 1),
        (5, 2, 9, 1),
        (1, 2, 0, 1),
        (0, 2, 0, 0),
        (5, 0, 0, 1),
    ],
)
def test_checkpoints_that_a_run_adds(
    saves: int, keep: int | None, existing: int, added: int
) -> None:
    assert disk_space.count_added_checkpoints(saves, keep, existing) == added


def test_a_run_whose_checkpoints_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = str(tmp_path / "new" / "run")
    set_free_space(monkeypatch, 30 * GB)
    assert disk_space.check_checkpoints_fit(folder, 10 * GB, 3, "MODEL_DIR") == ()
    (line,) = disk_space.check_checkpoints_fit(folder, 10 * GB, 4, "MODEL_DIR")
    assert line.startswith(f"MODEL_DIR={folder}: ")
    assert re.findall(r"[\d.]+ GB", line) == ["40.0 GB", "10.0 GB", "30.0 GB"]
    with errors.expect_user_error(
        errors.TOO_BIG,
        where=f"MODEL_DIR={folder}",
        names=("31.0 GB", "30.0 GB"),
        remedy="MODEL_DIR",
    ):
        disk_space.check_checkpoints_fit(folder, 31 * GB, 1, "MODEL_DIR")


def test_small_sizes_are_shown_in_megabytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_free_space(monkeypatch, 300_000)
    with errors.expect_user_error(
        errors.TOO_BIG, where=f"MODEL_DIR={tmp_path}", names=("12.3 MB", "0.3 MB")
    ):
        disk_space.check_checkpoints_fit(str(tmp_path), 12_340_000, 1, "MODEL_DIR")


def test_unknown_space_stops_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_free_space(monkeypatch, 0)
    assert disk_space.check_checkpoints_fit("gs://bucket/run", GB, 1, "MODEL_DIR") == ()
    assert disk_space.check_checkpoints_fit(str(tmp_path), GB, 0, "MODEL_DIR") == (), (
        "nothing is saved"
    )
    set_free_space(monkeypatch, None)
    assert disk_space.check_checkpoints_fit(str(tmp_path), GB, 1, "MODEL_DIR") == ()
    assert disk_space.check_checkpoints_fit("/proc/no/such", GB, 1, "MODEL_DIR") == ()


def test_scripts_check_the_space_for_checkpoints(place: t5x_scripts.Place) -> None:
    """On a file system of some megabytes, which every machine has, no checkpoint fits."""
    small = next(
        (
            path
            for path in (Path("/run"), Path("/dev/shm"))
            if (room := system_queries.query_free_space(path)) and 0 < room.free < 100 * GB
        ),
        None,
    )
    if small is None:
        pytest.skip("no small file system")
    words = (
        "singlenode_pretrain_pile.sh",
        "xxl",
        "bfloat16",
        "1",
        "8",
        "",
        f"{small}/rosetta-none",
    )
    ran = place.run(*words, VOCAB="ids:32128", DATA="synthetic", ROSETTA_DOCTOR="")
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(
        ran.error, errors.TOO_BIG, where=f"MODEL_DIR={small}/rosetta-none", names=" 13"
    )
    assert (
        place.run(
            *words,
            VOCAB="ids:32128",
            DATA="synthetic",
            CHECKPOINT_DISABLE="true",
            ROSETTA_DOCTOR="",
        ).rc
        == 0
    )
    assert place.run(*words, VOCAB="ids:32128", DATA="synthetic", ROSETTA_DOCTOR="0").rc == 0
    pax = pax_scripts.Place(place.tree, place.work)
    ran = pax.run(
        "run_base_config_multinode.sh",
        "Synthetic175B",
        "bfloat16",
        "1",
        f"{small}/rosetta-none",
        ICI_MESH_SHAPE="[1,1,1]",
        DCN_MESH_SHAPE="[1,1,1]",
        ROSETTA_DOCTOR="",
    )
    assert (ran.rc, ran.argv) == (2, []), ran.err
    errors.check_error(ran.error, errors.TOO_BIG, where=f"LOG_DIR={small}/rosetta-none", names=" 2")


def test_a_dry_run_reports_what_would_stop_a_run(place: t5x_scripts.Place) -> None:
    slurm = {"SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "ROSETTA_DOCTOR": "1"}
    ran = place.run(
        "multiprocess_pretrain_pile.sh",
        "--dry-run",
        T5_SIZE="tiny",
        BSIZE_PER_GPU="8",
        MODEL_DIR="model",
        **slurm,
        **place.cards("NVIDIA H100 80GB HBM3, 9.0"),
    )
    assert ran.rc == 0, ran.err
    assert any(
        "this node has 2 processes, but each sees only 1 GPU(s)" in line
        for line in json.loads(ran.out)["messages"]
    )
