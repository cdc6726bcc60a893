"""Run the programs on devices of the CPU. Their rates mean nothing there; their pairs and counts do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rosetta.bench import bandwidth
from tests.support import errors, required_modules

required_modules.need_current("jax")
import jax

ROOT = Path(__file__).resolve().parents[4]


def start_doctor(devices: int, *words: str, **environment: str) -> subprocess.Popen[str]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        **environment,
    }
    argv = [sys.executable, "-P", "-m", "rosetta", "doctor", "--nccl", "--mib", "1", *words]
    return subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_pairs_of_one_machine() -> None:
    out, err = (run := start_doctor(4, "--json")).communicate()
    assert run.returncode == 0, err
    measured = json.loads(out)["result"]["bandwidth"]
    assert (
        measured["devices"],
        len(measured["nodes"]),
        len(measured["pairs"]),
        measured["links"],
        measured["size"],
    ) == (4, 1, 6, [], 1 << 20)
    assert all(pair["rate"] > 0 for pair in measured["pairs"])
    assert measured["all_reduce"] > 0 < measured["all_gather"]
    (name,) = measured["nodes"]
    assert [pair["between"] for pair in measured["pairs"]] == [
        [f"{name}:{a}", f"{name}:{b}"] for a, b in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    ]


def test_two_processes_as_two_nodes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        start_doctor(
            2,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(number),
            SLURMD_NODENAME=f"n{number}",
            JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo",
        )
        for number in range(2)
    ]
    outs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outs
    assert outs[1][0] == "", "only the first process reports"
    lines = outs[0][0].splitlines()
    assert lines[0].startswith("4 x cpu on 2 node(s), 1 MiB")
    assert {"n0", "n1", "nodes"} <= {line.split()[0] for line in lines if line}
    assert any(line.startswith("slowest pair of nodes: n0 and n1, ") for line in lines)


def test_one_device_has_nothing_to_measure() -> None:
    out, err = (run := start_doctor(1)).communicate()
    assert (run.returncode, out) == (2, "")
    assert (
        err
        == "rosetta: doctor --nccl: there is only one device, so there is no other device to measure against; give the command more GPUs, or start it with srun on several nodes\n"
    )


def test_the_cpu_has_to_be_asked_for() -> None:
    out, err = (run := start_doctor(2, JAX_PLATFORMS="")).communicate()
    if run.returncode == 0:
        pytest.skip("this machine has GPUs")
    assert (run.returncode, out) == (2, "")
    assert "JAX sees no GPU" in err


def test_nodes_that_differ_are_refused() -> None:
    devices = jax.devices() * 3  # enough to look at; nothing is run
    with errors.expect_user_error(errors.DIFFERS, where="doctor --nccl", names=("2", "1")):
        bandwidth.measure_devices(devices[:3], ["a", "a", "b"], 4)
