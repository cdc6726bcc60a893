"""Installed files that differ from their wheel, are missing, or cannot be read."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from builder.packages import wheel_record
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

EMPTY = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"  # the sha256 of an empty file


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "a_b-1.0.dist-info").mkdir()
    (tmp_path / "a_b-1.0.dist-info" / "RECORD").write_text(f"a.py,sha256={EMPTY},0\n")
    (tmp_path / "a.py").write_text("")
    return tmp_path


def test_an_edited_or_missing_file_is_found(site: Path) -> None:
    assert wheel_record.find_edited_files(site) == {}
    (site / "a.py").write_text("edited")
    assert wheel_record.find_edited_files(site) == {"a-b": "a.py"}
    (site / "a.py").unlink()
    assert wheel_record.find_edited_files(site) == {"a-b": "a.py"}


def test_a_file_that_cannot_be_read_is_not_called_edited(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith("a.py"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open(path, *arguments, **options)

    # Root may read every file.
    monkeypatch.setattr(wheel_record, "open", refuse, raising=False)
    with errors.expect_user_error(errors.DENIED, where=site / "a.py"):
        wheel_record.find_edited_files(site)
