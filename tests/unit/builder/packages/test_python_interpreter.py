"""Which Python an environment stands on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from builder.packages import python_interpreter
from rosetta.core.errors import UserError
from tests.support import errors

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_ours_is_found_and_known() -> None:
    found = python_interpreter.find_interpreter([HERE], HERE)
    assert (found.version, found.tag) == (HERE, sys.implementation.cache_tag)
    assert (
        python_interpreter.find_interpreter([HERE], HERE, str(Path(sys.executable))).full
        == found.full
    )


def test_the_lines_own_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for minor in ("3.97", "3.98"):
        program = tmp_path / f"python{minor}"
        program.write_text(
            f"#!/bin/sh\nprintf '{minor}\\n{minor}.9\\ncpython-{minor.replace('.', '')}\\n'\n"
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert python_interpreter.find_interpreter(["3.97", "3.98"], "3.97").full == "3.97.9"
    assert python_interpreter.find_interpreter(["3.97", "3.98"], "3.98").full == "3.98.9"
    assert (
        python_interpreter.find_interpreter(["3.96", "3.97", "3.98"], "3.98", "3.97").full
        == "3.97.9"
    )


def test_none_at_hand_says_which_and_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with errors.expect_user_error(
        errors.MISSING, where="PATH", value="3.99", remedy="apt-get install python3"
    ) as caught:
        python_interpreter.find_interpreter(["3.99"], "3.99")
    assert "apt-get install python3" in caught.value.do


@pytest.mark.parametrize("asked", ["3.9", "/bin/true", "/nowhere/python3"])
def test_what_does_not_fit_is_refused(asked: str) -> None:
    with pytest.raises(UserError):
        python_interpreter.find_interpreter([HERE], HERE, asked)


def test_a_path_of_another_version_is_refused() -> None:
    with errors.expect_user_error(
        errors.UNSUPPORTED, where=sys.executable, value=HERE, remedy="3.99"
    ):
        python_interpreter.find_interpreter(["3.99"], "3.99", sys.executable)


def test_a_shim_that_does_not_run_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in {
        "shims/python3.98": "exit 127",
        "real/python3.98": "printf '3.98\\n3.98.5\\ncpython-398\\n'",
        "real/python3.97": "printf '3.10\\n3.10.1\\nx\\n'",
    }.items():
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:{tmp_path}/real:/usr/bin:/bin")
    assert (
        python_interpreter.find_interpreter(["3.98"], "3.98").path == tmp_path / "real/python3.98"
    )
    with errors.expect_user_error(errors.MISSING, where="PATH", value="3.97"):
        python_interpreter.find_interpreter(["3.97"], "3.97")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_folder_on_path_that_may_not_be_searched_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A user who became another one keeps root's PATH."""
    (tmp_path / "python3.98").touch(0o755)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    os.seteuid(65534)
    try:
        with errors.expect_user_error(errors.MISSING, where="PATH", value="3.98"):
            python_interpreter.find_interpreter(["3.98"], "3.98")
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_python_in_a_folder_that_may_not_be_searched_is_refused(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "python3.98").touch(0o755)
    os.seteuid(65534)
    try:
        with errors.expect_user_error(errors.FAILED, where="python3.98"):
            python_interpreter.find_interpreter(["3.98"], "3.98", str(hidden / "python3.98"))
    finally:
        os.seteuid(0)
