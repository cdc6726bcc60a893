from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_machine import GIB, H100, find, ids, machine, write


def test_a_driver_and_no_gpu(tmp_path: Path) -> None:
    made = machine(tmp_path, gpus=())
    assert find(made, "no-gpu-visible").level == "blocker"
    write(tmp_path, **{".dockerenv": ""})
    assert find(machine(tmp_path, gpus=()), "no-gpu-visible").do.endswith(" --gpus=all")
    hidden = find(
        machine(tmp_path, gpus=(), environment={"NVIDIA_VISIBLE_DEVICES": "void"}),
        "no-gpu-visible",
    )
    assert "NVIDIA_VISIBLE_DEVICES hides" in hidden.what
    assert "no-gpu-visible" not in ids(
        machine(tmp_path, gpus=(), environment={"JAX_PLATFORMS": "cpu"})
    )


def test_a_job_without_its_gpus(tmp_path: Path) -> None:
    assert (
        "--gres=gpu"
        in find(machine(tmp_path, gpus=(), environment={"SLURM_JOB_ID": "3"}), "no-gpu-visible").do
    )


@pytest.mark.parametrize(("value", "level"), [("", "blocker"), ("-1", "blocker"), ("0", None)])
def test_hidden_gpus(tmp_path: Path, value: str, level: str | None) -> None:
    assert (
        ids(machine(tmp_path, environment={"CUDA_VISIBLE_DEVICES": value})).get("gpus-hidden")
        == level
    )


def test_what_of_the_driver_a_container_has(tmp_path: Path) -> None:
    assert "driver-capabilities" not in ids(machine(tmp_path)), "this is no container"
    write(tmp_path, **{".dockerenv": ""})
    assert ids(machine(tmp_path))["driver-capabilities"] == "warning"
    assert (
        "lacks"
        in find(
            machine(tmp_path, environment={"NVIDIA_DRIVER_CAPABILITIES": "utility"}),
            "driver-capabilities",
        ).what
    )
    for value in ("all", "compute,utility,video"):
        assert "driver-capabilities" not in ids(
            machine(tmp_path, environment={"NVIDIA_DRIVER_CAPABILITIES": value})
        )
    write(tmp_path, **{"usr__lib__x86_64-linux-gnu__libcuda.so.1": ""})
    assert "driver-capabilities" not in ids(machine(tmp_path)), "it has come by another way"
    made = machine(tmp_path)
    (tmp_path / "dev/nvidia-uvm").unlink()
    assert ids(made)["no-uvm"] == "blocker"


@pytest.mark.parametrize("version", [1, 2])
def test_memory_and_cores(tmp_path: Path, version: int) -> None:
    two: dict[str, Any] = {"gpus": [H100] * 2, "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
    first = machine(tmp_path, **two)
    if version == 2:
        write(
            tmp_path,
            proc__self__cgroup="0::/job/step\n",
            **{
                "sys__fs__cgroup__job__memory.max": f"{16 * GIB}\n",
                "sys__fs__cgroup__job__step__cpu.max": "400000 100000\n",
            },
        )
        write(tmp_path, **{"sys__fs__cgroup__memory.max": "max\n"})
    else:
        write(
            tmp_path,
            proc__self__cgroup="5:cpu,cpuacct:/\n4:memory:/docker/1\n",
            **{"sys__fs__cgroup__memory__memory.limit_in_bytes": f"{16 * GIB}\n"},
        )
        write(
            tmp_path,
            **{
                "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "400000\n",
                "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n",
            },
        )
    assert ids(first) == {"host-memory": "warning", "few-cores": "warning", "cpu-quota": "note"}
    assert re.findall(r"\d+ G\w+", find(first, "host-memory").what) == ["16 GiB", "2 GPU", "32 GiB"]
    assert find(first, "few-cores").what.startswith("4 core(s) for 2")
    assert "128" in find(first, "cpu-quota").what


def test_no_limit_is_none(tmp_path: Path) -> None:
    made = machine(tmp_path, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    write(
        tmp_path,
        **{
            "sys__fs__cgroup__memory__memory.limit_in_bytes": "9223372036854771712",
            "sys__fs__cgroup__cpu.max": "max 100000",
        },
    )
    assert ids(made) == {}
    write(
        tmp_path, proc__meminfo="MemTotal:  1000 kB\n", proc__self__status="Cpus_allowed_list:\t3\n"
    )
    assert set(ids(made)) == {"host-memory", "few-cores"}
    assert find(made, "few-cores").what.startswith("1 core(s)")


def test_cores_of_one_of_several_processes(tmp_path: Path) -> None:
    made = machine(tmp_path, environment={"SLURM_STEP_TASKS_PER_NODE": "8"})
    write(tmp_path, proc__self__status="Cpus_allowed_list:\t8-15\n")
    assert "few-cores" not in ids(made)


def test_a_read_only_root(tmp_path: Path) -> None:
    made = machine(tmp_path)
    write(tmp_path, proc__mounts="overlay / overlay ro,relatime 0 0\ntmpfs /tmp tmpfs rw 0 0\n")
    assert ids(made)["read-only-root"] == "note"


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({"https_proxy": "http://me:pa55@proxy:3128"}, "note"),
        (
            {
                "HTTP_PROXY": "http://me:pa55@proxy:3128",
                "SLURM_JOB_NODELIST": "n[1-2]",
                "no_proxy": "localhost,127.0.0.1",
            },
            "warning",
        ),
        (
            {
                "HTTP_PROXY": "http://me:pa55@proxy:3128",
                "SLURM_JOB_NODELIST": "n[1-2].site.org",
                "no_proxy": "localhost, 127.0.0.1,.site.org",
            },
            None,
        ),
        ({"http_proxy": "x", "NO_PROXY": "*"}, None),
        ({"http_proxy": ""}, None),
        ({"ftp_proxy": "x"}, None),
    ],
)
def test_proxies(tmp_path: Path, environment: dict[str, str], level: str | None) -> None:
    made = machine(tmp_path, environment=environment)
    assert ids(made).get("proxy-for-local") == level
    if level:
        assert "pa55" not in str(find(made, "proxy-for-local"))
