from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import process_identity
from rosetta.launch import node_processes
from rosetta.launch.node_processes import ProcessLayout
from tests.support import errors

ROOT = Path(__file__).resolve().parents[4]


def test_one_process_is_told_nothing_of_the_job_it_is_in() -> None:
    assert node_processes.make_environments(
        ProcessLayout(1),
        {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "42", "SLURM_JOB_GPUS": "0", "A": "b"},
    ) == [{"SLURM_JOB_GPUS": "0", "A": "b"}]


def test_several_meet_on_this_machine() -> None:
    first, second = node_processes.make_environments(
        ProcessLayout(2), {"SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "elsewhere", "A": "b"}
    )
    assert {name for name in first if first[name] != second[name]} == {
        "SLURM_PROCID",
        "SLURM_LOCALID",
    }
    assert (
        [each["SLURM_PROCID"] for each in (first, second)]
        == [each["SLURM_LOCALID"] for each in (first, second)]
        == ["0", "1"]
    )
    assert first["SLURM_NTASKS"] == "2"
    assert first["A"] == "b"
    host, port = first["JAX_COORDINATOR_ADDRESS"].split(":")
    assert (host, first["SLURM_STEP_NODELIST"]) == ("127.0.0.1", "127.0.0.1")
    assert (
        node_processes.make_environments(ProcessLayout(2), {})[0]["SLURM_JOB_ID"]
        != first["SLURM_JOB_ID"]
    )
    assert 0 < int(port) < 65536


def test_several_nodes() -> None:
    found = node_processes.make_environments(ProcessLayout(8, 4, 2, "n0:29400"), {})
    assert [each["SLURM_PROCID"] for each in found] == [str(number) for number in range(16, 24)]
    assert {
        (
            each["SLURM_NTASKS"],
            each["SLURM_JOB_NUM_NODES"],
            each["SLURM_NODEID"],
            each["JAX_COORDINATOR_ADDRESS"],
            each["SLURM_STEP_TASKS_PER_NODE"],
        )
        for each in found
    } == {("32", "4", "2", "n0:29400", "8(x4)")}
    assert (
        len(
            {
                node_processes.make_environments(ProcessLayout(8, 4, each, "n0:29400"), {})[0][
                    "SLURM_JOB_ID"
                ]
                for each in range(4)
            }
        )
        == 1
    )


@pytest.mark.parametrize(
    ("nodes", "number", "coordinator", "kind", "facts"),
    [
        (2, 2, "n0:1", errors.INVALID, {"where": "--node 2", "value": 2, "remedy": ("0", "1")}),
        (2, 0, "", errors.MISSING, {"where": "--coordinator", "names": "2"}),
        (
            2,
            0,
            "n0",
            errors.INVALID,
            {"where": "--coordinator", "value": "n0", "remedy": "HOST:PORT"},
        ),
        (
            2,
            0,
            "n0:70000",
            errors.INVALID,
            {"where": "--coordinator", "value": "n0:70000"},
        ),
        (1, 0, ":1", errors.INVALID, {"where": "--coordinator", "value": ":1"}),
    ],
)
def test_refused(
    nodes: int, number: int, coordinator: str, kind: str, facts: dict[str, Any]
) -> None:
    with errors.expect_user_error(kind, **facts):
        ProcessLayout(8, nodes, number, coordinator)


def spawn(folder: Path, program: str, *options: str, **variables: str) -> subprocess.Popen[str]:
    """Two processes of a Python program, in which `rank` is a process's number and `say` writes into a file for it."""
    text = f"import os, signal, sys, time\nfrom pathlib import Path\nrank = int(os.environ['SLURM_PROCID'])\ndef say(what):\n    with open(f'{{rank}}', 'a') as out: print(what, file=out, flush=True)\n{program}\n"
    argv = [
        sys.executable,
        "-P",
        "-m",
        "rosetta",
        "spawn",
        *(options or ["--per-node=2"]),
        "--",
        sys.executable,
        "-S",
        "-c",
        text,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        argv, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(folder: Path, *lines: str) -> None:
    """Until each process has said as many lines, these the last."""
    until = time.monotonic() + 60
    while not all(
        (folder / str(rank)).exists()
        and (folder / str(rank)).read_text().splitlines() == list(lines)
        for rank in range(2)
    ):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_all_end_well(tmp_path: Path) -> None:
    started = spawn(tmp_path, "say(sys.argv)")
    assert started.communicate(timeout=60) == ("", "")
    assert started.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]
)
def test_one_that_fails_ends_the_others_and_gives_the_status(
    tmp_path: Path, end: str, status: int
) -> None:
    started = spawn(tmp_path, f"if rank: {end}\ntime.sleep(600)")
    _, said = started.communicate(timeout=60)
    assert started.returncode == status
    *before, last = said.splitlines()
    assert last == f"rosetta: process 1 ended with status {status}; the others end too"
    assert [line.partition(":")[2].partition(":")[0] for line in before] == [
        " process 1 was killed (status 137)"
    ] * (status == 137)


