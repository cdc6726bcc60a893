from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rosetta.core import exit_status

ROOT = Path(__file__).resolve().parents[4]


def test_rosetta_debug_prints_the_traceback_of_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROSETTA_DEBUG", "1")
    try:
        raise ValueError("odd")
    except ValueError as error:
        code, failure = exit_status.explain_failure(error, "plan")
    assert (code, failure.where) == (exit_status.INTERNAL_ERROR, "plan")
    assert "test_exit_status.py" in capsys.readouterr().err


FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("error", "where", "what"),
    [
        (OSError(errno.ENOSPC, FULL, "source", None, "target"), "target", FULL),
        (OSError(errno.EDQUOT, "over", "source", None, "target"), "target", "over"),
        (OSError(errno.ENOSPC, FULL, "target"), "target", FULL),
        (OSError(errno.ENOSPC, FULL), "plan", FULL),
        (OSError(errno.EACCES, "no", "source", None, "target"), "source", "no"),
        (OSError("odd"), "plan", "odd"),
        (
            shutil.Error(
                [("source", "target", f"[Errno {errno.ENOSPC}] {FULL}: 'target'"), ("b", "c", "x")]
            ),
            "target",
            FULL,
        ),
    ],
)
def test_a_full_disk_is_named_and_not_what_was_copied(
    error: OSError, where: str, what: str
) -> None:
    code, failure = exit_status.explain_failure(error, "plan")
    assert (code, failure.where, failure.what) == (exit_status.USER_ERROR, where, what)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EBADF, "x"),
        shutil.Error([("a", "b", "odd")]),
        shutil.Error("`a` and `a` are the same file"),
        ModuleNotFoundError("x", name="rosetta.nosuch"),
    ],
)
def test_other_errors_are_bugs(error: Exception) -> None:
    code, _ = exit_status.explain_failure(error, "plan")
    assert code == exit_status.INTERNAL_ERROR


@pytest.mark.parametrize("name", ["rosetta/launch/job.sh", "scripts/launch_base_script.sub"])
def test_the_shell_scripts_compare_with_the_same_numbers(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    compared = {int(number) for number in re.findall(r"\$status [!=]= ([0-9]+)", text)} - {0}
    assert compared == {exit_status.ENDED_EARLY, exit_status.PROCESS_LOST}
    assert f"status {exit_status.ENDED_EARLY}" in text


@pytest.mark.parametrize(
    ("value", "wanted"), [("1", True), ("on", True), ("?", True), ("0", False), ("", False)]
)
def test_when_a_traceback_is_wanted(
    monkeypatch: pytest.MonkeyPatch, value: str, wanted: bool
) -> None:
    monkeypatch.setenv("ROSETTA_DEBUG", value)
    assert exit_status.wants_traceback() is wanted


def run_with_closed_stdout(*words: str) -> subprocess.CompletedProcess[str]:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as out:
        return subprocess.run(
            [sys.executable, "-P", "-m", "rosetta", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_closed_pipe_is_not_an_error(more: list[str]) -> None:
    done = run_with_closed_stdout("explain", "t5x-large", *more)
    assert (done.returncode, done.stderr) == (141, "")
    done = run_with_closed_stdout("explain", "no-such-preset", *more)
    assert done.returncode == 2, "what was wrong before is"
    assert done.stderr.startswith("rosetta: preset: there is no preset")
    assert done.stderr.count("\n") == 1


PROGRAM = "import sys; from rosetta import cli; from rosetta.commands import info; info.RUN['te'] = lambda _: ({}, 'found'); sys.exit(cli.main(sys.argv[1:]))"


@pytest.mark.parametrize("words", [["te"], ["te", "--json"]])
def test_output_that_does_not_arrive_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert (
        done.stderr
        == "rosetta: stdout: No space left on device; write the output where there is space, and read it to its end\n"
    )
