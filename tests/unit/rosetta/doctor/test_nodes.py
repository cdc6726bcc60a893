from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rosetta.core.system_queries import CommandResult
from rosetta.doctor.machine import Machine
from tests.support.fake_machine import H100, find_finding, find_levels, make_machine

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURMD_NODENAME": "n1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}


def in_job(root: Path, off: Sequence[float] = (0, 0, 0), **changes: Any) -> Machine:
    """A job of three nodes, whose clocks are so many seconds off."""
    usual = make_machine(root).run_command

    def run(argv: Sequence[str], seconds: float) -> CommandResult | None:
        if argv[0] != "srun":
            return usual(argv, seconds)
        assert argv[1:] == [
            "--overlap",
            "--nodes=3",
            "--ntasks=3",
            "--ntasks-per-node=1",
            "--label",
            "--",
            "date",
            "+%s.%N",
        ]
        return CommandResult(
            0, "".join(f"{task}: {time.time() + each:.9f}\n" for task, each in enumerate(off)), ""
        )

    return make_machine(root, **{"environment": JOB, "run_command": run, **changes})


def test_a_healthy_job_has_no_findings(tmp_path: Path) -> None:
    assert find_levels(in_job(tmp_path)) == {}


def test_names_that_do_not_resolve(tmp_path: Path) -> None:
    examined = in_job(
        tmp_path, resolve_host=lambda name: [] if name in ("n2", "n3") else ["10.0.0.1"]
    )
    found = find_finding(examined, "host-unresolvable")
    assert (found.level, found.where) == ("blocker", "SLURM_JOB_NODELIST")
    assert "n2, n3" in found.what
    assert "host-unresolvable" not in find_levels(
        in_job(tmp_path, quick=True, resolve_host=lambda _: [])
    )
    named = find_finding(
        make_machine(tmp_path, resolve_host=lambda _: []),
        "host-unresolvable",
        hosts=[f"m{n}" for n in range(9)],
    )
    assert named.where == "--hosts"
    assert "m4 and 4 more" in named.what


@pytest.mark.parametrize(("own", "found"), [("n1", False), ("n2", True)])
def test_a_node_that_resolves_to_loopback(tmp_path: Path, own: str, found: bool) -> None:
    examined = in_job(
        tmp_path, resolve_host=lambda name: ["127.0.1.1"] if name == own else ["10.0.0.1"]
    )
    assert ("host-is-loopback" in find_levels(examined)) == found


def test_clocks(tmp_path: Path) -> None:
    found = find_finding(in_job(tmp_path, off=(0, 0, -40)), "clocks-differ")
    assert found.level == "warning"
    assert found.what.startswith("n3: at least")
    assert "clocks-differ" in find_levels(in_job(tmp_path, off=(0, 3600, 0)))
    elsewhere = in_job(tmp_path, off=(0, 3600, 0), environment={**JOB, "SLURM_PROCID": "2"})
    assert find_levels(elsewhere) == {}, "the first process asks for all"
    assert find_levels(in_job(tmp_path, off=(0, 0)))["clocks-not-asked"] == "note"
    assert find_levels(in_job(tmp_path, run_command=lambda *_: None))["clocks-not-asked"] == "note"


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "8"}, {}),
        ({"SLURM_STEP_TASKS_PER_NODE": "1"}, {}),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "8", "CUDA_VISIBLE_DEVICES": "3"},
            {"gpus-for-processes": "blocker"},
        ),
        (
            {
                "SLURM_STEP_TASKS_PER_NODE": "8",
                "CUDA_VISIBLE_DEVICES": "3",
                "JAX_LOCAL_DEVICE_IDS": "0",
            },
            {},
        ),
        ({"SLURM_STEP_TASKS_PER_NODE": "4"}, {"gpus-idle": "warning"}),
        ({"SLURM_STEP_TASKS_PER_NODE": "16"}, {"gpus-for-processes": "blocker"}),
    ],
)
def test_a_gpu_for_each_process(
    tmp_path: Path, environment: dict[str, str], found: dict[str, str]
) -> None:
    assert (
        find_levels(
            make_machine(
                tmp_path,
                gpus=[H100] * 8,
                environment={**environment, "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            )
        )
        == found
    )


def test_an_invalid_node_list(tmp_path: Path) -> None:
    examined = make_machine(tmp_path, environment={"SLURM_JOB_NODELIST": "n[1-$(reboot)]\n\x1b[2J"})
    assert find_finding(examined, "node-list-unread").where == "SLURM_JOB_NODELIST"
