"""The exit status of the benchmark that plans T5's training steps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bench import plan_t5x

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_case_that_cannot_be_compiled_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho killed >&2\nexit 137\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "argv", ["plan_t5x.py", "--out", str(tmp_path), "large-fast"])
    assert plan_t5x.main() == 1
    assert capsys.readouterr().out == "large-fast: killed\n\n"
