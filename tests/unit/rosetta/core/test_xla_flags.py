from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from rosetta.core import xla_flags
from tests.support import errors, required_modules

if TYPE_CHECKING:
    from pathlib import Path

# Flags that take a number or a text -> a valid value.
NUMBERS = {
    "xla_gpu_graph_level": "0",
    "xla_gpu_redzone_scratch_max_megabytes": "1",
    "xla_gpu_graph_eviction_timeout_seconds": "1",
    "xla_gpu_graph_num_runs_to_instantiate": "1",
    "xla_gpu_max_mlir_kernels": "1",
    "xla_gpu_skip_mlir_kernels": "1",
    "xla_gpu_triton_fusion_level": "1",
    "xla_gpu_asm_extra_flags": "",
    "xla_gpu_enable_custom_fusions_re": "",
}
SHORT_LIVED = "xla_gpu_experimental_enable_nvshmem"  # an old jaxlib does not have it yet


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--xla_gpu_graph_level=0", ["--xla_gpu_enable_command_buffer="]),
        ("--xla_gpu_graph_level=3", []),
        ("--set_xla_gpu_enable_cudnn_fmha=False", ["--xla_gpu_enable_cudnn_fmha=false"]),
        ("--xla_gpu_enable_cudnn_fmha=True", ["--xla_gpu_enable_cudnn_fmha=true"]),
        ("--xla_gpu_simplify_all_fp_conversions", []),
        ("--xla_gpu_enable_async_all_gather=true", []),
        (
            "--xla_gpu_enable_address_computation_fusion=false",
            ["--xla_gpu_enable_dynamic_slice_fusion=false"],
        ),
        (
            "--xla_gpu_enable_pipelined_collectives=false",
            [f"--{name}=false" for name in xla_flags.PIPELINED_FLAGS],
        ),
        (
            "--xla_gpu_experimental_autotune_cache_mode=1",
            ["--xla_gpu_experimental_autotune_cache_mode=AUTOTUNE_CACHE_MODE_UPDATE"],
        ),
        ("--xla_gpu_enable_split_k_autotuning=false", []),
    ],
)
def test_an_old_flag_is_replaced_with_a_notice(old: str, new: list[str]) -> None:
    flags, notices = xla_flags.update_flags(old)
    assert flags == new
    assert len(notices) == 1
    assert notices[0].startswith(f"{old} of XLA_FLAGS: ")


@pytest.mark.parametrize(
    ("version", "flag", "flags"),
    [
        ("0.4.26", "--xla_gpu_graph_level=0", ["--xla_gpu_graph_level=0"]),
        (
            "0.4.26",
            "--xla_gpu_enable_async_all_gather=true",
            ["--xla_gpu_enable_async_all_gather=true"],
        ),
        (
            "0.4.26",
            "--xla_gpu_enable_address_computation_fusion=false",
            ["--xla_gpu_enable_address_computation_fusion=false"],
        ),
        (
            "0.4.26",
            "--xla_gpu_enable_pipelined_collectives=false",
            ["--xla_gpu_enable_pipelined_collectives=false"],
        ),
        (
            "0.10.2",
            "--xla_gpu_enable_pipelined_all_gather=true",
            ["--xla_gpu_enable_pipelined_all_gather=true"],
        ),
        (
            "0.12.0.1",
            "--xla_gpu_enable_pipelined_all_gather=true",
            ["--xla_gpu_pipeline_all_gather=on"],
        ),
        ("0.12.0.1", "--xla_gpu_enable_pipelined_all_reduce", ["--xla_gpu_pipeline_all_reduce=on"]),
        (
            "0.12.0.1",
            "--xla_gpu_enable_pipelined_all_reduce=maybe",
            ["--xla_gpu_enable_pipelined_all_reduce=maybe"],
        ),
        (
            "0.12.0.1",
            "--xla_gpu_enable_pipelined_collectives=false",
            [
                f"--xla_gpu_pipeline_{collective}=default"
                for collective in ("all_gather", "all_reduce", "reduce_scatter")
            ],
        ),
        (
            "0.10.2",
            "--xla_gpu_enable_llvm_module_compilation_parallelism=true",
            ["--xla_gpu_enable_llvm_module_compilation_parallelism=true"],
        ),
        ("0.12.0.1", "--xla_gpu_enable_llvm_module_compilation_parallelism=true", []),
    ],
)
def test_a_flag_is_only_replaced_if_the_jaxlib_lacks_it(
    version: str, flag: str, flags: list[str]
) -> None:
    updated, notices = xla_flags.update_flags(flag, version)
    assert updated == flags
    assert len(notices) == (flags != [flag])


def test_current_flags_are_unchanged() -> None:
    text = "--xla_gpu_enable_triton_gemm=false\n\t--xla_gpu_enable_command_buffer=''  --xla_dump_to='/a b' --xla_gpu_autotune_level=0"
    assert xla_flags.update_flags(text) == (
        [
            "--xla_gpu_enable_triton_gemm=false",
            "--xla_gpu_enable_command_buffer=",
            "--xla_dump_to=/a b",
            "--xla_gpu_autotune_level=0",
        ],
        (),
    )


def test_a_value_with_a_space_is_quoted_again() -> None:
    text = "--xla_dump_to='/a b' --xla_gpu_autotune_level=0"
    assert xla_flags.join_flags(xla_flags.split_flags(text)) == text
    assert xla_flags.join_flags(["--no value"]) == "--no value"


