from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rosetta.core.variables import lookup
from tests.support.fake_machine import (
    A100,
    H100,
    find_finding,
    find_levels,
    make_machine,
    write_files,
)


@pytest.mark.parametrize("name", ["XLA_FLAGS", "BASE_XLA_FLAGS"])
@pytest.mark.parametrize(
    ("flags", "instead"),
    [
        ("--xla_gpu_simplify_all_fp_conversions=true", []),
        (
            "--xla_gpu_enable_pipelined_collectives=false",
            [
                "--xla_gpu_enable_pipelined_all_gather=false",
                "--xla_gpu_enable_pipelined_all_reduce=false",
                "--xla_gpu_enable_pipelined_reduce_scatter=false",
            ],
        ),
        ("--xla_gpu_graph_level=0", ["--xla_gpu_enable_command_buffer="]),
        ("--set_xla_gpu_enable_cudnn_fmha=False", ["--xla_gpu_enable_cudnn_fmha=false"]),
        ("--set_xla_dump_to=s3cret", ["--xla_dump_to"]),
    ],
)
def test_removed_flags_are_reported(
    tmp_path: Path, name: str, flags: str, instead: list[str]
) -> None:
    found = find_finding(
        make_machine(tmp_path, environment={name: f"--xla_gpu_enable_triton_gemm=false {flags}"}),
        "xla-flag-gone",
    )
    assert (found.level, found.where) == ("warning", name)
    assert [word for word in found.do.split() if word.startswith("--")] == instead


def test_current_flags_are_accepted(tmp_path: Path) -> None:
    asked = list[Sequence[str]]()

    def refused(flags: Sequence[str]) -> str:
        asked.append(flags)
        return "XLA has no flag --xla_misspelt=s3cret"

    text = "--xla_gpu_enable_triton_gemm=false --xla_gpu_graph_level=0 --xla_misspelt=s3cret"
    found = find_finding(
        make_machine(tmp_path, environment={"XLA_FLAGS": text}, explain_refused_flags=refused),
        "xla-flag-refused",
    )
    assert found.what.endswith(" --xla_misspelt")
    assert asked == [
        [
            "--xla_gpu_enable_triton_gemm=false",
            "--xla_gpu_enable_command_buffer=",
            "--xla_misspelt=s3cret",
        ]
    ], "as the scripts would give them"
    value = make_machine(
        tmp_path,
        environment={"XLA_FLAGS": "--a=b"},
        explain_refused_flags=lambda _: "'s3cret' is not a valid value for a",
    )
    assert find_finding(value, "xla-flag-refused").what.endswith(" of a")
    assert "s3cret" not in str(find_finding(value, "xla-flag-refused"))
    asked.clear()
    assert "xla-flag-refused" not in find_levels(
        make_machine(
            tmp_path, environment={"XLA_FLAGS": text}, explain_refused_flags=refused, quick=True
        )
    )
    assert "xla-flag-refused" not in find_levels(
        make_machine(tmp_path, explain_refused_flags=refused)
    )
    assert asked == []


def test_a_quote_that_is_not_closed(tmp_path: Path) -> None:
    found = find_finding(
        make_machine(tmp_path, environment={"XLA_FLAGS": "--xla_dump_to='s3cret"}),
        "xla-flags-quote",
    )
    assert (found.level, found.what) == ("blocker", "a quote is not closed")
    assert "s3cret" not in str(found)


@pytest.mark.parametrize("name", ["XLA_FLAGS", "BASE_XLA_FLAGS"])
@pytest.mark.parametrize("flags", ["xla_s3cret=1 --xla_x=1", "--xla_dump_to s3cret"])
def test_a_word_without_dashes(tmp_path: Path, name: str, flags: str) -> None:
    found = find_finding(make_machine(tmp_path, environment={name: flags}), "xla-flags-word")
    assert (found.level, found.where) == ("blocker", name)
    assert "s3cret" not in str(found)


def test_an_unknown_platform(tmp_path: Path) -> None:
    found = find_finding(
        make_machine(tmp_path, environment={"JAX_PLATFORMS": "cpuu"}), "variable-invalid"
    )
    assert (found.level, found.where) == ("blocker", "JAX_PLATFORMS")
    assert "variable-invalid" not in find_levels(
        make_machine(tmp_path, environment={"JAX_PLATFORMS": "gpu"})
    )


@pytest.mark.parametrize(("value", "level"), [("cpu", "warning"), ("cuda,cpu", None), ("", None)])
def test_the_cpu_on_a_machine_with_gpus(tmp_path: Path, value: str, level: str | None) -> None:
    assert (
        find_levels(make_machine(tmp_path, environment={"JAX_PLATFORMS": value})).get(
            "cpu-on-gpu-machine"
        )
        == level
    )


@pytest.mark.parametrize(
    ("cards", "value", "level"),
    [
        ([H100] * 8, None, "note"),
        ([H100] * 8, "1", None),
        ([H100], None, None),
        ([A100] * 8, None, None),
    ],
)
def test_connections_on_hopper(
    tmp_path: Path, cards: list[tuple[str, str]], value: str | None, level: str | None
) -> None:
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": value} if value else {}
    assert (
        find_levels(make_machine(tmp_path, gpus=cards, environment=environment)).get(
            "connections-hopper"
        )
        == level
    )


def test_visible_devices_name_more_gpus_than_exist(tmp_path: Path) -> None:
    found = find_finding(
        make_machine(tmp_path, gpus=[A100] * 4, environment={"CUDA_VISIBLE_DEVICES": "0,1,9,2"}),
        "visible-devices",
    )
    assert "4 GPUs" in found.what
    assert "first 2:" in found.what


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("0.9", None),
        ("0.99", "warning"),
        ("0", "warning"),
        ("nan", "blocker"),
        ("s3cret", "blocker"),
        ("", None),
    ],
)
def test_the_share_of_memory(tmp_path: Path, value: str, level: str | None) -> None:
    examined = make_machine(tmp_path, environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": value})
    assert find_levels(examined).get("memory-fraction") == level
    if value == "s3cret":
        assert value not in str(find_finding(examined, "memory-fraction"))


@pytest.mark.parametrize(
    ("library", "shadows"),
    [
        ("libcudnn.so.8", True),
        ("libcublasLt.so.12", True),
        ("libnccl.so.2", True),
        ("libcuda.so.1", False),
        ("libstdc++.so.6", False),
    ],
)
def test_cuda_libraries_in_ld_library_path(tmp_path: Path, library: str, shadows: bool) -> None:
    write_files(tmp_path, **{f"opt__cuda__lib64__{library}": ""})
    examined = make_machine(
        tmp_path, environment={"LD_LIBRARY_PATH": "/**:/nowhere::/opt/cuda/lib64"}
    )
    assert ("cuda-shadowed" in find_levels(examined)) == shadows
    if shadows:
        assert "/opt/cuda/lib64 has" in find_finding(examined, "cuda-shadowed").what


SLOW = [variable.name for variable in lookup.TABLE if variable.slow_because]


@pytest.mark.parametrize("name", SLOW)
def test_debugging_variables_are_reported(tmp_path: Path, name: str) -> None:
    assert (
        find_levels(make_machine(tmp_path, environment={name: "1"}))["slow-variable"] == "warning"
    )
    assert "slow-variable" not in find_levels(make_machine(tmp_path, environment={name: "0"}))
