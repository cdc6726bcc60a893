from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.packages.known_issues import load_issues, select_issues
from rosetta.doctor import known_issues
from tests.support.fake_machine import A100, B200, find_finding, find_levels, make_machine

RECORD: dict[str, Any] = {
    "distribution": "pax",
    "accelerator": "cuda13",
    "architecture": "amd64",
    "transformer_engine": {"version": "2.20.2"},
}
OURS = select_issues(load_issues(), RECORD, {"jax": "0.10.2", "jaxlib": "0.10.2"})


def test_issues_of_the_versions_are_notes(tmp_path: Path) -> None:
    found = find_finding(make_machine(tmp_path, issues=OURS), "fused-attention-126m")
    assert found.level == "note"
    assert found.see.startswith("NVIDIA/JAX-Toolbox#730; until ")
    assert found.do.startswith("leave ATTENTION out")


def test_issues_that_other_checks_cover_are_reported_once(tmp_path: Path) -> None:
    assert set(known_issues.CHECKED_ELSEWHERE) <= {each["id"] for each in load_issues()}
    assert not set(known_issues.CHECKED_ELSEWHERE) & set(
        find_levels(make_machine(tmp_path, issues=OURS))
    )
    assert (
        find_levels(make_machine(tmp_path, issues=OURS, shm=64 << 20))["shm-too-small"] == "blocker"
    )


def test_connections_on_blackwell(tmp_path: Path) -> None:
    set_ = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert (
        find_levels(make_machine(tmp_path, gpus=[B200] * 8, issues=OURS, environment=set_))[
            "connections-blackwell"
        ]
        == "warning"
    )
    assert "connections-blackwell" not in find_levels(
        make_machine(tmp_path, gpus=[B200] * 8, issues=OURS)
    )
    assert "connections-blackwell" not in find_levels(
        make_machine(tmp_path, gpus=[A100] * 8, issues=OURS, environment=set_)
    )


def test_fused_attention_with_one_process_a_gpu(tmp_path: Path) -> None:
    step = {"SLURM_STEP_TASKS_PER_NODE": "8", "NVTE_FUSED_ATTN": "1"}
    assert (
        find_levels(make_machine(tmp_path, issues=OURS, environment=step))[
            "te-attention-one-process-per-gpu"
        ]
        == "warning"
    )
    for other in (
        {**step, "NVTE_FUSED_ATTN": "0"},
        {**step, "SLURM_STEP_TASKS_PER_NODE": "1"},
        {"NVTE_FUSED_ATTN": "1"},
    ):
        assert "te-attention-one-process-per-gpu" not in find_levels(
            make_machine(tmp_path, issues=OURS, environment=other)
        )


def test_an_issue_without_end_or_remedy(tmp_path: Path) -> None:
    found = find_finding(
        make_machine(tmp_path, issues=[{"id": "x", "line": "it breaks", "see": "there#1"}]), "x"
    )
    assert (found.what, found.see) == ("it breaks", "there#1")
    assert found.do
