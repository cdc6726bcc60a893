from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rosetta.t5x.run import settings
from tests.support import errors

WORDS = ["small", "bfloat16", "8", "32", "logs"]


def test_every_positional_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings.read_script_settings(
        "singlenode_ft_frompile",
        ["squad1", *WORDS, "m", "4", "true", "1", "0", "on", "0"],
        {"FT_TASK": "mnli2", "NUM_MICROBATCHES": "2"},
        1,
    )
    assert (
        found.finetune,
        found.processes,
        found.task,
        found.size,
        found.gpus,
        found.batch_per_gpu,
        found.microbatches,
    ) == (True, 1, "squad1", "small", 8, 32, 4)
    assert (found.model_dir, found.log_dir, found.batch) == (f"{tmp_path}/m", "logs", 256)
    assert [
        found.variables[name]
        for name in ("PREC", "MAKE_FT_DIR", "ENABLE_FP8", "TRANSPOSE_BS", "FUSE_QKV", "PACK")
    ] == ["bfloat16", "true", "1", "0", "on", "0"]


def test_defaults_of_the_variables() -> None:
    found = settings.read_script_settings("multiprocess_pretrain_pile", [], {}, 4)
    assert (
        found.size,
        found.gpus,
        found.batch_per_gpu,
        found.microbatches,
        found.tensor_parallel,
        found.steps,
        found.lengths,
    ) == ("large", 4, 32, 1, 1, None, {})
    assert found.model_dir == f"{Path.cwd()}/model_dir_large"


def test_processes_are_gpus_where_slurm_counts_them() -> None:
    found = settings.read_script_settings(
        "multiprocess_pretrain_pile",
        [],
        {"SLURM_NTASKS": "16", "TP_SIZE": "4", "BSIZE_PER_GPU": "6", "DEC_SL": "64"},
        8,
    )
    assert (found.processes, found.gpus, found.batch, found.lengths) == (
        16,
        16,
        24,
        {"targets": 64},
    )
    assert (
        settings.read_script_settings(
            "singlenode_pretrain_pile", WORDS, {"SLURM_NTASKS": "16"}, 8
        ).processes
        == 1
    )


@pytest.mark.parametrize(
    ("variables", "facts"),
    [
        ({"TP_SIZE": "3"}, {"value": 3, "names": "8 GPUs", "remedy": ": 1, 2, 4, 8"}),
        ({"TP_SIZE": "16"}, {"value": 16, "remedy": ": 1, 2, 4, 8"}),
        (
            {"NUM_MICROBATCHES": "64"},
            {"value": 64, "names": ("256", "32"), "remedy": ": 1, 2, 4, 8, 16, 32"},
        ),
        ({"BSIZE_PER_GPU": "9" * 10}, {"value": "9" * 10}),
        ({"TRAIN_STEPS": "1e3"}, {"value": "1e3"}),
        ({"WARMUP_STEPS": "0"}, {"value": "0", "remedy": "1"}),
        ({"SAVE_PERIOD": "0"}, {"value": "0", "remedy": "1"}),
        *(
            ({"LEARNING_RATE": text}, {"value": text, "remedy": "LEARNING_RATE=1e-3"})
            for text in ("0", "-1e-3", "nan", "inf", "high")
        ),
        ({"ENC_SL": " 5"}, {"value": " 5"}),
    ],
)
def test_numbers_that_cannot_be(variables: dict[str, str], facts: dict[str, Any]) -> None:
    (name,) = variables
    with errors.expect_user_error(errors.INVALID, where=name, **facts):
        settings.read_script_settings(
            "multiprocess_pretrain_pile", [], {"NUM_GPUS": "8", **variables}, 1
        )


@pytest.mark.parametrize(
    ("script", "words"),
    [("singlenode_pretrain_pile", [*WORDS, *"1234567"]), ("multiprocess_pretrain_pile", ["x"])],
)
def test_too_many_arguments_are_refused(script: str, words: list[str]) -> None:
    with errors.expect_user_error(errors.INVALID, where=f"{script}.sh", value=len(words)) as found:
        settings.read_script_settings(script, words, {}, 1)
    expected = (
        "give at most SIZE PREC NUM_GPUS BSIZE_PER_GPU LOGDIR MODEL_DIR GRAD_ACCUM ENABLE_FP8 TRANSPOSE_BS FUSE_QKV PACK"
        if words[0] == "small"
        else "set environment variables instead"
    )
    assert expected in found.value.do


def test_words_left_out_are_the_variables_or_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings.read_script_settings("singlenode_ft_frompile", [], {}, 4)
    assert (
        found.task,
        found.size,
        found.gpus,
        found.batch_per_gpu,
        found.microbatches,
        found.model_dir,
        found.log_dir,
    ) == ("mnli2", "large", 4, 32, 1, f"{tmp_path}/model_dir", "")
    found = settings.read_script_settings(
        "singlenode_pretrain_pile",
        ["small"],
        {"T5_SIZE": "xl", "PREC": "float32", "NUM_GPUS": "2"},
        4,
    )
    assert (found.size, found.variables["PREC"], found.gpus) == ("small", "float32", 2)
    with errors.expect_user_error(errors.MISSING, where="FT_TASK", remedy=("mnli2", "squad1")):
        settings.read_script_settings("multiprocess_ft_frompile", [], {}, 1)


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        settings.read_script_settings(
            "multiprocess_pretrain_pile", [], {"MODEL_DIR": "gs://b/m"}, 1
        ).model_dir
        == "gs://b/m"
    )
    assert settings.read_script_settings(
        "multiprocess_pretrain_pile", [], {"T5X_WORKSPACE_DIR": "w", "T5_SIZE": "xl"}, 1
    ).model_dir == os.path.join(tmp_path, "w", "model_dir_xl")
