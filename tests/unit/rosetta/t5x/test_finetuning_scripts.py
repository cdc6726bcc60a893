"""What the scripts of finetuning run and refuse; see tests/support/t5x_scripts.py."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.support import errors
from tests.support.t5x_scripts import (
    FINETUNE,
    Place,
    make_checkpoint_folder,
    place_,
    read_gin_bindings,
    read_text_files,
)

__all__ = ["place_"]  # a fixture


def finetune(place: Place, *more: str, **settings: str) -> tuple[dict[str, str], str]:
    data = f"jsonl:{place.work}/mnli.jsonl"
    ran = place.run(
        "singlenode_ft_frompile.sh",
        *FINETUNE,
        *more,
        **{"DATA": data, "EVAL_DATA": data, **settings},
    )
    assert ran.rc == 0, ran.err
    assert any(word.endswith("large_mnli2_finetune_adam.gin") for word in ran.argv)
    return read_gin_bindings(ran), ran.err


def test_finetuning_leaves_the_type_of_logits_to_gin(place: Place) -> None:
    make_checkpoint_folder(place, "1000000")
    gpus = place.cards(*["NVIDIA H100 80GB HBM3, 9.0"] * 8)
    data = f"jsonl:{place.work}/mnli.jsonl"
    for settings in ({}, {"LOGITS_DTYPE": "bfloat16"}):
        ran = place.run(
            "singlenode_ft_frompile.sh", *FINETUNE, DATA=data, EVAL_DATA=data, **gpus, **settings
        )
        assert ran.rc == 0, ran.err
        bindings = read_gin_bindings(ran)
        assert bindings["network.T5Config.dtype"] == '"bfloat16"'
        assert ("network.T5Config.logits_dtype" in bindings) == bool(settings)


def test_finetuning_reads_one_folder_and_writes_another(place: Place) -> None:
    before = read_text_files(
        make_checkpoint_folder(place, "900000", "1000000", "9.orbax-checkpoint-tmp-1")
    )
    found, _ = finetune(place, FT_STEPS="100")
    assert found["MODEL_DIR"] == f'"{place.work}/ft_mnli2_pre"'
    assert found["INITIAL_CHECKPOINT_PATH"] == f'"{place.work}/pre/checkpoint_1000000"'
    assert found["FT_STEPS"] == "100"
    assert "TRAIN_STEPS" not in found
    assert read_text_files(place.work / "pre") == before


def test_finetuning_started_again_starts_from_the_same_checkpoint(place: Place) -> None:
    make_checkpoint_folder(place, "900000")
    finetune(place)
    make_checkpoint_folder(place, "900100", name="ft_mnli2_pre")
    make_checkpoint_folder(place, "1000000")
    assert finetune(place)[0]["INITIAL_CHECKPOINT_PATH"].endswith('/pre/checkpoint_900000"')
    # Where nothing was saved yet, there is nothing to go on with.
    shutil.rmtree(place.work / "ft_mnli2_pre" / "checkpoint_900100")
    assert finetune(place)[0]["INITIAL_CHECKPOINT_PATH"].endswith('/pre/checkpoint_1000000"')


def test_finetuning_beside_the_pretrained_checkpoint_where_that_is_typed(place: Place) -> None:
    before = read_text_files(make_checkpoint_folder(place, "1000000"))
    found, _ = finetune(place, "1", "false")
    assert found["MODEL_DIR"] == f'"{place.work}/pre"'
    make_checkpoint_folder(place, "1005000")
    assert finetune(place, "1", "false")[0]["INITIAL_CHECKPOINT_PATH"].endswith(
        '/pre/checkpoint_1000000"'
    )
    after = read_text_files(place.work / "pre")
    assert {name: after[name] for name in before} == before


def test_finetuning_in_a_folder_for_each_run(place: Place) -> None:
    make_checkpoint_folder(place, "1000000")
    assert (
        finetune(place, "1", "true", SLURM_JOB_ID="42")[0]["MODEL_DIR"]
        == f'"{place.work}/ft_mnli2_pre_42"'
    )
    assert finetune(place, FT_DIR="mine")[0]["MODEL_DIR"] == f'"{place.work}/mine"'


def test_the_number_of_finetuning_steps(place: Place) -> None:
    make_checkpoint_folder(place, "1000000")
    assert "FT_STEPS" not in finetune(place)[0], "the gin file's"
    assert finetune(place, TRAIN_STEPS="1006001")[0]["FT_STEPS"] == "6001"


def test_finetuning_on_ones_own_data_is_not_evaluated_on_another(place: Place) -> None:
    make_checkpoint_folder(place, "1000000")
    found, said = finetune(place, EVAL_DATA="")
    assert (
        found["EVAL_DATA"],
        found["train.train_eval_dataset_cfg"],
        found["train.infer_eval_dataset_cfg"],
    ) == ("None", "None", "None")
    assert "no evaluation: DATA is set and EVAL_DATA is not" in said
    found, said = finetune(place)
    assert "train.infer_eval_dataset_cfg" not in found
    assert "no evaluation" not in said


def test_finetuning_from_an_object_store_needs_a_folder_to_write_to(place: Place) -> None:
    words = [*FINETUNE[:6], "gs://bucket/pre"]
    data = f"jsonl:{place.work}/mnli.jsonl"
    found = read_gin_bindings(place.run("singlenode_ft_frompile.sh", *words, DATA=data))
    assert (found["MODEL_DIR"], found["INITIAL_CHECKPOINT_PATH"]) == (
        '"gs://bucket/ft_mnli2_pre"',
        '"gs://bucket/pre"',
    )
    ran = place.run("singlenode_ft_frompile.sh", *words[:6], "gs://bucket", DATA=data)
    assert "FT_DIR=gs://BUCKET/FOLDER" in ran.err


@pytest.mark.parametrize(
    ("words", "settings", "kind", "facts"),
    [
        (
            ("cola", *FINETUNE[1:]),
            {},
            errors.UNKNOWN,
            {"where": "FT_TASK", "value": "cola", "remedy": ("mnli2", "squad1", "pairs")},
        ),
        ((*FINETUNE[:6], "empty"), {}, errors.MISSING, {"where": "empty"}),
        (
            ("mnli2", "enormous", *FINETUNE[2:]),
            {},
            errors.UNKNOWN,
            {
                "where": "T5_SIZE",
                "value": "enormous",
                "names": "mnli2_finetune_adam",
                "remedy": "tiny, small, base, large, xl, xxl",
            },
        ),
        (
            (*FINETUNE, "1", "sometimes"),
            {},
            errors.INVALID,
            {"where": "MAKE_FT_DIR", "value": "sometimes"},
        ),
        (
            FINETUNE,
            {"TRAIN_STEPS": "6001"},
            errors.CONFLICT,
            {"where": "TRAIN_STEPS=6001", "value": 6001, "remedy": "FT_STEPS=N"},
        ),
        (FINETUNE, {"FT_STEPS": "none"}, errors.INVALID, {"where": "FT_STEPS", "value": "none"}),
        (
            FINETUNE,
            {"INITIAL_CHECKPOINT_PATH": "corpus.txt"},
            errors.MISSING,
            {"where": "corpus.txt"},
        ),
        (FINETUNE, {"DATA": ""}, errors.UNKNOWN, {"where": "data", "value": "glue/mnli"}),
        (
            FINETUNE,
            {"DATA": "text:corpus.txt"},
            errors.CONFLICT,
            {"where": "DATA=text:corpus.txt", "value": "text"},
        ),
        (FINETUNE, {"FT_DIR": "other"}, errors.CONFLICT, {"where": "other"}),
    ],
)
def test_settings_that_finetuning_refuses(
    place: Place, words: tuple[str, ...], settings: dict[str, str], kind: str, facts: dict[str, Any]
) -> None:
    make_checkpoint_folder(place, "1000000")
    make_checkpoint_folder(place, "1000100", name="other")
    (place.work / "other" / "rosetta").mkdir()
    (place.work / "other" / "rosetta" / "start").write_text("/another/model/checkpoint_5")
    before = read_text_files(place.work)
    ran = place.run(
        "singlenode_ft_frompile.sh",
        *words,
        **{"DATA": f"jsonl:{place.work}/mnli.jsonl", **settings},
    )
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, kind, **facts)
    assert len(ran.err.splitlines()) == 1
    assert read_text_files(place.work) == before


def test_finetunings_warmup_counts_from_its_start(place: Place) -> None:
    make_checkpoint_folder(place, "1000000")
    given = {
        "MODEL_DIR": "pre",
        "FT_TASK": "mnli2",
        "T5_SIZE": "tiny",
        "DATA": f"jsonl:{place.work}/mnli.jsonl",
        "FT_STEPS": "500",
    }
    assert "first 83 of 500 steps" in place.run("multiprocess_ft_frompile.sh", **given).err
    ran = place.run("multiprocess_ft_frompile.sh", **given, WARMUP_STEPS="100")
    assert read_gin_bindings(ran)["WARMUP_STEPS"] == "100"
    ran = place.run("multiprocess_ft_frompile.sh", **given, WARMUP_STEPS="1000")
    assert "after 500 steps: WARMUP_STEPS is 1,000" in ran.err


def test_finetuning_on_pairs_needs_no_file_of_the_tree(place: Place) -> None:
    make_checkpoint_folder(place, "1000")
    pairs = place.work / "pairs.jsonl"
    pairs.write_text('{"inputs": "3 May 1998", "targets": "1998-05-03"}\n')
    given = {"MODEL_DIR": "pre", "FT_TASK": "pairs", "T5_SIZE": "tiny", "VOCAB": "byte"}
    data = f"jsonl:{pairs}"
    ran = place.run("multiprocess_ft_frompile.sh", **given, DATA=data, EVAL_DATA=data, ENC_SL="16")
    assert ran.rc == 0, ran.err
    files = [word.rpartition("/gin/")[2] for word in ran.argv if word.startswith("--gin_file=")]
    assert files == ["t5_1_1/tiny.gin", "runs/finetune_pairs.gin"]
    found = read_gin_bindings(ran)
    assert found["TASK_FEATURE_LENGTHS"] == '{"inputs": 16, "targets": 128}'
    assert found["MODEL_DIR"] == f'"{place.work}/ft_pairs_pre"'
    with_text = {"DATA": f"text:{place.work}/corpus.txt"}
    for settings, where in (({"DATA": ""}, "DATA"), (with_text, f"DATA=text:{place.work}")):
        ran = place.run("multiprocess_ft_frompile.sh", **given, **settings)
        assert (ran.rc, ran.argv) == (2, [])
        assert ran.error.where.startswith(where)


def test_benchmarks_of_finetuning(place: Place) -> None:
    make_checkpoint_folder(place, "1000")
    found = read_gin_bindings(
        place.run(
            "multiprocess_ft_frompile.sh",
            BENCHMARK_MODE="1",
            MODEL_DIR="pre",
            FT_TASK="squad1",
            T5_SIZE="tiny",
            DATA="",
            VOCAB="",
        )
    )
    assert (found["FT_STEPS"], found["STATS_PERIOD"], found["DATA"], found["EVAL_DATA"]) == (
        "500",
        "100",
        '"synthetic"',
        "None",
    )
    assert "TRAIN_STEPS" not in found
    make_checkpoint_folder(place, "1500", name="ft_squad1_pre")
    ran = place.run(
        "multiprocess_ft_frompile.sh",
        BENCHMARK_MODE="1",
        MODEL_DIR="pre",
        FT_TASK="squad1",
        T5_SIZE="tiny",
        DATA="",
        VOCAB="",
    )
    assert ran.rc == 2
    assert "name another FT_DIR" in ran.err
