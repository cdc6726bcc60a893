"""A program with a log file: what the file has, what the terminal shows, how a crash is told."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
LAUNCH = """
import os, sys
from pathlib import Path
from rosetta.launch import execution
execution.execute(execution.Command(
    [sys.executable, sys.argv[1]], dict(os.environ), Path(sys.argv[2]), ("a note",)
))
"""
PROGRAM = """
import logging, os, sys
from rosetta.core import log
from rosetta.health import terminal_output
terminal_output.connect_terminal()
print("chatter on stdout", flush=True)
print("chatter on stderr", file=sys.stderr, flush=True)
log.info("a line of rosetta")
for number in range(3):
    logging.getLogger("library").warning("warning %d", number)
logging.getLogger("library").info("chatter of a library")
"""


def launch(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a program with a log file; its code follows PROGRAM."""
    (folder / "program.py").write_text(PROGRAM + textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, "-c", LAUNCH, str(folder / "program.py"), str(folder / "logs/run.log")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def read_log(folder: Path) -> str:
    return (folder / "logs/run.log").read_text()


@pytest.mark.parametrize(
    ("code", "status", "shown"),
    [
        ("", 0, []),
        ("log.error('it is bad'); os._exit(2)", 2, ["it is bad"]),
        ("1 / 0", 1, ["Traceback", "ZeroDivisionError"]),
        (
            "os.write(2, b'F0000 check failed\\n'); os.abort()",
            -6,
            ["chatter on stderr", "F0000"],
        ),
        ("os.kill(os.getpid(), 9)", -9, ["chatter on stderr"]),
    ],
)
def test_the_log_has_everything_and_the_terminal_what_matters(
    tmp_path: Path, code: str, status: int, shown: list[str]
) -> None:
    done = launch(tmp_path, code)
    log_text = read_log(tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    terminal = done.stderr
    for line in ("a note", "a line of rosetta", "warning 0", *shown):
        assert line in terminal
    assert "warning 1" not in terminal
    assert (str(tmp_path / "logs/run.log") in terminal) == (status < 0)
    if status >= 0:
        assert "chatter" not in terminal
    for line in ("chatter on stdout", "chatter on stderr", "a line of rosetta", *shown):
        assert line in log_text
    assert str(tmp_path / "program.py") in log_text


def test_a_second_run_is_appended_and_only_its_own_end_is_shown(tmp_path: Path) -> None:
    launch(tmp_path, "print('first run', flush=True)")
    done = launch(tmp_path, "os.kill(os.getpid(), 9)")
    assert "first run" in read_log(tmp_path)
    assert "first run" not in done.stderr


def test_programs_that_the_program_starts_do_not_write_to_the_terminal(tmp_path: Path) -> None:
    child = "from rosetta.core import log; log.info('childline')"
    done = launch(
        tmp_path,
        f"import subprocess\nsubprocess.run([sys.executable, '-c', {child!r}], close_fds=False)",
    )
    assert "childline" in read_log(tmp_path)
    assert "childline" not in done.stderr


def test_a_line_of_progress_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    """On a terminal alone: elsewhere each line stays."""
    code = """
    for step in (1, 2):
        log.info(f"step {step} and more", fit=lambda width, step=step: f"step {step} of {width}")
    log.info("something else")
    log.info("step 3", fit=lambda width: "step 3")
    """
    assert launch(tmp_path, code).stderr.count("and more") == 2
    leader, follower = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(tmp_path / "program.py"), str(tmp_path / "a.log")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=follower,
        check=True,
        timeout=60,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 1000)
        except OSError:  # the last holder of the other side is gone
            break
        shown += piece
    os.close(leader)
    assert done.stdout == b""
    lines = shown.decode().replace("\r\n", "\n")
    assert "step 1 of 79\r\x1b[Kstep 2 of 79\nrosetta: something else\nstep 3\n" in lines
    assert (tmp_path / "a.log").read_text().count("and more") == 2


def test_a_descriptor_that_a_profiler_has_closed_is_not_used(tmp_path: Path) -> None:
    """What the program opens under its number later stays as it is."""
    code = (
        "from rosetta.core import log\n"
        "log.adopt_terminal()\n"
        "file = open('data', 'w')\n"
        "assert file.fileno() == 3\n"
        "log.info('a line')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "ROSETTA_PROGRESS_FD": "3"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "rosetta: a line\n")
    assert (tmp_path / "data").read_text() == ""
