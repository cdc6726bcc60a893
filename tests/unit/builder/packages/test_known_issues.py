from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from builder.packages import known_issues
from rosetta.core.errors import UserError

RECORD: dict[str, Any] = {
    "distribution": "t5x",
    "accelerator": "cuda13",
    "architecture": "amd64",
    "transformer_engine": None,
}
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "nvidia-nccl-cu12": "2.30.1"}


def ids(
    record: dict[str, Any] = RECORD, versions: dict[str, str] = VERSIONS, **changes: Any
) -> set[str]:
    return {
        issue["id"]
        for issue in known_issues.select_issues(
            known_issues.load_issues(), {**record, **changes}, versions
        )
    }


def test_ours_by_version_and_place() -> None:
    assert {"pile-offline", "shm-too-small", "flag-simplify-fp-conversions"} <= ids()
    assert "nvls-memory" not in ids(), "our NCCL is newer"
    assert "nvls-memory" in ids(versions={**VERSIONS, "nvidia-nccl-cu12": "2.17.1"})
    assert "flag-graph-level" not in ids()
    assert "flag-graph-level" in ids(distribution="pax")
    assert "te-shardy" not in ids()
    assert "te-shardy" in ids(transformer_engine={"version": "2.20.2"})
    assert "flag-simplify-fp-conversions" not in ids(versions={"jaxlib": "0.4.26"})
    assert ids(accelerator="cpu") == {"pile-offline"}, (
        "what is about GPUs is not said where there are none"
    )
    assert "lingvo-arm64" in ids(architecture="arm64", versions={"lingvo": "0.14.2"})


def test_rendered_as_json() -> None:
    document = json.loads(known_issues.render_issues(RECORD, VERSIONS))
    assert document["schema"] == 1
    assert all(
        {"id", "line", "see", "end"}
        <= set(issue)
        <= {"id", "line", "see", "end", "capabilities", "variables", "one_process_per_gpu"}
        for issue in document["issues"]
    )
    (blackwell,) = (issue for issue in document["issues"] if issue["id"] == "connections-blackwell")
    assert blackwell["variables"] == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert 10 in blackwell["capabilities"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("issues: {}", "no list"),
        ("issues: [3]", "other keys"),
        ("issues: [{id: a, line: b}]", "one line"),
        ("issues: [{id: a, line: b, see: c}]", "one line"),
        ("issues: [{id: a, line: b, see: c, end: d, capabilities: [ten]}]", "whole numbers"),
        ("issues: [{id: a, line: b, see: c, end: d, variables: {A: 1}}]", "texts"),
        ("issues: [{id: a, line: b, see: c, end: d, variables: [A]}]", "texts"),
        ('issues: [{id: a, line: "b\\nc", see: d, end: e}]', "one line"),
        ("issues: [{id: a, line: b, see: c, end: d, colour: red}]", "other keys"),
        ("issues: [{id: a, line: b, see: c, end: d}, {id: a, line: b, see: c, end: d}]", "twice"),
        ("issues: [{id: a, line: b, see: c, end: d, accelerators: cpu}]", "lists"),
        ("issues: [{id: a, line: b, see: c, end: d, when: {jax: new}}]", "versions"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "known_issues.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=problem):
        known_issues.load_issues(file)


def test_where_an_issue_is_told_can_be_reached_from_an_image() -> None:
    """No page of this repository's docs/: an image does not hold them."""
    places = [issue["see"] for issue in known_issues.load_issues()]
    assert [
        place for place in places if not re.fullmatch(r"https://\S+|[\w.-]+/[\w.-]+#[0-9]+", place)
    ] == []