def test_an_open_quote_is_one_line() -> None:
    with errors.expect_user_error(
        errors.INVALID, where="XLA_FLAGS=--xla_dump_to='/a", value="--xla_dump_to='/a"
    ):
        xla_flags.update_flags("--xla_dump_to='/a")


@pytest.mark.parametrize(
    ("text", "word", "remedy"),
    [
        ("xla_gpu_autotune_level=0 --xla_x=true", "xla_gpu_autotune_level=0", "--xla_gpu_autotune"),
        ("--xla_x=1 -xla_y=2", "-xla_y=2", "--xla_y=2"),
        ("garbage --xla_x=1", "garbage", "two dashes"),
        ("--xla_x 1", "1", "two dashes"),
        ("''", "", "two dashes"),
        ("/nowhere/flags.txt", "/nowhere/flags.txt", "two dashes"),
    ],
)
@pytest.mark.parametrize("name", ["XLA_FLAGS", "BASE_XLA_FLAGS"])
def test_a_word_that_is_not_a_flag(text: str, word: str, remedy: str, name: str) -> None:
    """XLA ignores it and everything after it."""
    for read in (
        xla_flags.split_flags,
        lambda text, name: xla_flags.update_flags(text, where=name),
    ):
        with errors.expect_user_error(
            errors.INVALID, where=name, value=word, names=word, remedy=remedy
        ):
            read(text, name)


def test_a_file_of_flags(tmp_path: Path) -> None:
    """XLA takes the path of a file, too."""
    file = tmp_path / "flags"
    file.write_text("--xla_a=1\n--xla_b='1 2'\n")
    assert xla_flags.split_flags(str(file)) == ["--xla_a=1", "--xla_b=1 2"]
    file.write_text("--xla_a=1\nxla_b=2\n")
    with errors.expect_user_error(errors.INVALID, where="XLA_FLAGS", value="xla_b=2"):
        xla_flags.split_flags(str(file))
    file.write_bytes(b"\xff")
    with errors.expect_user_error(errors.INVALID, where=f"XLA_FLAGS={file}"):
        xla_flags.split_flags(str(file))


def test_the_last_value_counts() -> None:
    flags = ["--a=1", "--b", "--a=2"]
    assert [xla_flags.find_flag_value(flags, name) for name in "abc"] == ["2", "true", None]


def test_truth_values_are_written_as_xla_reads_them() -> None:
    assert xla_flags.format_flags({"a": True, "b": False, "c": 51200, "d": ""}) == [
        "--a=true",
        "--b=false",
        "--c=51200",
        "--d=",
    ]


def test_without_jax_the_check_passes() -> None:
    xla_flags.check_flags_known(["--xla_never"], "/nowhere/python")


class TestWithJax:
    @pytest.fixture(autouse=True)
    def jax(self) -> None:
        required_modules.need_modules("jax")

    def test_an_unknown_flag_is_one_line(self) -> None:
        with errors.expect_user_error(
            errors.INVALID,
            where="XLA_FLAGS",
            names="--xla_gpu_enable_dynamic_slice_fusio=false",
            remedy="--xla_gpu_enable_dynamic_slice_fusion",
        ):
            xla_flags.check_flags_known(
                ["--xla_gpu_autotune_level=0", "--xla_gpu_enable_dynamic_slice_fusio=false"],
                sys.executable,
            )

    def test_a_bad_value_is_one_line(self) -> None:
        with errors.expect_user_error(
            errors.INVALID, where="XLA_FLAGS", names=("'maybe'", "xla_gpu_enable_cudnn_fmha")
        ):
            xla_flags.check_flags_known(["--xla_gpu_enable_cudnn_fmha=maybe"], sys.executable)

    def test_xla_takes_a_value_with_a_space(self, tmp_path: Path) -> None:
        xla_flags.check_flags_known([f"--xla_dump_to={tmp_path}/a b"], sys.executable)

    def test_every_replacement_is_known_to_xla(self) -> None:
        text = " ".join(
            f"--{name}=true"
            for name in (*xla_flags.LAST_JAXLIB_WITH_FLAG, *xla_flags.PIPELINED_FLAGS)
            if name not in (*NUMBERS, SHORT_LIVED)
        )
        flags, _ = xla_flags.update_flags(
            f"{text} --xla_gpu_graph_level=0", xla_flags.find_jaxlib_version()
        )
        assert flags
        xla_flags.check_flags_known(flags, sys.executable)

    def test_the_table_of_removed_flags_agrees_with_xla(self) -> None:
        """A flag is unchanged if the installed XLA takes it, and only then."""
        version = xla_flags.find_jaxlib_version()
        accepted = [
            flag
            for name in xla_flags.LAST_JAXLIB_WITH_FLAG
            if (flag := f"--{name}={NUMBERS.get(name, 'true')}")
            and xla_flags.update_flags(flag, version)[0] == [flag]
        ]
        removed = [
            name
            for name in xla_flags.LAST_JAXLIB_WITH_FLAG
            if f"--{name}={NUMBERS.get(name, 'true')}" not in accepted
        ]
        xla_flags.check_flags_known(
            [flag for flag in accepted if SHORT_LIVED not in flag], sys.executable
        )
        for name in removed[:: max(1, len(removed) // 4)]:
            assert xla_flags.find_refused_flag(
                [f"--{name}={NUMBERS.get(name, 'true')}"], sys.executable
            )
