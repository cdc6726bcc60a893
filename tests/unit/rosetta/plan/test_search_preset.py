"""The answer of a search is a preset whose run is the one that was compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rosetta.core.run_description import Run
from rosetta.plan import search_preset, search_space, searched_run
from rosetta.plan.layout_search import Trial
from rosetta.plan.search_space import Candidate, Fixed, Split
from rosetta.plan.searched_run import SearchedRun
from rosetta.presets import preset_files, preset_run
from tests.support import errors


def describe_t5x(gpus: tuple[int, int], **switches: Any) -> SearchedRun:
    settings, fixed = searched_run.make_t5x_settings(switches, 256, 64)
    model = searched_run.read_t5x_model("large", 256, 64)
    return SearchedRun(model, "t5x-large", "h100", *gpus, settings, Fixed(**fixed))


def describe_pax(config: str, gpus: tuple[int, int], **hyper: Any) -> SearchedRun:
    settings, fixed = searched_run.make_pax_settings(config, hyper)
    model = searched_run.read_pax_model(config, hyper)
    preset = searched_run.find_preset("pax", config)
    return SearchedRun(model, preset, "h100", *gpus, settings, Fixed(**fixed))


def write(searched: SearchedRun, candidate: Candidate, path: Path) -> Run:
    """Write the preset, and return the run that `rosetta run` would make of it."""
    trial = Trial(candidate, 1e9, {"likely": 1.0, "fastest": 0.9, "slowest": 1.1})
    document = search_preset.make_preset(searched, trial, "predicted", "found")
    search_preset.write_preset(document, searched, trial, path, "steps.jsonl")
    return preset_run.describe_run(str(path), accelerator="h100", settings={}, environment={})


def test_the_preset_of_a_t5(tmp_path: Path) -> None:
    candidate = Candidate(Split(1, 8, 2), "minimal", True, 4, 2)
    searched = describe_t5x((2, 8), fp8="off", attention="xla")
    run = write(searched, candidate, tmp_path / "found.yaml")
    assert (run.nodes, run.gpus_per_node, run.batch) == (2, 8, {"per_gpu": 8, "microbatches": 2})
    expected = {
        "TP_SIZE": "2",
        "FSDP": "1",
        "REMAT": "minimal",
        "SCAN_LAYERS": "1",
        "ENC_SL": "256",
        "DEC_SL": "64",
        "ENABLE_FP8": "0",
        "ATTENTION": "xla",
    }
    assert expected.items() <= run.env.items()
    assert (run.precision, run.model) == ("bf16", "large")
    lines = (tmp_path / "found.yaml").read_text().splitlines()
    assert "steps.jsonl" in lines[0]
    layer = preset_files.load_preset_chain(str(tmp_path / "found.yaml"))[-1]
    assert {value.why for value in layer.values.values()} == {"predicted"}


def test_the_preset_of_an_experiment_leaves_its_data_to_the_user(tmp_path: Path) -> None:
    candidate = Candidate(Split(2, 64, 2), "save_nothing", True, 1, 1)
    searched = describe_pax("Synthetic5B", (32, 8), USE_FP8=True, MAX_STEPS=50)
    path = tmp_path / "found.yaml"
    run = write(searched, candidate, path)
    assert run.mesh == {"ici": [1, 4, 2], "dcn": [2, 16, 1]}
    assert run.batch == {"per_gpu": "0.5", "microbatches": 1}
    assert run.fdl == {
        "USE_REPEATED_LAYER": True,
        "CHECKPOINT_POLICY": "save_nothing",
        "MAX_STEPS": 50,
    }
    assert (run.model, run.precision) == ("Pile5B", "fp8-xla")
    own = preset_run.describe_run(
        str(path), accelerator="h100", settings={"CONFIG": "GPT5B"}, environment={}
    )
    assert own.model == "GPT5B"


def test_a_preset_with_another_run_is_not_left(tmp_path: Path) -> None:
    searched = describe_t5x((1, 8))
    trial = Trial(Candidate(Split(8, 1, 1), "none", False, 4, 1), 1e9, {"likely": 1.0})
    document = search_preset.make_preset(searched, trial, "predicted", "found")
    document["settings"]["REMAT"]["value"] = "full"
    with errors.expect_user_error(errors.FAILED, where="found.yaml"):
        search_preset.write_preset(
            document, searched, trial, tmp_path / "found.yaml", "steps.jsonl"
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("value", "kind"), [("full", errors.FAILED), ("some", errors.INVALID)])
def test_a_preset_that_cannot_be_used_replaces_nothing(
    tmp_path: Path, value: str, kind: str
) -> None:
    searched = describe_t5x((1, 8))
    trial = Trial(Candidate(Split(8, 1, 1), "none", False, 4, 1), 1e9, {"likely": 1.0})
    document = search_preset.make_preset(searched, trial, "predicted", "found")
    document["settings"]["REMAT"]["value"] = value
    path = tmp_path / "found.yaml"
    path.write_text("mine\n")
    with errors.expect_user_error(kind):
        search_preset.write_preset(document, searched, trial, path, "steps.jsonl")
    assert [file.name for file in tmp_path.iterdir()] == ["found.yaml"]
    assert path.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("searched", "candidate"),
    [
        (describe_t5x((8, 8), fp8="off"), Candidate(Split(64, 1, 1), "none", False, 32, 1)),
        (
            describe_pax("Synthetic175B", (32, 8)),
            Candidate(Split(1, 256, 1), "save_nothing", True, 6, 1),
        ),
        (
            describe_pax("SyntheticLLaMA70B", (4, 8)),
            Candidate(Split(1, 32, 1), "none", False, 1, 1),
        ),
    ],
)
def test_published_settings_are_a_candidate(searched: SearchedRun, candidate: Candidate) -> None:
    assert searched.find_published() == candidate


def test_published_settings_that_contradict_what_is_fixed_are_not() -> None:
    assert describe_t5x((8, 8), remat="full").find_published() is None


def test_the_policy_that_keeps_attention_is_only_searched_with_cudnn() -> None:
    def list_policies(**hyper: Any) -> set[str]:
        candidates = describe_pax("LLaMA7B", (1, 8), **hyper).list_candidates()
        return {candidate.remat for candidate in candidates if candidate.scanned}

    assert list_policies() == set(search_space.PAX_REMAT)
    assert list_policies(USE_CUDNN_FLASH_ATTENTION=True) == set(search_space.PAX_REMAT)
    assert list_policies(ATTENTION="xla") == set(search_space.PAX_REMAT[1:])
    fixed = list_policies(ATTENTION="xla", CHECKPOINT_POLICY="save_dot_and_attention")
    assert fixed == {"save_dot_and_attention"}
    searched = describe_pax("LLaMA7B", (1, 8))
    repeated = {**searched.settings, "fdl.USE_REPEATED_LAYER": "True"}
    published = replace(searched, settings=repeated).find_published()
    assert published is not None
    assert published.remat == "save_dot_and_attention"


def test_a_mesh_keeps_the_tensor_axis_and_much_of_fsdp_in_a_node() -> None:
    assert searched_run.split_mesh(Split(1, 256, 1), 32, 8) == ([1, 8, 1], [1, 32, 1])
    assert searched_run.split_mesh(Split(64, 2, 2), 32, 8) == ([2, 2, 2], [32, 1, 1])
    assert searched_run.split_mesh(Split(4, 8, 1), 4, 8) == ([1, 8, 1], [4, 1, 1])


@pytest.mark.parametrize("field", ["num_heads", "fuse_mlp"])
def test_fields_without_a_setting_are_refused(field: str) -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where=f"--with {field}", value=field):
        searched_run.make_t5x_settings({field: 8}, 512, 128)


def test_fractions_are_refused_because_a_preset_cannot_have_them() -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where="LEARNING_RATE", value="LEARNING_RATE"):
        searched_run.make_pax_settings("Synthetic5B", {"LEARNING_RATE": 0.5})
    settings, fixed = searched_run.make_pax_settings("Synthetic5B", {"PERCORE_BATCH_SIZE": 0.5})
    assert (settings, fixed) == (
        {"CONFIG": "Synthetic5B", "ENABLE_TE": "0"},
        {"batch_per_gpu": 0.5},
    )


def test_experiments_of_the_user_have_no_known_sizes() -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where="my.Model", value="my.Model"):
        searched_run.read_pax_model("my.Model", {})
    with errors.expect_user_error(errors.UNSUPPORTED, where="my.Model"):
        searched_run.count_mesh_devices("my.Model")
    assert searched_run.count_mesh_devices("Synthetic175B") == 256
