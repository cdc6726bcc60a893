from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.core import gpus
from rosetta.core.gpu_query import DetectedGpu
from rosetta.presets import preset_files, resolution, schema
from tests.support import errors, resolved_presets
from tests.support.resolved_presets import NO_SITE, resolve_settings


@pytest.mark.parametrize("name", resolved_presets.GPUS)
def test_a_gpu_is_known_by_its_name(name: str) -> None:
    assert resolution.find_accelerator([resolved_presets.GPUS[name]]) == name


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        (DetectedGpu("NVIDIA H800", (9, 0)), "h100"),
        (DetectedGpu("NVIDIA GB200", (10, 0)), "gb200"),
        (DetectedGpu("NVIDIA T4", (7, 5)), None),
        (DetectedGpu("?", (0, 0)), None),
    ],
)
def test_an_unknown_gpu_is_matched_by_its_capability(gpu: DetectedGpu, name: str | None) -> None:
    assert resolution.find_accelerator([gpu]) == name


def test_no_gpu_has_no_accelerator() -> None:
    assert resolution.find_accelerator([]) is None


def test_a_gpu_takes_the_values_of_its_base(tmp_path: Path) -> None:
    mine = resolved_presets.write_preset(
        tmp_path, "extends: t5x-large\naccelerators:\n  h100: {batch: {per_gpu: 5}}\n"
    )
    assert resolve_settings(mine, "h100-nvl").get("batch.per_gpu") == 5
    assert resolve_settings(mine, "H100-NVL").get("batch.per_gpu") == 5
    assert resolve_settings(mine, "b200").get("batch.per_gpu") == 32


def test_the_usual_node_of_a_gpu_is_the_tables() -> None:
    found = {
        name: resolve_settings("t5x-large", name).values["gpus_per_node"] for name in gpus.GPUS
    }
    assert {name for name, each in found.items() if each.value != 8} == {"gh200", "gb200", "gb300"}
    assert (found["gb200"].value, found["gb200"].origin) == (4, "core/gpus.py: gb200")
    assert found["h100"].origin.startswith("presets/common.yaml:")


def test_higher_layers_override_lower_ones(tmp_path: Path) -> None:
    path = "xla_flags.xla_gpu_all_reduce_combine_threshold_bytes"
    mine = resolved_presets.write_preset(
        tmp_path,
        "extends: gpt-126m\nxla_flags:\n  xla_gpu_all_reduce_combine_threshold_bytes: 3\naccelerators:\n  h100:\n    xla_flags: {xla_gpu_all_reduce_combine_threshold_bytes: 4}\n",
    )
    site = preset_files.Layer(
        "site",
        {path: schema.Value(5, "site.yaml:1")},
        {"h100": {path: schema.Value(6, "site.yaml:2")}},
    )
    around, typed = (
        {path: schema.Value("7", "XLA_FLAGS")},
        {path: schema.Value("8", "command line")},
    )
    found = resolution.resolve_preset(
        mine, accelerator="h100", environment=around, command_line=typed, site=site
    ).values[path]
    assert (found.value, found.origin) == ("8", "command line")
    assert [value for _, value in found.overrode] == ["7", 6, 5, 4, 3, 33554432, 51200]
    assert [place.rpartition("/")[2].partition(":")[0] for place, _ in found.overrode] == [
        "XLA_FLAGS",
        "site.yaml",
        "site.yaml",
        "mine.yaml",
        "mine.yaml",
        "pax.yaml",
        "pax.yaml",
    ]


def test_origins_name_the_line() -> None:
    found = resolve_settings("gpt-5b").values["nodes"]
    file, _, line = found.origin.partition(":")
    assert file == "presets/pax.yaml"
    assert (
        "nodes: {value: 32"
        in (preset_files.PRESET_FOLDER / "pax.yaml").read_text().splitlines()[int(line) - 1]
    )


def test_only_hopper_has_one_connection() -> None:
    name = "env.CUDA_DEVICE_MAX_CONNECTIONS"
    with_one = {gpu for gpu in gpus.GPUS if resolve_settings("gpt-5b", gpu).get(name) == "1"}
    assert with_one == {"h100", "h100-pcie", "h100-nvl", "h200", "h200-nvl", "gh200"}


def test_null_removes_the_values_of_lower_layers(tmp_path: Path) -> None:
    mine = resolved_presets.write_preset(
        tmp_path, "extends: gpt-5b\nenv:\n  XLA_PYTHON_CLIENT_MEM_FRACTION: null\n"
    )
    assert "env.XLA_PYTHON_CLIENT_MEM_FRACTION" not in resolve_settings(mine).values


