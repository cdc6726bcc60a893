"""What the scripts' tests do not see from outside; they have the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest

from rosetta.core import log
from rosetta.launch import execution
from tests.support import errors

ROOT = Path(__file__).resolve().parents[4]


def test_the_interpreter() -> None:
    assert execution.find_python({}) == sys.executable
    assert execution.find_python({"PYTHON": sys.executable}) == sys.executable
    with errors.expect_user_error(errors.MISSING, where="PYTHON=/nowhere", value="/nowhere"):
        execution.find_python({"PYTHON": "/nowhere"})


def test_what_is_compiled_is_kept_where_it_can_be_and_nobody_chose(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert execution.compilation_cache_variables(home, 1) == {
        "JAX_COMPILATION_CACHE_DIR": f"{tmp_path}/.rosetta/compiled"
    }
    assert execution.compilation_cache_variables({**home, "ROSETTA_HOME": "/r"}, 1) == {
        "JAX_COMPILATION_CACHE_DIR": "/r/compiled"
    }
    assert execution.compilation_cache_variables(home, 2) == {}
    assert execution.compilation_cache_variables({"HOME": "/nowhere"}, 1) == {}
    for name in execution.CACHE_VARIABLES:
        assert execution.compilation_cache_variables({**home, name: ""}, 1) == {}


def test_a_dry_run_says_the_environment_that_was_decided_as_a_shell_would_be_told() -> None:
    wanted = execution.Command(
        ["trainer", "--a=b c"],
        {"XLA_FLAGS": "--xla_a=1 --xla_b=2", "HF_TOKEN": "k3y-k3y", "DATA": "s3://me:pw@host/data"},
        None,
        ("said k3y-k3y",),
    )
    assert (
        execution.format_command(wanted)
        == "said ...\nXLA_FLAGS='--xla_a=1 --xla_b=2' \\\n  DATA=s3://...@host/data \\\n  trainer '--a=b c'"
    )


def test_secrets_are_not_said_when_it_starts(tmp_path: Path) -> None:
    code = "from rosetta.launch import execution\nexecution.execute(execution.Command(['sh', '-c', ': $1', 'sh', 's3://me:pw@host/k3y-k3y'], {'PATH': '/usr/bin:/bin', 'HF_TOKEN': 'k3y-k3y'}, None, ('reads s3://me:pw@host/k3y-k3y',)))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == "rosetta: reads s3://...@host/...\n+ sh -c ': $1' sh s3://...@host/...\n"


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("info", ["rosetta: a note", "rosetta: a warning", "+ true"]),
        ("warning", ["rosetta: a warning"]),
        ("error", []),
    ],
)
def test_the_level_hides_notes_before_warnings(
    level: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = execution.Command(
        ["true"],
        {"PATH": "/usr/bin:/bin"},
        None,
        ("a note", execution.WarningLine("a warning")),
        refusal=None,
    )

    def started(*_: object) -> NoReturn:
        raise SystemExit(0)

    with (
        mock.patch.object(os, "execvpe", started),
        pytest.raises(SystemExit),
        log.use_level(level),
    ):
        execution.execute(wanted)
    assert capsys.readouterr().err.splitlines() == lines


HEEDS = """
import time
from rosetta.health import stop_signals
stop_signals.install_handlers()
asked = []
stop_signals.set_stop_request(asked.append)
print("ready", flush=True)
while not asked:
    time.sleep(0.01)
time.sleep(0.5)
stop_signals.exit_with_line(f"ended by {asked[0]}")
"""


def test_what_a_terminal_sends_to_all_is_one_signal_to_what_we_pass_it_on_to() -> None:
    """Ctrl-C reaches the shell, us and the trainer: that one writes its checkpoint, and what was to come after it does not."""
    code = f"import os, sys\nfrom rosetta.launch import execution\nenv = dict(os.environ)\nexecution.run_in_order([execution.Command([sys.executable, '-c', each], env, None, ()) for each in ({HEEDS!r}, 'print(0)')])"
    argv = ["bash", "-c", 'exec "$@"', "x", sys.executable, "-P", "-c", code]
    process = subprocess.Popen(
        argv,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert out == ""
    assert [line for line in err.splitlines() if not line.startswith("+ ")][-2:] == [
        "rosetta: SIGINT: the run ends after the running step, with a checkpoint; a second signal ends it at once",
        "rosetta: ended by SIGINT",
    ]
