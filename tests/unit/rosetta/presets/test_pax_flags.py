from __future__ import annotations

import pytest

from rosetta.presets import launch_flags


@pytest.mark.parametrize(
    ("config", "threshold"),
    [
        ("Pile126M", 33554432),
        ("Lambada126M", 33554432),
        ("Synthetic126M", 33554432),
        ("Pile5B", 51200),
        ("GPT175B", 51200),
        ("PileGLaM126M64E", 51200),
        ("PileGLaM64B64E", 51200),
        ("LLaMA70B", 51200),
        ("mine.Own", 51200),
    ],
)
def test_all_reduces_are_combined_as_the_published_runs_did(config: str, threshold: int) -> None:
    assert (
        launch_flags.resolve_default_flags("pax", config, precision="bf16", accelerator="h100")[
            "xla_gpu_all_reduce_combine_threshold_bytes"
        ]
        == threshold
    )
