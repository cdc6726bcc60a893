from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.fake_machine import (
    OPEN,
    PROPRIETARY,
    find_finding,
    find_levels,
    make_machine,
    write_files,
)

TWO_NODES = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1"}


def with_rdma(root: Path, state: str = "4: ACTIVE") -> None:
    write_files(
        root,
        sys__class__infiniband__mlx5_0__ports__1__state="4: ACTIVE\n",
        sys__class__infiniband__mlx5_1__ports__1__state=f"{state}\n",
    )
    write_files(root, dev__infiniband__uverbs0="")


def test_rdma_without_peermem(tmp_path: Path) -> None:
    with_rdma(tmp_path)
    found = find_finding(
        make_machine(tmp_path, version=PROPRIETARY, environment=TWO_NODES), "no-gpudirect"
    )
    assert found.level == "warning"
    assert "modprobe nvidia-peermem" in found.do
    assert find_levels(make_machine(tmp_path, version=PROPRIETARY))["no-gpudirect"] == "note", (
        "on one node it is not used"
    )
    assert "no-gpudirect" not in find_levels(
        make_machine(tmp_path, version=OPEN, environment=TWO_NODES)
    ), "the open modules have DMA-BUF"
    write_files(tmp_path, sys__module__nvidia_peermem__refcnt="0")
    assert "no-gpudirect" not in find_levels(
        make_machine(tmp_path, version=PROPRIETARY, environment=TWO_NODES)
    )


def test_rdma_devices_hidden_from_a_container(tmp_path: Path) -> None:
    write_files(tmp_path, sys__class__infiniband__mlx5_0__ports__1__state="4: ACTIVE\n")
    assert (
        "/dev/infiniband"
        in find_finding(make_machine(tmp_path, environment=TWO_NODES), "rdma-devices-hidden").do
    )


@pytest.mark.parametrize(("state", "level"), [("1: DOWN", "note"), ("4: ACTIVE", None)])
def test_inactive_ports(tmp_path: Path, state: str, level: str | None) -> None:
    with_rdma(tmp_path, state)
    examined = make_machine(tmp_path, environment=TWO_NODES)
    assert find_levels(examined).get("rdma-port-down") == level
    if level:
        assert find_finding(examined, "rdma-port-down").what == "not active: mlx5_1 port 1"


def test_rdma_switched_off(tmp_path: Path) -> None:
    with_rdma(tmp_path)
    assert (
        find_levels(make_machine(tmp_path, environment={**TWO_NODES, "NCCL_IB_DISABLE": "1"}))[
            "rdma-disabled"
        ]
        == "warning"
    )


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", None),
        ("NCCL_SOCKET_IFNAME", "=eth", "blocker"),
        ("NCCL_SOCKET_IFNAME", "=eth0", None),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", None),
        ("NCCL_SOCKET_IFNAME", "ib0,ens1", "blocker"),
        ("NCCL_SOCKET_IFNAME", "\x1b[2J\n", "blocker"),
        ("NCCL_IB_HCA", "mlx5_0:1,mlx5_7", None),
        ("NCCL_IB_HCA", "=mlx5", "warning"),
    ],
)
def test_variables_that_select_devices(
    tmp_path: Path, name: str, value: str, level: str | None
) -> None:
    with_rdma(tmp_path)
    examined = make_machine(tmp_path, environment={**TWO_NODES, name: value})
    assert find_levels(examined).get("nccl-names-nothing") == level
    if level:
        assert find_finding(examined, "nccl-names-nothing").where == name


def with_efa(root: Path) -> None:
    write_files(root, **{"sys__bus__pci__drivers__efa__0000:00:1d.0__device": "0xefa2\n"})


@pytest.mark.parametrize(
    ("environment", "libraries", "level"),
    [
        ({}, [], "warning"),
        ({}, ["opt/x/libnccl-net.so"], "warning"),
        ({}, ["opt/x/libnccl-net.so", "cached"], None),
        ({"LD_LIBRARY_PATH": ":/opt/x:"}, ["opt/x/libnccl-net.so"], None),
        ({"NCCL_NET_PLUGIN": "none"}, [], None),
        ({"NCCL_NET_PLUGIN": "ofi"}, ["opt/x/libnccl-net.so", "cached"], "warning"),
        ({"NCCL_NET_PLUGIN": "ofi"}, ["opt/x/libnccl-net-ofi.so", "cached"], None),
        ({"NCCL_NET_PLUGIN": "/opt/x/n.so"}, ["opt/x/n.so"], None),
        ({"NCCL_NET_PLUGIN": "/opt/x/n.so"}, [], "warning"),
    ],
)
def test_efa_needs_the_plugin_of_nccl(
    tmp_path: Path, environment: dict[str, str], libraries: list[str], level: str | None
) -> None:
    with_efa(tmp_path)
    write_files(tmp_path, **{name.replace("/", "__"): "" for name in libraries if "/" in name})
    if "cached" in libraries:
        write_loader_cache(tmp_path, f"/{libraries[0]}")
    # Folders of LD_LIBRARY_PATH are below the root of the machine, too.
    examined = make_machine(tmp_path, environment={**TWO_NODES, **environment})
    assert find_levels(examined).get("net-plugin-missing") == level
    one_node = make_machine(tmp_path, environment=environment)
    assert find_levels(one_node).get("net-plugin-missing") == (level and "note")


def write_loader_cache(root: Path, path: str) -> None:
    """Compile this library, and let ldconfig write the loader's cache of the machine."""
    compiler, ldconfig = shutil.which("gcc"), shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if not compiler or not ldconfig:
        pytest.skip("NOT CHECKED: needs gcc and ldconfig")
    library = root / path.lstrip("/")
    soname = f"-Wl,-soname,{library.name}"
    command = [compiler, "-shared", soname, "-o", str(library), "-x", "c", "/dev/null"]
    subprocess.run(command, check=True)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.conf").write_text(f"{Path(path).parent}\n")
    subprocess.run([ldconfig, "-r", str(root)], check=True)


def test_a_plugin_without_efa_is_not_needed(tmp_path: Path) -> None:
    with_rdma(tmp_path)
    examined = make_machine(tmp_path, environment=TWO_NODES)
    assert "net-plugin-missing" not in find_levels(examined)
