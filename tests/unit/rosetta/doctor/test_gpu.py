from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.core.gpu_query import DetectedGpu
from rosetta.core.system_queries import CommandResult
from tests.support.fake_machine import (
    A100,
    B200,
    GIB,
    H100,
    PROPRIETARY,
    V100,
    find_finding,
    find_levels,
    make_machine,
)


def test_a_healthy_node_has_notes_only(tmp_path: Path) -> None:
    assert find_levels(make_machine(tmp_path)) == {"connections-hopper": "note"}
    assert (
        find_levels(make_machine(tmp_path, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})) == {}
    )
    assert find_levels(make_machine(tmp_path, quick=True)) == {}


def test_no_driver(tmp_path: Path) -> None:
    examined = make_machine(tmp_path, driver="", gpus=())
    assert find_levels(examined) == {"no-driver": "blocker"}
    assert "CUDA 13" in find_finding(examined, "no-driver").what
    assert find_levels(
        make_machine(tmp_path, driver="", gpus=(), environment={"JAX_PLATFORMS": "cpu"})
    ) == {"no-driver": "note"}
    assert find_levels(
        make_machine(
            tmp_path,
            driver="",
            gpus=(),
            record={"accelerator": "cpu"},
            installed={"jax": ["1"], "jaxlib": ["1"]},
        )
    ) == {"no-driver": "note"}


@pytest.mark.parametrize(
    ("driver", "accelerator", "api", "found"),
    [
        ("535.129.03", "cuda13", 12020, "blocker"),
        ("579.99", "cuda13", 12090, "blocker"),
        ("580.82.07", "cuda13", 13000, None),
        ("535.129.03", "cuda13", 13000, None),  # NVIDIA's package for forward compatibility
        ("525.60.13", "cuda12", 12000, None),
        ("515.105.01", "cuda12", 11070, "blocker"),
        ("580.82.07", "cuda12", 13000, None),
    ],
)
@pytest.mark.parametrize("quick", [False, True])
def test_driver_against_cuda(
    tmp_path: Path, driver: str, accelerator: str, api: int, found: str | None, quick: bool
) -> None:
    examined = make_machine(
        tmp_path,
        driver=driver,
        version=PROPRIETARY,
        record={"accelerator": accelerator},
        query_driver_cuda_version=lambda: api,
        quick=quick,
    )
    assert find_levels(examined).get("driver-too-old") == found
    assert examined.driver == driver
    if found and accelerator == "cuda13":
        do = find_finding(examined, "driver-too-old").do
        assert "580 or newer" in do
        assert "cuda12" in do
    elif found:
        assert find_finding(examined, "driver-too-old").do == "install driver 525 or newer"


def test_a_run_on_the_cpu_needs_no_new_driver(tmp_path: Path) -> None:
    examined = make_machine(
        tmp_path,
        driver="470.57.02",
        version=PROPRIETARY,
        record={"accelerator": "cuda13"},
        environment={"JAX_PLATFORMS": "cpu"},
    )
    assert "driver-too-old" not in find_levels(examined)


def test_libcuda_is_loaded_only_if_needed(tmp_path: Path) -> None:
    def never() -> int:
        raise AssertionError

    assert "driver-too-old" not in find_levels(
        make_machine(tmp_path, quick=True, query_driver_cuda_version=never)
    )
    assert "libcuda-missing" not in find_levels(
        make_machine(
            tmp_path, environment={"JAX_PLATFORMS": "cpu"}, query_driver_cuda_version=never
        )
    )
    assert (
        find_levels(make_machine(tmp_path, query_driver_cuda_version=lambda: None))[
            "libcuda-missing"
        ]
        == "blocker"
    )


