"""The bound that leaves splits out, and the estimate that orders what is compiled."""

from __future__ import annotations

import pytest

from rosetta.core import gpus
from rosetta.plan import layout_estimate, searched_run
from rosetta.plan.search_space import PAX, T5X, Candidate, Model, Split

T5 = Model(T5X, "a", 1_000, True, 8, 512, 1024, 32128, 640, 128, {})
GPT = Model(PAX, "b", 1_000, True, 8, 512, 1024, 32128, 640, 640, {})


@pytest.mark.parametrize(
    ("model", "split", "microbatches", "size"),
    [
        # Parameters 4, gradients 2 or 4, moments 8 bytes for each parameter.
        (T5, Split(8, 1, 1), 1, 14_000),
        (T5, Split(1, 8, 1), 1, 1_750),
        (T5, Split(1, 4, 2), 2, 2_000),
        # A width of 512 divides by 32, but not by 24.
        (T5, Split(2, 16, 1), 1, 437.5),
        (T5, Split(3, 8, 1), 1, 1_750),
        (GPT, Split(1, 8, 1), 1, 1_750),
        (GPT, Split(8, 1, 1), 1, 14_000),
        (GPT, Split(1, 4, 2), 2, 2_000),
    ],
)
def test_the_state_of_a_split(model: Model, split: Split, microbatches: int, size: float) -> None:
    assert layout_estimate.count_state_bytes(model, split, microbatches) == size


@pytest.mark.parametrize(
    ("model", "split", "peak"),
    [
        # Peaks of compiled steps, docs/project/benchmarks.md and docs/how-to/plan-for-a-gpu.md.
        (searched_run.read_t5x_model("large", 512, 128), Split(1, 1, 1), 16.18e9),
        (searched_run.read_t5x_model("large", 512, 128), Split(1, 8, 1), 25.2e9),
        (searched_run.read_t5x_model("xl", 512, 128), Split(256, 1, 1), 46.3e9),
        (searched_run.read_pax_model("Synthetic5B", {}), Split(1, 256, 1), 42.8e9),
        (searched_run.read_pax_model("Synthetic175B", {}), Split(1, 256, 1), 54.4e9),
        (searched_run.read_pax_model("SyntheticLLaMA70B", {}), Split(1, 16, 1), 124.2e9),
        (
            searched_run.read_pax_model("SyntheticLLaMA70B", {"USE_LORA": True}),
            Split(1, 16, 1),
            57.8e9,
        ),
    ],
)
def test_the_bound_is_below_the_peak_of_compiled_steps(
    model: Model, split: Split, peak: float
) -> None:
    assert layout_estimate.count_state_bytes(model, split) < peak


def test_xxl_fits_8_h100_with_fsdp() -> None:
    model = searched_run.read_t5x_model("xxl", 512, 128)
    assert layout_estimate.count_state_bytes(model, Split(1, 8, 1)) == pytest.approx(19.5e9, 0.01)


def test_fsdp_gathers_copies_that_stay_without_remat() -> None:
    model, gpu = searched_run.read_t5x_model("large", 512, 128), gpus.GPUS["h100"]

    def count_gathered(remat: str) -> float:
        whole, sharded = (
            layout_estimate.estimate(model, Candidate(split, remat, False, 32, 1), gpu, 8)
            for split in (Split(8, 1, 1), Split(1, 8, 1))
        )
        return sharded.activations - whole.activations

    # The peaks of compiled steps, 33.2 and 25.2 GB (docs/project/benchmarks.md).
    saved = layout_estimate.count_state_bytes(model, Split(8, 1, 1)) * 7 / 8
    assert saved - count_gathered("none") == pytest.approx(8.0e9, 0.05)
    assert count_gathered("full") < count_gathered("none") / 10


def test_less_is_kept_with_remat_and_more_is_computed() -> None:
    model, gpu = searched_run.read_t5x_model("large", 512, 128), gpus.GPUS["h100"]
    estimates = [
        layout_estimate.estimate(model, Candidate(Split(8, 1, 1), remat, False, 32, 1), gpu, 8)
        for remat in ("none", "minimal", "full")
    ]
    memory = [entry.activations for entry in estimates]
    seconds = [entry.seconds for entry in estimates]
    assert memory == sorted(memory, reverse=True)
    assert seconds == sorted(seconds)


def test_a_tensor_axis_halves_the_memory_and_communicates() -> None:
    model, gpu = searched_run.read_t5x_model("large", 512, 128), gpus.GPUS["l40s"]
    one, two = (
        layout_estimate.estimate(model, Candidate(split, "none", False, rows, 1), gpu, 8)
        for split, rows in ((Split(8, 1, 1), 8), (Split(4, 1, 2), 16))
    )
    assert two.state == one.state / 2
    assert two.activations == one.activations
    assert two.seconds > one.seconds
