"""A step that does not fit comes with the smallest change that is estimated to fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rosetta import cli
from rosetta.core import gpus
from rosetta.plan import fit_advice, searched_run, t5x_step
from rosetta.plan.fit_advice import PlannedStep
from rosetta.plan.search_space import Candidate, Split
from rosetta.plan.t5x_step import CompiledStep
from tests.support.hlo_module import TEXT

LARGE = searched_run.read_t5x_model("large", 512, 128)
LLAMA = searched_run.read_pax_model("SyntheticLLaMA70B", {})


def make_t5x_step(rows: int, peak: float, remat: str = "none") -> PlannedStep:
    candidate = Candidate(Split(1, 1, 1), remat, False, rows, 1)
    return PlannedStep(LARGE, candidate, gpus.GPUS["h100"], 1, 1, peak)


def test_microbatches_keep_the_batch_and_cost_the_least() -> None:
    change = fit_advice.find_change(make_t5x_step(64, 80e9), 72e9)
    assert change is not None
    assert change[0] == ["--microbatches 2"]
    assert 40e9 < change[1] < 72e9


def test_remat_helps_if_a_batch_cannot_be_halved() -> None:
    change = fit_advice.find_change(make_t5x_step(1, 74e9), 72e9)
    assert change is not None
    assert change[0] == ["--with remat=minimal"]


def test_several_changes_are_combined() -> None:
    change = fit_advice.find_change(make_t5x_step(64, 160e9, remat="full"), 72e9)
    assert change is not None
    assert change[0] == ["--microbatches 4"]


def test_a_state_that_is_too_big_is_sharded() -> None:
    step = PlannedStep(
        LLAMA, Candidate(Split(4, 8, 1), "save_nothing", True, 1, 1), gpus.GPUS["h100"], 4, 8, 140e9
    )
    change = fit_advice.find_change(step, 72e9)
    assert change is not None
    assert change[0] == ["--with", "ICI_MESH_SHAPE=[1,8,1]", "DCN_MESH_SHAPE=[1,4,1]"]


def test_fsdp_is_enough_for_the_state_of_xxl() -> None:
    model = searched_run.read_t5x_model("xxl", 512, 128)
    candidate = Candidate(Split(8, 1, 1), "full", False, 8, 1)
    step = PlannedStep(model, candidate, gpus.GPUS["h100"], 1, 8, 165e9)
    change = fit_advice.find_change(step, 72e9)
    assert change is not None
    assert change[0] == ["--fsdp"]


def test_the_groups_of_a_node_are_a_block_of_the_mesh() -> None:
    candidate = fit_advice.read_t5x_candidate(
        *(12, 6, 1, 4, 1), fsdp=True, remat="none", scanned=False
    )
    assert candidate.split == Split(6, 2, 1)


def test_no_change_is_enough_for_a_model_that_is_far_too_big() -> None:
    step = PlannedStep(
        LLAMA, Candidate(Split(1, 1, 1), "save_nothing", True, 1, 1), gpus.GPUS["h100"], 1, 1, 1e12
    )
    assert fit_advice.find_change(step, 72e9) is None
    assert fit_advice.report_change(None, 72e9) is None


def test_the_settings_of_an_experiment() -> None:
    experiment = SimpleNamespace(
        ICI_MESH_SHAPE=[1, 4, 2],
        DCN_MESH_SHAPE=[2, 1, 1],
        PERCORE_BATCH_SIZE=2,
        NUM_MICROBATCHES=2,
        USE_REPEATED_LAYER=True,
        CHECKPOINT_POLICY=SimpleNamespace(value="save_out_proj"),
    )
    assert fit_advice.read_pax_candidate(experiment) == Candidate(
        Split(2, 4, 2), "save_out_proj", True, 2, 2
    )


def test_the_policy_that_keeps_attention() -> None:
    experiment = SimpleNamespace(
        ICI_MESH_SHAPE=[1, 8, 1],
        DCN_MESH_SHAPE=None,
        PERCORE_BATCH_SIZE=1,
        USE_REPEATED_LAYER=True,
        CHECKPOINT_POLICY=SimpleNamespace(value="save_dot_with_no_batch_dims"),
        keeps_attention=True,
    )
    assert fit_advice.read_pax_candidate(experiment).remat == "save_dot_and_attention"


def test_the_plan_prints_the_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(t5x_step, "prepare_t5x_compilation", lambda *_: None)
    monkeypatch.setattr(
        t5x_step,
        "compile_t5x_step",
        lambda *_, **__: CompiledStep(TEXT, 30 * 10**9, 0, 0, 50 * 10**9, 1.0, 1),
    )
    assert cli.main(["plan", "t5x", "--gpus", "1", "--batch-per-gpu", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("change")]
    assert "--microbatches 2" in line
    assert lines[1].startswith("does not fit")
