"""How apt is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.packages import debian_resolution
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_failure_of_apt_names_its_command(tmp_path: Path) -> None:
    program = tmp_path / "apt-get"
    program.write_text("#!/bin/sh\necho 'E: Failed to fetch http://mirror/x' >&2\nexit 100\n")
    program.chmod(0o755)
    with pytest.raises(UserError) as caught:
        debian_resolution._run_apt({"PATH": str(tmp_path)}, "apt-get", "update", "-q")
    assert caught.value.where == "apt-get update"
    assert "http://mirror/x" in caught.value.what
