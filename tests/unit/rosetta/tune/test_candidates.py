from __future__ import annotations

import pytest

from rosetta.core.run_description import Run
from rosetta.presets import preset_run
from rosetta.tune import candidates
from tests.support import errors
from tests.support.resolved_presets import NO_SITE, resolve_described


def run(preset: str, gpus: int = 8, **settings: str) -> Run:
    return preset_run.describe_run(
        preset,
        accelerator="h100",
        settings=settings,
        nodes=1,
        gpus_per_node=gpus,
        environment={},
        site=NO_SITE,
    )


@pytest.mark.parametrize(
    ("described", "names"),
    [
        (run("t5x-small", 1), ["batch", "command-buffers", "no-command-buffers"]),
        (
            run("t5x-small"),
            ["batch", "command-buffers", "no-command-buffers", "user-buffers", "combine"],
        ),
        (
            run("t5x-small", SCAN_LAYERS="1", TP_SIZE="2"),
            [
                "batch",
                "command-buffers",
                "no-command-buffers",
                "user-buffers",
                "pipelined-collectives",
                "double-buffering",
                "windowed-einsum",
                "combine",
            ],
        ),
        (
            run("t5x-small", NUM_MICROBATCHES="4"),
            [
                "batch",
                "command-buffers",
                "no-command-buffers",
                "user-buffers",
                "pipelined-collectives",
                "double-buffering",
                "combine",
            ],
        ),
        (
            run("gpt-5b"),
            [
                "batch",
                "command-buffers",
                "no-command-buffers",
                "user-buffers",
                "pipelined-collectives",
                "double-buffering",
                "combine",
            ],
        ),
        (
            run("gpt-5b", USE_REPEATED_LAYER="0"),
            ["batch", "command-buffers", "no-command-buffers", "user-buffers", "combine"],
        ),
        (
            run("gpt-5b", USE_REPEATED_LAYER="0", NUM_MICROBATCHES="4"),
            [
                "batch",
                "command-buffers",
                "no-command-buffers",
                "user-buffers",
                "pipelined-collectives",
                "double-buffering",
                "combine",
            ],
        ),
        (
            run("glam-64b-64e"),
            [
                "batch",
                "command-buffers",
                "no-command-buffers",
                "user-buffers",
                "pipelined-collectives",
                "double-buffering",
                "windowed-einsum",
                "combine",
            ],
        ),
    ],
)
def test_default_candidates(described: Run, names: list[str]) -> None:
    assert candidates.choose_default_candidates(described, on_cpu=False) == names
    on_cpu = candidates.choose_default_candidates(described, on_cpu=True)
    assert on_cpu == ["batch"], "the switches are of cards"


def test_active_switches_are_not_tried() -> None:
    settings = resolve_described("t5x-small", ROSETTA_WITH="user-buffers", combine="layers")
    assert candidates.drop_active_candidates(
        ["batch", "user-buffers", "combine", "command-buffers", "batch"], settings
    ) == ["batch", "command-buffers"]


def test_unknown_candidates_are_refused() -> None:
    assert candidates.parse_candidates("batch, combine") == ["batch", "combine"]
    with errors.expect_user_error(errors.UNKNOWN, where="--try", value="fast"):
        candidates.parse_candidates("fast")
