"""Copies that share nothing with their source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.core.file_copies import copy_file, copy_tree
from builder.packages import uv


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
@pytest.mark.parametrize("mode", [0o444, 0o644, 0o755])
@pytest.mark.parametrize("there", [False, True])
def test_a_copy_is_another_file_with_the_same_content(
    tmp_path: Path, size: int, mode: int, there: bool
) -> None:
    source, target, other = tmp_path / "source", tmp_path / "target", tmp_path / "other"
    source.write_bytes(os.urandom(size))
    source.chmod(mode)
    os.utime(source, ns=(5, 123_456_789))
    if there:
        other.write_text("mine")
        os.link(other, target)
    copy_file(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert not target.samefile(source)
    assert (target.stat().st_mode & 0o777, target.stat().st_mtime_ns) == (mode, 123_456_789)
    assert not there or other.read_text() == "mine", "what was there is replaced, not written into"


def test_a_tree_keeps_its_links_and_shares_no_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/f").write_text("x")
    (source / "d/l").symlink_to("f")
    (source / "dl").symlink_to("d")
    copy_tree(source, tmp_path / "copied")
    assert os.readlink(tmp_path / "copied/d/l") == "f"
    assert os.readlink(tmp_path / "copied/dl") == "d"
    (tmp_path / "copied/d/f").write_text("y")
    assert (source / "d/f").read_text() == "x"


@pytest.mark.parametrize("value", ["hardlink", "symlink", "clone", ""])
def test_uv_never_links(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Not even by "clone", which becomes a hard link on a file system without reflinks."""
    monkeypatch.setenv("UV_LINK_MODE", value)
    assert uv.make_environment()["UV_LINK_MODE"] == "copy"
