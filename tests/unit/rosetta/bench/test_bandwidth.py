"""The programs, on devices of the CPU; what they measure there says nothing, that they run and how they are counted does."""

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


def doctor(devices: int, *words: str, **environment: str) -> subprocess.Popen[str]:
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
    out, err = (run := doctor(4, "--json")).communicate()
    assert run.returncode == 0, err
    found = json.loads(out)["result"]["bandwidth"]
    assert (
        found["devices"],
        len(found["nodes"]),
        len(found["pairs"]),
        found["links"],
        found["size"],
    ) == (4, 1, 6, [], 1 << 20)
    assert all(each["rate"] > 0 for each in found["pairs"])
    assert found["all_reduce"] > 0 < found["all_gather"]
    (name,) = found["nodes"]
    assert [each["between"] for each in found["pairs"]] == [
        [f"{name}:{a}", f"{name}:{b}"] for a, b in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    ]


def test_two_processes_as_two_nodes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    both = [
        doctor(
            2,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(number),
            SLURMD_NODENAME=f"n{number}",
            JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo",
        )
        for number in range(2)
    ]
    outs = [each.communicate() for each in both]
    assert [each.returncode for each in both] == [0, 0], outs
    assert outs[1][0] == "", "the first process says it"
    lines = outs[0][0].splitlines()
    assert lines[0].startswith("4 x cpu on 2 node(s), 1 MiB")
    assert {"n0", "n1", "nodes"} <= {line.split()[0] for line in lines if line}
    assert any(line.startswith("slowest pair of nodes: n0 and n1, ") for line in lines)


def test_one_device_has_nothing_to_measure() -> None:
    out, err = (run := doctor(1)).communicate()
    assert (run.returncode, out) == (2, "")
    assert (
        err
        == "rosetta: doctor --nccl: there is one device, and nothing to measure between; give it more GPUs, or start it with srun on several nodes\n"
    )


def test_the_cpu_has_to_be_asked_for() -> None:
    out, err = (run := doctor(2, JAX_PLATFORMS="")).communicate()
    if run.returncode == 0:
        pytest.skip("this machine has GPUs")
    assert (run.returncode, out) == (2, "")
    assert "JAX sees no GPU" in err


def test_nodes_that_differ_are_refused() -> None:
    devices = jax.devices() * 3  # enough to look at; nothing is run
    with errors.refused(errors.DIFFERS, where="doctor --nccl", names=("2", "1")):
        bandwidth.measure_devices(devices[:3], ["a", "a", "b"], 4)
