from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rosetta.core import gpu_query
from rosetta.core.gpu_query import DetectedGpu
from tests.support import errors

H100, A100 = (
    DetectedGpu("NVIDIA H100 80GB HBM3", (9, 0)),
    DetectedGpu("NVIDIA A100-SXM4-80GB", (8, 0)),
)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a fake nvidia-smi, the only one that is found."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 9.0'\necho 'NVIDIA A100-SXM4-80GB, 8.0'\n"
    )
    program.chmod(0o755)
    return program


@pytest.mark.usefixtures("driver")
def test_nvidia_smi_is_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpu_query.detect_gpus({}) == [H100, A100]
    assert gpu_query.detect_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == [A100]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#!/bin/sh\nexit 9\n", []),
        ("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 0\n", []),
        ("#!/bin/sh\necho 'Odd, DetectedGpu, [N/A]'\n", [DetectedGpu("Odd, DetectedGpu", (0, 0))]),
        ("no program", []),
    ],
)
def test_a_driver_that_does_not_answer(
    driver: Path, text: str, expected: list[DetectedGpu]
) -> None:
    driver.write_text(text)
    assert gpu_query.detect_gpus({}) == expected


def test_no_driver(driver: Path) -> None:
    driver.unlink()
    assert gpu_query.detect_gpus({}) == []


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        (None, [H100, A100]),
        ("", []),
        ("-1", []),
        ("1, 0", [A100, H100]),
        ("0,2,1", [H100]),  # as in CUDA: what comes after a wrong one is not seen
        ("GPU-6ad6f,MIG-GPU-1", [H100, H100]),
        ("none", []),
        ("0,\u00b2", [H100]),
        ("9" * 5000, []),
    ],
)
def test_visible_gpus(chosen: str | None, left: list[DetectedGpu]) -> None:
    assert gpu_query.select_visible_gpus([H100, A100], chosen) == left


def test_the_platform_is_the_one_in_the_variables_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The variables of the run count, whatever the environment of this process has."""
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    assert gpu_query.select_jax_platforms([H100], {"JAX_PLATFORMS": "cpu"}) == "cpu"
    assert gpu_query.select_jax_platforms([H100], {"JAX_PLATFORMS": "cuda, cpu"}) == "cuda,cpu"
    assert gpu_query.select_jax_platforms([H100], {"JAX_PLATFORMS": ""}) == "cuda,cpu"
    assert gpu_query.select_jax_platforms([H100], {}) == "cuda,cpu"


@pytest.mark.parametrize("typed", ["cpuu", "CPU", "cuda,typo"])
def test_an_unknown_platform_is_refused_in_a_dry_run_too(typed: str) -> None:
    for found in ([H100], []):
        with errors.expect_user_error(errors.INVALID, where="JAX_PLATFORMS", remedy="cuda"):
            gpu_query.select_jax_platforms_or_error(found, {"JAX_PLATFORMS": typed})


@pytest.mark.parametrize(
    ("hidden", "kind", "facts"),
    [
        (None, errors.MISSING, {"where": "this machine", "names": ("NVIDIA", "GPU")}),
        ("", errors.MISSING, {"where": "CUDA_VISIBLE_DEVICES=", "names": "GPUs"}),
        ("-1", errors.MISSING, {"where": "CUDA_VISIBLE_DEVICES=-1", "names": "GPUs"}),
    ],
)
def test_the_cpu_is_only_used_if_asked_for(
    hidden: str | None, kind: str, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_query, "has_gpu_device_file", lambda: False)
    environment = {} if hidden is None else {"CUDA_VISIBLE_DEVICES": hidden}
    with errors.expect_user_error(kind, **facts):
        gpu_query.select_jax_platforms([], environment)
    monkeypatch.setattr(gpu_query, "has_gpu_device_file", lambda: True)
    assert gpu_query.select_jax_platforms([], {}) == "cuda,cpu", "an image without nvidia-smi"