def test_xla_fp8_overrides_the_model_and_its_switches(tmp_path: Path) -> None:
    mine = resolved_presets.write_preset(
        tmp_path,
        "extends: gpt-5b\nswitches: [pipelined-collectives]\nxla_flags: {xla_gpu_enable_triton_gemm: true}\n",
    )
    plain, fp8 = (
        resolve_settings(mine).group("xla_flags"),
        resolve_settings(mine, precision="fp8-xla").group("xla_flags"),
    )
    names = (
        "xla_gpu_enable_triton_gemm",
        "xla_gpu_enable_pipelined_all_gather",
        "xla_gpu_enable_pipelined_all_reduce",
        "xla_gpu_enable_pipelined_reduce_scatter",
    )
    assert [plain[name] for name in names] == [True] * 4
    assert [fp8[name] for name in names] == [False] * 4


def test_values_that_do_not_fit_a_version_are_left_out_and_reported() -> None:
    triton = "xla_flags.xla_gpu_enable_triton_gemm"
    assert (
        triton in resolve_settings("t5x-large", precision="fp8-xla", versions=lambda _: None).values
    )
    assert (
        triton
        in resolve_settings("t5x-large", precision="fp8-xla", versions=lambda _: "0.12.0.1").values
    )
    ended = resolve_settings("t5x-large", precision="fp8-xla", versions=lambda _: "0.13")
    assert triton not in ended.values
    assert [line.partition(": ")[2] for line in ended.left_out] == [
        f"{triton} is left out: not needed since jaxlib 0.13, and 0.13 is installed"
    ]
    with_switch = {"switches": schema.Value(["deterministic"], "command line")}
    old = resolution.resolve_preset(
        "t5x-large",
        accelerator=None,
        environment={},
        command_line=with_switch,
        site=NO_SITE,
        versions=lambda _: "0.4.26",
    )
    assert "xla_flags.xla_gpu_exclude_nondeterministic_ops" not in old.values
    assert old.left_out[0].endswith(
        "xla_flags.xla_gpu_exclude_nondeterministic_ops is left out: needs jaxlib 0.4.31, and 0.4.26 is installed"
    )


def test_switches_add_up_and_null_removes_them(tmp_path: Path) -> None:
    mine = resolved_presets.write_preset(tmp_path, "extends: gpt-5b\nswitches: [pgle]\n")
    more = {"switches": schema.Value(["deterministic", "pgle"], "ROSETTA_WITH")}
    found = resolution.resolve_preset(
        mine, accelerator=None, environment=more, command_line={}, site=NO_SITE
    )
    assert found.get("switches") == ["pgle", "deterministic"]
    assert {"env.JAX_ENABLE_PGLE", "xla_flags.xla_gpu_deterministic_ops"} <= found.values.keys()
    none = resolution.resolve_preset(
        mine,
        accelerator=None,
        environment=more,
        command_line={},
        site=preset_files.Layer("site", {"switches": schema.Value(None, "site.yaml:1")}),
    )
    assert none.get("switches") == ["deterministic", "pgle"]
    off = resolution.resolve_preset(
        mine,
        accelerator=None,
        environment={},
        command_line={},
        site=preset_files.Layer("site", {"switches": schema.Value(None, "site.yaml:1")}),
    )
    assert (off.get("switches"), off.get("env.JAX_ENABLE_PGLE")) == (None, None)


def test_the_cache_folder_is_filled_in() -> None:
    asked = {"switches": schema.Value(["autotune-cache", "compilation-cache"], "command line")}
    with errors.expect_user_error(
        errors.MISSING, where="presets/switches.yaml:", names="`cache`", remedy="cache: DIR"
    ):
        resolution.resolve_preset(
            "gpt-5b", accelerator=None, environment={}, command_line=asked, site=NO_SITE
        )
    found = resolution.resolve_preset(
        "gpt-5b",
        accelerator=None,
        environment={},
        command_line={**asked, "cache": schema.Value("/shared/$(x) y", "command line")},
        site=NO_SITE,
    )
    assert (
        found.get("xla_flags.xla_gpu_per_fusion_autotune_cache_dir") == "/shared/$(x) y/autotuned"
    )
    assert found.get("env.JAX_COMPILATION_CACHE_DIR") == "/shared/$(x) y/compiled"


def test_unknown_switches_and_gpus_are_refused() -> None:
    with errors.expect_user_error(
        errors.UNKNOWN, where="ROSETTA_WITH", value="fast", remedy="pgle"
    ):
        resolution.resolve_preset(
            "gpt-5b",
            accelerator=None,
            environment={"switches": schema.Value(["fast"], "ROSETTA_WITH")},
            command_line={},
            site=NO_SITE,
        )
    with errors.expect_user_error(
        errors.UNKNOWN, where="--accelerator", value="p100", remedy="a100"
    ):
        resolve_settings("gpt-5b", "p100")


@pytest.mark.parametrize("name", resolved_presets.MODELS)
@pytest.mark.parametrize("accelerator", [None, *resolved_presets.DISTINCT_GPUS])
def test_every_preset_resolves_for_every_kind_of_gpu(name: str, accelerator: str | None) -> None:
    found = resolve_settings(name, accelerator)
    assert {"nodes", "gpus_per_node", "precision", "batch.per_gpu", "runs"} <= found.values.keys()
