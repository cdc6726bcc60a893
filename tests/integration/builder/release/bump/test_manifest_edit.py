from __future__ import annotations

from pathlib import Path

import pytest

from builder.release.bump import manifest_edit
from tests.support import errors

OLD, NEW = "a1" * 20, "b2" * 20
BLOCK = f"""# {OLD} is the pin of up
version: 1
sources:
  other: {{git: https://example.org/other.git, track: main, commit: {OLD}, patches: p}}   # {OLD}
  up:
    patches: p/{OLD}
    commit:   '{OLD}'   # {OLD}, tried on {OLD}
    git: https://example.org/up.git


    track: main
lines: {{}}   # ä, more
"""


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_only_the_pin_changes(tmp_path: Path, ends: str) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_bytes(BLOCK.replace("\n", ends).encode())
    file.chmod(0o600)
    manifest_edit.set_pin(file, "up", OLD, NEW)
    assert file.read_bytes().decode() == BLOCK.replace(f"'{OLD}'", f"'{NEW}'").replace("\n", ends)
    assert file.stat().st_mode & 0o777 == 0o600
    manifest_edit.set_pin(file, "other", OLD, NEW)
    assert file.read_bytes().decode() == BLOCK.replace(f"'{OLD}'", f"'{NEW}'").replace(
        f"commit: {OLD},", f"commit: {NEW},"
    ).replace("\n", ends)
    manifest_edit.set_pin(file, "other", OLD, NEW)


def test_a_pin_that_somebody_moved_stays(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(BLOCK)
    with errors.expect_user_error(
        errors.DIFFERS, where="manifest.yaml", value="a1" * 20, names="up"
    ):
        manifest_edit.set_pin(file, "up", "c3" * 20, NEW)
    assert file.read_text() == BLOCK


def test_a_manifest_behind_a_link_stays_behind_it(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text(BLOCK)
    link = tmp_path / "manifest.yaml"
    link.symlink_to(real)
    manifest_edit.set_pin(link, "up", OLD, NEW)
    assert link.is_symlink()
    assert f"'{NEW}'" in real.read_text()
