from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from rosetta.core import limited_programs
from rosetta.core.limited_programs import LimitedPrograms, ProgramEnd
from tests.support import process_state

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = "import sys; from pathlib import Path; from rosetta.core.limited_programs import LimitedPrograms; LimitedPrograms(Path('logs'), 600).run(['sh', '-c', 'echo $$ > child.new; mv child.new child; exec sleep 600'], {'PATH': '/usr/bin:/bin'})"


def test_the_log_and_the_exit_status(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    programs = LimitedPrograms(logs, 20)
    assert programs.run(
        ["sh", "-c", "echo out; echo $A >&2; exit 3"], {"PATH": os.environ["PATH"], "A": "err"}
    ) == ProgramEnd(3, logs / "1.log")
    assert (logs / "1.log").read_text() == "out\nerr\n"
    with (tmp_path / "out").open("wb") as out:
        end = programs.run(["sh", "-c", "echo out; echo err >&2"], os.environ, out)
    assert end == ProgramEnd(0, logs / "2.log")
    assert ((tmp_path / "out").read_text(), (logs / "2.log").read_text()) == ("out\n", "err\n")
    ended = LimitedPrograms(logs, 0.2).run(["sleep", "600"], os.environ)
    assert ended == ProgramEnd(None, logs / "3.log", limited_programs.TIME)


def test_a_program_with_too_much_memory_is_ended(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; x = b'1' * 300_000_000; time.sleep(600)"]
    end = LimitedPrograms(tmp_path, 60, memory=200_000_000).run(words, os.environ)
    assert end == ProgramEnd(None, tmp_path / "1.log", limited_programs.MEMORY)
    small = LimitedPrograms(tmp_path, 60, memory=200_000_000).run(["true"], os.environ)
    assert small == ProgramEnd(0, tmp_path / "2.log")


def test_the_memory_of_this_machine_is_known() -> None:
    available = limited_programs.read_available_memory()
    assert available is not None
    assert available > 1_000_000
    assert limited_programs.read_resident_memory(os.getpid()) > 1_000_000


def test_a_program_ends_when_the_one_that_started_it_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    while not (tmp_path / "child").exists():
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    assert process_state.wait_until_ended(int((tmp_path / "child").read_text()))


def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    words = ["sh", "-c", "sleep 600 & echo $! > child; exit 3"]
    end = LimitedPrograms(tmp_path / "logs", 20).run(
        ["env", "-C", str(tmp_path), *words], os.environ
    )
    assert end.status == 3
    assert process_state.wait_until_ended(int((tmp_path / "child").read_text()))
