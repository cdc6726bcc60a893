from __future__ import annotations

import pytest

from rosetta.presets import combine_thresholds
from tests.support import errors, resolved_presets

PAX = {"ici": [1, 8, 1], "dcn": [1, 2, 1]}


def test_a_layer_is_split_by_tensor_and_kept_by_fsdp() -> None:
    assert list(combine_thresholds.compute_thresholds(1000, 1, 1).values()) == [4000, 2000, 4000]
    assert list(combine_thresholds.compute_thresholds(1000, 2, 5).values()) == [2000, 1000, 400]


@pytest.mark.parametrize(
    ("name", "model", "parameters"),
    [
        ("t5x-large", "large", 8 * 1024 * 16 * 64 + 3 * 1024 * 2816),
        ("t5x", "xxl", 8 * 4096 * 64 * 64 + 3 * 4096 * 10240),
        ("gpt-126m", "Pile126M", 4 * 768 * 768 + 2 * 768 * 3072),
        ("gpt-175b", "Synthetic175B", 4 * 12288 * 12288 + 2 * 12288 * 49152),
        ("llama-7b", "LLaMA7B", 4 * 4096 * 4096 + 3 * 4096 * 11008),
        ("llama-70b", "LLaMA70B", 2 * 8192 * 128 * (64 + 8) + 3 * 8192 * 28672),
        ("glam-64b-64e", "PileGLaM64B64E", 4 * 8192 * 64 * 128 + 3 * 8192 * 32768),
    ],
)
def test_the_parameters_of_a_layer(name: str, model: str, parameters: int) -> None:
    found = resolved_presets.resolve_settings(name)
    assert (
        combine_thresholds.derive_thresholds(found, model, {"ici": [1, 1, 1], "dcn": [1, 1, 1]}, 1)[
            "xla_gpu_all_reduce_combine_threshold_bytes"
        ]
        == 4 * parameters
    )


def test_meshes_and_switches_split_the_layers() -> None:
    whole = combine_thresholds.derive_thresholds(
        resolved_presets.resolve_settings("gpt-5b"),
        "Pile5B",
        {"ici": [1, 1, 1], "dcn": [1, 1, 1]},
        1,
    )
    split = combine_thresholds.derive_thresholds(
        resolved_presets.resolve_settings("gpt-5b"), "Pile5B", PAX, 16
    )
    name = "xla_gpu_reduce_scatter_combine_threshold_bytes"
    assert split[name] == whole[name] // 16
    plain, sharded = (
        combine_thresholds.derive_thresholds(
            resolved_presets.resolve_described("t5x-large"), "large", {}, 64
        ),
        combine_thresholds.derive_thresholds(
            resolved_presets.resolve_described("t5x-large", FSDP="1", TP_SIZE="2"), "large", {}, 64
        ),
    )
    assert sharded[name] == plain[name] // 2 // 32


@pytest.mark.parametrize("model", ["mine.Big", "mine.Pile5B"])
def test_the_layers_of_a_user_experiment_are_not_known(model: str) -> None:
    with errors.expect_user_error(
        errors.MISSING,
        where="combine: layers",
        names=(model, "MODEL_DIMS"),
        remedy="xla_gpu_all_reduce_combine_threshold_bytes",
    ):
        combine_thresholds.derive_thresholds(
            resolved_presets.resolve_settings("gpt-5b"), model, PAX, 16
        )


def test_a_missing_mesh_is_refused() -> None:
    with errors.expect_user_error(errors.MISSING, where="combine: layers", names="mesh.ici"):
        combine_thresholds.derive_thresholds(
            resolved_presets.resolve_settings("gpt-5b"), "Pile5B", {"dcn": [1, 2, 1]}, 16
        )