def test_nvidia_smi_fails_or_is_missing(tmp_path: Path) -> None:
    said = CommandResult(
        18, "Failed to initialize NVML: Driver/library version mismatch\nmore\n", ""
    )
    examined = make_machine(tmp_path, run_command=lambda *_: said)
    assert "version mismatch" in find_finding(examined, "nvidia-smi-fails").what
    assert [each.name for each in examined.gpus] == [H100[0]] * 8, (
        "the driver's files have the names"
    )
    assert (
        find_levels(make_machine(tmp_path, run_command=lambda *_: None))["nvidia-smi-missing"]
        == "warning"
    )
    assert "nvidia-smi-missing" not in find_levels(
        make_machine(tmp_path, run_command=lambda *_: None, quick=True)
    )


@pytest.mark.parametrize(
    "text", ["NVIDIA H100\n", "a, b, c, d, e\n", "No devices were found\n", ""]
)
def test_unexpected_output_of_nvidia_smi(tmp_path: Path, text: str) -> None:
    examined = make_machine(tmp_path, run_command=lambda *_: CommandResult(0, text, ""))
    assert all(each.capability == (0, 0) for each in examined.gpus)
    assert "fp8-without-hardware" not in find_levels(examined)


def test_fp8_on_an_a100(tmp_path: Path) -> None:
    asked = {"ENABLE_FP8": "1"}
    found = find_finding(
        make_machine(tmp_path, gpus=[A100] * 8, environment=asked), "fp8-without-hardware"
    )
    assert (found.level, found.where) == ("blocker", "ENABLE_FP8")
    assert "A100" in found.what
    assert "8.0" in found.what
    assert "fp8-without-hardware" not in find_levels(
        make_machine(tmp_path, gpus=[A100] * 8, environment={"ENABLE_FP8": "0"})
    )
    assert "fp8-without-hardware" not in find_levels(make_machine(tmp_path, environment=asked))
    # A launcher has asked nvidia-smi itself; without it, the quick form knows no capability and says nothing.
    assert "fp8-without-hardware" in find_levels(
        make_machine(
            tmp_path,
            gpus=[A100] * 8,
            environment=asked,
            quick=True,
            given_gpus=[DetectedGpu("A100", (8, 0))],
        )
    )
    assert "fp8-without-hardware" not in find_levels(
        make_machine(tmp_path, gpus=[A100] * 8, environment=asked, quick=True)
    )


def test_transformer_engine(tmp_path: Path) -> None:
    asked = {"ENABLE_TE": "yes"}
    examined = make_machine(
        tmp_path,
        environment=asked,
        record={"accelerator": "cuda13", "transformer_engine_reason": "no wheel"},
    )
    assert "no wheel" in find_finding(examined, "te-missing").what
    has = {**examined.installed, "transformer-engine-jax": ["2.20.2"]}
    assert "te-missing" not in find_levels(make_machine(tmp_path, environment=asked, installed=has))
    assert (
        find_levels(make_machine(tmp_path, environment=asked, installed=has, gpus=[V100]))[
            "te-without-hardware"
        ]
        == "blocker"
    )


def test_a_gpu_that_is_too_old_for_cuda(tmp_path: Path) -> None:
    found = find_finding(make_machine(tmp_path, gpus=[V100]), "card-too-old")
    assert found.level == "blocker"
    assert found.do.endswith(" cuda12")
    assert "card-too-old" not in find_levels(
        make_machine(tmp_path, gpus=[V100], record={"accelerator": "cuda12"})
    )


def test_gpus_that_differ_or_are_in_use(tmp_path: Path) -> None:
    assert find_levels(make_machine(tmp_path, gpus=[A100, H100]))["cards-differ"] == "warning"
    assert "cards-differ" not in find_levels(
        make_machine(tmp_path, gpus=[A100, H100], environment={"CUDA_VISIBLE_DEVICES": "1"})
    )
    assert (
        find_finding(make_machine(tmp_path, gpus=[B200, B200], used=60000), "card-in-use").where
        == "GPU 0, 1"
    )
    assert "card-in-use" not in find_levels(make_machine(tmp_path, used=500))
    assert make_machine(tmp_path, shm=GIB).driver == "580.82.07"
