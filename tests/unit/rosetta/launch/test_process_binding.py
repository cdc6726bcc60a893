from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rosetta.launch import process_binding
from rosetta.launch.process_binding import Gpu
from tests.support import errors

ROOT = Path(__file__).resolve().parents[4]
GPUS = [Gpu(number, f"GPU-{number}aaa", f"0000:{number}7:00.0") for number in range(8)]
TASKS = {"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sockets of 8 cores with 4 GPUs and 2 network cards each; on the second one a network card is down."""
    for gpu in GPUS:
        _device(tmp_path / "sys/bus/pci/devices" / gpu.address, gpu.number // 4)
    for number in range(4):
        port = tmp_path / f"sys/class/infiniband/mlx5_{number}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("1: DOWN\n" if number == 3 else "4: ACTIVE\n")
        _device(port.parents[1] / "device", number // 2)
    return tmp_path


def _device(folder: Path, node: int) -> None:
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{node}\n")
    (folder / "local_cpulist").write_text(("0-3,8-11\n", "4-7,12-15\n")[node])


@pytest.mark.parametrize(
    ("local", "cores"), [("0", {0, 1, 2, 3, 8, 9, 10, 11}), ("7", {4, 5, 6, 7, 12, 13, 14, 15})]
)
def test_a_process_a_gpu(root: Path, local: str, cores: set[int]) -> None:
    found = process_binding.choose_binding(GPUS, {**TASKS, "SLURM_LOCALID": local}, range(16), root)
    assert found.cores == cores
    assert found.env == {
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2"
    }  # the same for all: the one that is down is left out
    assert found.line.startswith(
        f"near GPU {local}: cores {'0-3,8-11' if local == '0' else '4-7,12-15'}, NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2 (ROSETTA_BIND=0 leaves"
    )


def test_part_of_a_node_has_the_network_cards_beside_it(root: Path) -> None:
    some = {
        "SLURM_STEP_TASKS_PER_NODE": "4",
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        "SLURM_LOCALID": "1",
    }
    found = process_binding.choose_binding(GPUS, some, range(16), root)
    assert found.line.startswith("near GPU 5: ")
    assert found.env == {"NCCL_IB_HCA": "=mlx5_2"}
    assert process_binding.choose_binding(
        GPUS, {**some, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, range(16), root
    ).env == {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}


def test_one_process_with_gpus_of_both_sockets_has_all_cores(root: Path) -> None:
    assert process_binding.choose_binding(GPUS, {}, range(16), root).cores == frozenset()
    assert process_binding.choose_binding(
        GPUS, {"CUDA_VISIBLE_DEVICES": "1,2"}, range(16), root
    ).cores == {
        0,
        1,
        2,
        3,
        8,
        9,
        10,
        11,
    }


def test_only_cores_that_it_may_have(root: Path) -> None:
    assert process_binding.choose_binding(
        GPUS, {**TASKS, "SLURM_LOCALID": "0"}, [2, 3, 4], root
    ).cores == {
        2,
        3,
    }
    assert (
        process_binding.choose_binding(GPUS, {**TASKS, "SLURM_LOCALID": "0"}, [4, 5], root).cores
        == frozenset()
    )
    assert (
        process_binding.choose_binding(GPUS, {**TASKS, "SLURM_LOCALID": "0"}, [0, 1], root).cores
        == frozenset()
    )


def test_what_the_user_says_wins(root: Path) -> None:
    around = {**TASKS, "SLURM_LOCALID": "0"}
    for value in ("mlx5_3", ""):
        assert (
            process_binding.choose_binding(
                GPUS, {**around, "NCCL_IB_HCA": value}, range(16), root
            ).env
            == {}
        )
    off = process_binding.choose_binding(GPUS, {**around, "ROSETTA_BIND": "0"}, range(16), root)
    assert (off.cores, off.env, off.line) == (frozenset(), {}, "")
    with errors.expect_user_error(
        errors.INVALID, where="ROSETTA_BIND", value="maybe", remedy=("0", "1")
    ):
        process_binding.choose_binding(GPUS, {"ROSETTA_BIND": "maybe"}, range(16), root)


def test_where_nothing_is_known_nothing_is_done(root: Path, tmp_path: Path) -> None:
    for gpus, environment, place in (
        ([], {}, root),
        (GPUS, TASKS, root / "nowhere"),
        (GPUS, {**TASKS, "SLURM_LOCALID": "9"}, tmp_path / "nowhere"),
    ):
        found = process_binding.choose_binding(gpus, environment, range(16), place)
        assert (found.cores, found.env, found.line) == (frozenset(), {}, "")
    for gpu in GPUS:
        (root / "sys/bus/pci/devices" / gpu.address / "numa_node").write_text("-1\n")
    assert process_binding.choose_binding(GPUS, {}, range(16), root).env == {}


@pytest.mark.parametrize(
    ("environment", "numbers"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"CUDA_VISIBLE_DEVICES": "3, 1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-5aaa"}, [2, 5]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"SLURM_JOB_GPUS": "4,5,6,7"}, [4, 5, 6, 7]),
        ({"SLURM_JOB_GPUS": "4,5,6,7", "SLURM_STEP_GPUS": "6"}, [6]),
        ({"SLURM_JOB_GPUS": "4,5,6,7", "CUDA_VISIBLE_DEVICES": "0,1"}, [0, 1]),
    ],
)
def test_which_gpus(environment: dict[str, str], numbers: list[int]) -> None:
    assert [gpu.number for gpu in process_binding.select_visible(GPUS, environment)] == numbers


def test_in_a_jobs_cgroup_the_driver_shows_its_own_only() -> None:
    """Their numbers begin at 0 there, and Slurm's do not."""
    assert [
        gpu.number
        for gpu in process_binding.select_visible(GPUS[:4], {"SLURM_JOB_GPUS": "4,5,6,7"})
    ] == [
        0,
        1,
        2,
        3,
    ]


def test_the_drivers_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho '0, GPU-1a2b, 00000000:1B:00.0'\necho '1, GPU-3c4d, 00010000:07:00.0'\necho 'MIG 1g, ?'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert process_binding.list_gpus() == [
        Gpu(0, "GPU-1a2b", "0000:1b:00.0"),
        Gpu(1, "GPU-3c4d", "0000:07:00.0"),
    ]
    program.write_text("#!/bin/sh\nexit 9\n")
    assert process_binding.list_gpus() == []
    monkeypatch.setenv("PATH", "/nowhere")
    assert process_binding.list_gpus() == []


def test_the_trainer_is_started_there(root: Path, tmp_path: Path) -> None:
    """The real call before a process becomes another, on a machine whose cards are told here."""
    core = min(os.sched_getaffinity(0))
    code = f"""
from pathlib import Path
from rosetta.launch import process_binding, execution
process_binding.list_gpus = lambda: [process_binding.Gpu(0, "GPU-0", "0000:07:00.0")]
near = process_binding.choose_binding
process_binding.choose_binding = lambda gpus, environment, allowed: process_binding.Binding(frozenset([{core}]), near(gpus, environment, allowed, Path({str(root)!r})).env, "a line")
execution.execute(execution.Command([{sys.executable!r}, "-c", "import os; print(os.sched_getaffinity(0), os.environ['NCCL_IB_HCA'])"], {{"PATH": "/bin"}}, None, ("first",)))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{{{core}}} =mlx5_0,mlx5_1\n", done.stderr
    assert done.stderr.startswith("rosetta: first\nrosetta: a line\n+ ")
