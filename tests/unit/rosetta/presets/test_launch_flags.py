from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rosetta.core import xla_flags
from rosetta.presets import launch_flags
from tests.support import errors
from tests.support.resolved_presets import GPUS, write_preset


def used(
    environment: dict[str, str] | None = None,
    framework: str = "pax",
    model: str = "Synthetic5B",
    card: str | None = "h100",
    precision: str = "bf16",
    **more: Any,
) -> launch_flags.LaunchFlags:
    cards = [GPUS[card]] if card else []
    return launch_flags.select_launch_flags(
        framework,
        model,
        {"ROSETTA_SITE": "", **(environment or {})},
        cards,
        on_cpu=card is None,
        precision=precision,
        **more,
    )


@pytest.fixture(autouse=True)
def _locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_flags, "find_jaxlib_version", lambda: xla_flags.LOCKED_JAXLIB)


@pytest.mark.parametrize(
    ("framework", "model", "name"),
    [
        ("t5x", "large", "t5x-large"),
        ("t5x", "mine", "t5x"),
        ("pax", "GPT175B", "gpt-175b"),
        ("pax", "rosetta.pax.configs.LLaMA13B", "llama-13b"),
        ("pax", "mine.Own", "pax"),
    ],
)
def test_a_model_has_its_preset(framework: str, model: str, name: str) -> None:
    assert launch_flags.find_preset_for_model(framework, model) == name


def test_the_presets_flags_then_the_users() -> None:
    found = used({"XLA_FLAGS": "--xla_gpu_autotune_level=2 --xla_gpu_enable_triton_gemm=true"})
    assert found.flags[0] == "--xla_gpu_enable_latency_hiding_scheduler=true"
    assert (
        found.flags[-2:]
        == found.user_flags
        == ("--xla_gpu_autotune_level=2", "--xla_gpu_enable_triton_gemm=true")
    )
    assert found.env == {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "JAX_OPTIMIZATION_LEVEL": "O1",
    }
    assert found.lines == ()


def test_base_flags_replace_the_presets_and_all_are_translated() -> None:
    found = used(
        {
            "BASE_XLA_FLAGS": "--xla_gpu_graph_level=0",
            "XLA_FLAGS": "--xla_gpu_enable_async_collectives=true --xla_force_host_platform_device_count=4",
        }
    )
    assert found.flags == (
        "--xla_gpu_enable_command_buffer=",
        "--xla_force_host_platform_device_count=4",
    )
    assert found.user_flags == ("--xla_gpu_enable_command_buffer=",)
    assert found.lines == (
        "--xla_gpu_graph_level=0 of BASE_XLA_FLAGS: replaced by --xla_gpu_enable_command_buffer=",
        (
            "--xla_gpu_enable_async_collectives=true of XLA_FLAGS: "
            "left out, because XLA does not have it any more"
        ),
    )


def test_flags_have_the_names_of_the_installed_jaxlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_flags, "find_jaxlib_version", lambda: "0.4.26")
    assert used({"XLA_FLAGS": "--xla_gpu_graph_level=0"}).flags[-1] == "--xla_gpu_graph_level=0"
    monkeypatch.setattr(xla_flags, "find_jaxlib_version", lambda: "0.12.0.1")
    found = used({"XLA_FLAGS": "--xla_gpu_enable_pipelined_all_reduce=true"}, precision="fp8-xla")
    assert "--xla_gpu_pipeline_all_gather=default" in found.flags, (
        "the preset's own are, too, without a word"
    )
    assert found.flags[-1] == "--xla_gpu_pipeline_all_reduce=on"
    assert [line.partition(":")[0] for line in found.lines] == [
        "--xla_gpu_enable_pipelined_all_reduce=true of XLA_FLAGS",
        "--xla_gpu_pipeline_all_reduce=on conflicts with fp8-xla",
    ]


def test_flags_that_are_applied_already_are_not_added_again() -> None:
    found = used(
        {
            "ROSETTA_PRESET": "given",
            "XLA_FLAGS": "--xla_gpu_autotune_level=2",
            "BASE_XLA_FLAGS": "--xla_gpu_autotune_level=3",
        }
    )
    assert (found.flags, found.env) == (("--xla_gpu_autotune_level=2",), {})


def test_a_preset_by_name_or_file(tmp_path: Path) -> None:
    threshold = "--xla_gpu_all_reduce_combine_threshold_bytes=33554432"
    assert threshold not in used().flags
    assert threshold in used({"ROSETTA_PRESET": "gpt-126m"}).flags
    mine = write_preset(tmp_path, "extends: gpt-5b\nenv: {NCCL_DEBUG: WARN}\n")
    assert used({"ROSETTA_PRESET": mine}).env["NCCL_DEBUG"] == "WARN"
    with errors.expect_user_error(
        errors.CONFLICT, where="ROSETTA_PRESET=t5x-large", names="t5x", remedy="pax"
    ):
        used({"ROSETTA_PRESET": "t5x-large"})


def test_switches_by_variable() -> None:
    assert "--xla_gpu_deterministic_ops=true" in used({"ROSETTA_WITH": "deterministic, pgle"}).flags
    assert used({"ROSETTA_WITH": "pgle"}).env["JAX_ENABLE_PGLE"] == "true"
    with errors.expect_user_error(errors.UNKNOWN, where="ROSETTA_WITH", value="deterministc"):
        used({"ROSETTA_WITH": "deterministc"})


def test_variables_that_are_set_stay_even_if_empty() -> None:
    variables = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "",
        "JAX_OPTIMIZATION_LEVEL": "O0",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
    }
    assert used(variables).env == {}


def test_the_cpu_gets_flags_and_no_variables_of_cuda() -> None:
    found = used(card=None, environment={"ROSETTA_WITH": "deterministic,pgle"})
    assert "--xla_gpu_enable_latency_hiding_scheduler=true" in found.flags
    assert found.env.keys() == {"JAX_ENABLE_PGLE", "JAX_PGLE_PROFILING_RUNS"}


def test_the_site_and_layers(tmp_path: Path) -> None:
    site = write_preset(tmp_path, "combine: layers\nenv: {NCCL_SOCKET_IFNAME: ib0}\n")
    found = used({"ROSETTA_SITE": site}, mesh={"ici": [1, 8, 1], "dcn": [1, 1, 1]}, devices=8)
    assert found.env["NCCL_SOCKET_IFNAME"] == "ib0"
    assert (
        f"--xla_gpu_all_gather_combine_threshold_bytes={2 * (4 * 4096**2 + 2 * 4096 * 16384)}"
        in found.flags
    )


def test_flags_that_conflict_with_fp8_are_reported() -> None:
    assert (
        used({"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=True"}, precision="fp8-xla")
        .lines[-1]
        .startswith("--xla_gpu_enable_triton_gemm=true conflicts with fp8-xla: ")
    )
    assert used({"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=true"}).lines == ()
    assert used(precision="fp8-xla").lines == ()


def test_default_flags_do_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=2")
    assert launch_flags.resolve_default_flags(
        "t5x", "large", precision="bf16", accelerator=None
    ) == {
        "xla_gpu_enable_latency_hiding_scheduler": True,
        "xla_gpu_all_reduce_combine_threshold_bytes": 136314880,
    }
    assert (
        launch_flags.resolve_default_flags("pax", "Pile5B", precision="bf16", accelerator="b200")[
            "xla_gpu_enable_command_buffer"
        ]
        == "FUSION,CUSTOM_CALL"
    )
