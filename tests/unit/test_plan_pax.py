"""The exit status of the benchmark that plans Pax's training steps."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from bench import plan_pax

if TYPE_CHECKING:
    from pathlib import Path

# A report of `rosetta plan pax` without communication, whose memory misses an aim.
REPORT = {
    "memory": {"peak": 1e12},
    "traffic": {"flows": [], "loops": []},
    "flops_by_role": {"forward": {"fp8": 0, "other": 1}},
    "compile": {"seconds": 1.0, "rss": 1e9},
}


@pytest.mark.parametrize(("is_planned", "status"), [(True, 0), (False, 1)])
def test_a_case_that_cannot_be_planned_is_a_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_planned: bool,
    status: int,
) -> None:
    program = tmp_path / "python"
    answer = f"echo '{json.dumps({'result': REPORT})}'"
    program.write_text(f"#!/bin/sh\n{answer if is_planned else 'echo out of memory >&2; exit 1'}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "argv", ["plan_pax.py", "--out", str(tmp_path), "5b"])
    assert plan_pax.main() == status
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("5b: ")
    assert ("GB" in last) == is_planned