def test_processes_that_fail_together_give_the_status(tmp_path: Path) -> None:
    """A process that was reaped together with the first that failed must get no signal."""
    program = "say(os.getpid())\nwhile not os.path.exists('go'): time.sleep(0.02)\nsys.exit(7)"
    started = spawn(tmp_path, program)
    files = [tmp_path / "0", tmp_path / "1"]
    wait_until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files))
    started.send_signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    process_ids = [int(file.read_text()) for file in files]
    wait_until(lambda: all(process_identity.is_zombie(process) for process in process_ids))
    started.send_signal(signal.SIGCONT)
    _, messages = started.communicate(timeout=60)
    assert started.returncode == 7, messages


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_that_does_not_end_itself_is_killed(tmp_path: Path) -> None:
    text = "import os, signal, sys, time\nif os.environ['SLURM_PROCID'] == '1': sys.exit(3)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    code = f"import os, sys\nfrom rosetta.launch import node_processes\nsys.exit(node_processes.run_processes([sys.executable, '-S', '-c', {text!r}], node_processes.ProcessLayout(2), os.environ, 0.5))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 3


def test_one_that_ended_early_waits_for_the_others(tmp_path: Path) -> None:
    """All of them write a checkpoint then: whoever is done first must not cut the others off."""
    program = "signal.signal(signal.SIGTERM, lambda *_: (say('cut off'), sys.exit(1)))\nif rank: sys.exit(75)\ntime.sleep(1)\nsay('done')\nsys.exit(75)"
    started = spawn(tmp_path, program)
    started.communicate(timeout=60)
    assert started.returncode == 75
    assert (tmp_path / "0").read_text() == "done\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_are_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    started = spawn(
        tmp_path,
        f"signal.signal({int(number)}, lambda *_: (say('told'), sys.exit(75)))\nsay('ready')\ntime.sleep(600)",
    )
    wait_for(tmp_path, "ready")
    started.send_signal(number)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 75
    wait_for(tmp_path, "ready", "told")
    assert "Traceback" not in said


def test_they_go_with_us(tmp_path: Path) -> None:
    started = spawn(
        tmp_path,
        "signal.signal(signal.SIGTERM, lambda *_: (say('told'), sys.exit(0)))\nsay('ready')\ntime.sleep(600)",
    )
    wait_for(tmp_path, "ready")
    started.kill()
    started.communicate(timeout=60)
    wait_for(tmp_path, "ready", "told")


def test_no_such_program() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rosetta", "spawn", "--", "no-such-program"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no-such-program: " in done.stderr
    assert "PATH" in done.stderr


def test_kubernetes_says_which_node_it_is(tmp_path: Path) -> None:
    started = spawn(
        tmp_path,
        "say(os.environ['SLURM_NODEID'])",
        "--per-node=1",
        "--nodes=3",
        "--coordinator=n0:29400",
        JOB_COMPLETION_INDEX="2",
    )
    _, said = started.communicate(timeout=60)
    assert started.returncode == 0, said
    assert (tmp_path / "2").read_text() == "2\n"
