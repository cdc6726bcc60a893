"""The candidates of a search: splits, batches, remat and scan that a model and its GPUs allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rosetta.plan import search_space
from rosetta.plan.search_space import PAX, T5X, Candidate, Fixed, Model, Split
from tests.support import errors

T5 = Model(T5X, "small", 77_000_000, True, 8, 512, 1024, 32128, 640, 128, {"heads": 6})
LLAMA = Model(PAX, "Llama", 7_000_000, True, 32, 64, 128, 256, 32, 32, {"heads": 32, "kv": 4})


def list_all(model: Model, gpus: int, per_node: int, **fixed: object) -> list[Candidate]:
    return search_space.list_candidates(model, gpus, per_node, Fixed(**fixed), 64)  # type: ignore[arg-type]


def test_the_splits_of_t5_shard_the_state_over_a_power_of_two() -> None:
    assert search_space.list_splits(T5, 1, 1) == [Split(1, 1, 1)]
    assert search_space.list_splits(T5, 8, 8) == [
        *(Split(8, 1, 1), Split(1, 8, 1)),
        *(Split(4, 1, 2), Split(1, 4, 2)),
    ], "4 and 8 GPUs do not divide 6 heads"
    assert search_space.list_splits(T5, 24, 8, tensor=1) == [Split(24, 1, 1), Split(3, 8, 1)]
    # The devices of a process of 6 GPUs are a block of the mesh with 2 neighbours, not with 4.
    assert search_space.list_splits(T5, 12, 6, tensor=1) == [Split(12, 1, 1), Split(6, 2, 1)]


def test_the_splits_of_pax_fill_a_node_first() -> None:
    splits = search_space.list_splits(LLAMA, 16, 8)
    assert {split.tensor for split in splits} == {1, 2, 4}, "the heads of keys and values are 4"
    assert [split for split in splits if split.tensor == 1] == [
        Split(16 // fsdp, fsdp, 1) for fsdp in (1, 2, 4, 8, 16)
    ]
    assert all(split.data * split.fsdp * split.tensor == 16 for split in splits)
    # Three nodes: over 16 of 24 GPUs, an axis would be two of three nodes.
    fsdp = {split.fsdp for split in search_space.list_splits(LLAMA, 24, 8, tensor=1)}
    assert fsdp == {1, 2, 4, 8, 24}


def test_deep_models_are_only_tried_with_repeated_layers() -> None:
    assert {scanned for _, scanned in search_space.list_layer_choices(T5)} == {False, True}
    deep = replace(LLAMA, layers=96)
    assert search_space.list_layer_choices(deep) == [
        (policy, True) for policy in search_space.PAX_REMAT
    ]


def test_the_batch_is_searched_up_to_the_published_one() -> None:
    candidates = list_all(T5, 8, 8, tensor=1)
    assert {candidate.sequences for candidate in candidates} == {8, 16, 24, 32, 48, 64}
    assert {candidate.microbatches for candidate in candidates} == {1, 2, 4, 8}
    # A batch of one sequence for each part is tried even if it is larger than the published one.
    many = search_space.list_candidates(T5, 8, 8, Fixed(tensor=1), 2)
    assert {candidate.sequences for candidate in many} == {8}


def test_what_is_fixed_is_not_searched() -> None:
    candidates = list_all(
        *(T5, 8, 8),
        fsdp=True,
        remat="full",
        scanned=True,
        microbatches=2,
        sequences=48,
    )
    assert candidates == [
        Candidate(Split(1, 8, 1), "full", True, 3, 2),
        Candidate(Split(1, 4, 2), "full", True, 6, 2),
    ]
    assert {
        (candidate.split.tensor, candidate.rows)
        for candidate in list_all(LLAMA, 8, 8, batch_per_gpu=0.5, microbatches=1)
    } == {(2, 1), (4, 2)}, "a GPU of Pax has a share of a row that its tensor axis shares"
    other = list_all(LLAMA, 1, 1, remat="save_out_proj")
    assert {(candidate.remat, candidate.scanned) for candidate in other} == {
        ("save_out_proj", True)
    }
    deep = list_all(replace(LLAMA, layers=96), 1, 1, scanned=False)
    assert {(candidate.remat, candidate.scanned) for candidate in deep} == {("none", False)}


@pytest.mark.parametrize(
    ("fixed", "facts"),
    [
        ({"tensor": 4}, {"where": "--tp 4", "value": 4, "remedy": ("1", "2")}),
        ({"sequences": 9}, {"where": "--global-batch 9", "value": 9, "remedy": ("4", "8")}),
        ({"batch_per_gpu": 3, "microbatches": 2}, {"where": "--search"}),
        ({"fsdp": True, "tensor": 8}, {"where": "--tp 8"}),
    ],
)
def test_settings_that_no_split_allows_are_refused(
    fixed: dict[str, object], facts: dict[str, object]
) -> None:
    with errors.expect_user_error(errors.INVALID, **facts):  # type: ignore[arg-type]
        list_all(T5, 8, 8, **fixed)
