from __future__ import annotations

import pytest

from rosetta.doctor import slurm_job
from tests.support import errors


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1-2,07,10-11]", ["n1", "n2", "n07", "n10", "n11"]),
        ("node-[008-011]", ["node-008", "node-009", "node-010", "node-011"]),
        ("gpu-a[1-2]-r[1,3],login", ["gpu-a1-r1", "gpu-a1-r3", "gpu-a2-r1", "gpu-a2-r3", "login"]),
        ("a,b.example.org,[1-2]x", ["a", "b.example.org", "1x", "2x"]),
        ("n1,n1", ["n1"]),
        ("fd00::1,10.0.0.1", ["fd00::1", "10.0.0.1"]),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[str]) -> None:
    assert slurm_job.parse_hosts(text, "here") == hosts


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "n[1-",
        "n[1",
        "n[[1]]",
        "n1]",
        "n[]",
        "n[2-1]",
        "n[a-b]",
        "n[1-99999999999999999999]",
        "n[1-999999]",
        "[1-999][1-999]",
        "a b",
        "$(x)",
        "-o",
        "a\nb",
        "n[1,,2]",
        "ä",
        "a;b",
        "a" * 9 + "/",
    ],
)
def test_invalid_lists_of_hosts(text: str) -> None:
    kind = errors.TOO_BIG if text == "[1-999][1-999]" else errors.INVALID
    with errors.expect_user_error(kind, where="here"):
        slurm_job.parse_hosts(text, "here")
    assert slurm_job.read_job_hosts({"SLURM_JOB_NODELIST": text}) == []


def test_many_hosts() -> None:
    assert len(slurm_job.parse_hosts("n[00000-65535]", "here")) == 65536


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        (
            {"SLURM_PROCID": "0", "SLURM_TASKS_PER_NODE": "8"},
            1,
        ),  # as in a batch script, which is no step
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "2"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_NODEID": "1"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "many"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_NODEID": "7"}, 8),
    ],
)
def test_count_of_processes_on_a_node(environment: dict[str, str], count: int) -> None:
    assert slurm_job.count_node_tasks(environment) == count
