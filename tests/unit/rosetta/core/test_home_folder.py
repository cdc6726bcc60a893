from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from rosetta.core import home_folder
from tests.support import errors


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home_folder._make_temporary_home.cache_clear()
    for name in ("ROSETTA_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))


def test_the_folder_is_in_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USER", "me")
    assert home_folder.make_home_folder() == tmp_path / ".rosetta"
    assert stat.S_IMODE((tmp_path / ".rosetta").stat().st_mode) == 0o700
    assert home_folder.get_child_variables() == {}


def test_rosetta_home_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "a/b"))
    assert home_folder.make_home_folder() == tmp_path / "a/b"
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "file"))
    with errors.expect_user_error(errors.DENIED, where="file"):
        home_folder.make_home_folder()


@pytest.mark.parametrize("value", [None, "", "/", "/nonexistent", "relative"])
def test_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("HOME")
    if value is not None:
        monkeypatch.setenv("HOME", value)
    made = home_folder.make_home_folder()
    assert made == tmp_path / "tmp" / f"rosetta-{os.getuid()}"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert home_folder.make_home_folder() == made
    assert (
        home_folder.get_child_variables()["HOME"]
        == home_folder.get_child_variables()["ROSETTA_HOME"]
        == str(made)
    )


def test_a_link_in_tmp_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    name = tmp_path / "tmp" / f"rosetta-{os.getuid()}"
    (tmp_path / "target").mkdir()
    name.symlink_to(tmp_path / "target")
    made = home_folder.make_home_folder()
    assert made != name
    assert made.parent == tmp_path / "tmp"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_folder_that_others_could_replace_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/")
    (tmp_path / "tmp").chmod(0o777)
    name = tmp_path / "tmp" / f"rosetta-{os.getuid()}"
    name.mkdir()
    assert home_folder.make_home_folder() != name


def test_no_writable_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr(home_folder, "_OTHER_TEMPORARY_FOLDERS", (str(tmp_path / "missing"),))
    with errors.expect_user_error(errors.MISSING, where="ROSETTA_HOME"):
        home_folder.make_home_folder()


def test_a_user_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    known = {entry.pw_uid for entry in pwd.getpwall()}
    unknown = next(uid for uid in range(54321, 60000) if uid not in known)
    monkeypatch.setattr(os, "getuid", lambda: unknown)
    assert home_folder.get_child_variables() == {
        "LOGNAME": f"uid{unknown}",
        "USER": f"uid{unknown}",
    }
