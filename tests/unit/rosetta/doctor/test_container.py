from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_machine import (
    GIB,
    H100,
    find_finding,
    find_levels,
    make_machine,
    write_files,
)


def test_a_container_without_gpus_is_reported(tmp_path: Path) -> None:
    examined = make_machine(tmp_path, gpus=())
    assert find_finding(examined, "no-gpu-visible").level == "blocker"
    write_files(tmp_path, **{".dockerenv": ""})
    assert find_finding(make_machine(tmp_path, gpus=()), "no-gpu-visible").do.endswith(
        " --gpus=all"
    )
    hidden = find_finding(
        make_machine(tmp_path, gpus=(), environment={"NVIDIA_VISIBLE_DEVICES": "void"}),
        "no-gpu-visible",
    )
    assert "NVIDIA_VISIBLE_DEVICES hides" in hidden.what
    assert "no-gpu-visible" not in find_levels(
        make_machine(tmp_path, gpus=(), environment={"JAX_PLATFORMS": "cpu"})
    )


def test_a_job_without_gpus_is_told_how_to_request_them(tmp_path: Path) -> None:
    assert (
        "--gres=gpu"
        in find_finding(
            make_machine(tmp_path, gpus=(), environment={"SLURM_JOB_ID": "3"}), "no-gpu-visible"
        ).do
    )


@pytest.mark.parametrize(("value", "level"), [("", "blocker"), ("-1", "blocker"), ("0", None)])
def test_hidden_gpus(tmp_path: Path, value: str, level: str | None) -> None:
    assert (
        find_levels(make_machine(tmp_path, environment={"CUDA_VISIBLE_DEVICES": value})).get(
            "gpus-hidden"
        )
        == level
    )


def test_missing_driver_capabilities_are_reported(tmp_path: Path) -> None:
    assert "driver-capabilities" not in find_levels(make_machine(tmp_path)), "this is no container"
    write_files(tmp_path, **{".dockerenv": ""})
    assert find_levels(make_machine(tmp_path))["driver-capabilities"] == "warning"
    assert (
        "lacks"
        in find_finding(
            make_machine(tmp_path, environment={"NVIDIA_DRIVER_CAPABILITIES": "utility"}),
            "driver-capabilities",
        ).what
    )
    for value in ("all", "compute,utility,video"):
        assert "driver-capabilities" not in find_levels(
            make_machine(tmp_path, environment={"NVIDIA_DRIVER_CAPABILITIES": value})
        )
    write_files(tmp_path, **{"usr__lib__x86_64-linux-gnu__libcuda.so.1": ""})
    assert "driver-capabilities" not in find_levels(make_machine(tmp_path)), (
        "it has come by another way"
    )
    examined = make_machine(tmp_path)
    (tmp_path / "dev/nvidia-uvm").unlink()
    assert find_levels(examined)["no-uvm"] == "blocker"


@pytest.mark.parametrize("version", [1, 2])
def test_memory_and_cores(tmp_path: Path, version: int) -> None:
    two: dict[str, Any] = {"gpus": [H100] * 2, "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
    first = make_machine(tmp_path, **two)
    if version == 2:
        write_files(
            tmp_path,
            proc__self__cgroup="0::/job/step\n",
            **{
                "sys__fs__cgroup__job__memory.max": f"{16 * GIB}\n",
                "sys__fs__cgroup__job__step__cpu.max": "400000 100000\n",
            },
        )
        write_files(tmp_path, **{"sys__fs__cgroup__memory.max": "max\n"})
    else:
        write_files(
            tmp_path,
            proc__self__cgroup="5:cpu,cpuacct:/\n4:memory:/docker/1\n",
            **{"sys__fs__cgroup__memory__memory.limit_in_bytes": f"{16 * GIB}\n"},
        )
        write_files(
            tmp_path,
            **{
                "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "400000\n",
                "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n",
            },
        )
    assert find_levels(first) == {
        "host-memory": "warning",
        "few-cores": "warning",
        "cpu-quota": "note",
    }
    assert re.findall(r"\d+ G\w+", find_finding(first, "host-memory").what) == [
        "16 GiB",
        "2 GPU",
        "32 GiB",
    ]
    assert find_finding(first, "few-cores").what.startswith("4 core(s) for 2")
    assert "128" in find_finding(first, "cpu-quota").what


def test_an_unlimited_cgroup_is_not_a_limit(tmp_path: Path) -> None:
    examined = make_machine(tmp_path, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    write_files(
        tmp_path,
        **{
            "sys__fs__cgroup__memory__memory.limit_in_bytes": "9223372036854771712",
            "sys__fs__cgroup__cpu.max": "max 100000",
        },
    )
    assert find_levels(examined) == {}
    write_files(
        tmp_path, proc__meminfo="MemTotal:  1000 kB\n", proc__self__status="Cpus_allowed_list:\t3\n"
    )
    assert set(find_levels(examined)) == {"host-memory", "few-cores"}
    assert find_finding(examined, "few-cores").what.startswith("1 core(s)")


def test_each_process_needs_cores_for_its_own_gpus_only(tmp_path: Path) -> None:
    examined = make_machine(tmp_path, environment={"SLURM_STEP_TASKS_PER_NODE": "8"})
    write_files(tmp_path, proc__self__status="Cpus_allowed_list:\t8-15\n")
    assert "few-cores" not in find_levels(examined)


def test_a_read_only_root(tmp_path: Path) -> None:
    examined = make_machine(tmp_path)
    write_files(
        tmp_path, proc__mounts="overlay / overlay ro,relatime 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
    )
    assert find_levels(examined)["read-only-root"] == "note"


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
def test_proxies_for_local_hosts_are_reported(
    tmp_path: Path, environment: dict[str, str], level: str | None
) -> None:
    examined = make_machine(tmp_path, environment=environment)
    assert find_levels(examined).get("proxy-for-local") == level
    if level:
        assert "pa55" not in str(find_finding(examined, "proxy-for-local"))
