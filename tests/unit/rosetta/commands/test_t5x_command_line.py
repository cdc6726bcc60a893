"""The commands `rosetta t5x` beside the scripts; see tests/support/t5x_scripts.py."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.support.t5x_scripts import MNLI, Place, bindings, checkpoints, place_

__all__ = ["place_"]  # a fixture


@pytest.mark.parametrize(
    "words",
    [
        ["--dry-run", "T5_SIZE=tiny", "MODEL_DIR=a b"],
        ["T5_SIZE=tiny", "MODEL_DIR=a b", "--dry-run"],
        ["T5_SIZE=tiny", "--dry-run", "--json", "MODEL_DIR=a b"],
    ],
)
def test_the_command_line_does_what_the_scripts_do(place: Place, words: list[str]) -> None:
    ran = place.rosetta("t5x", "pretrain", *words)
    assert ran.rc == 0, ran.err
    assert ran.argv == [], "nothing was run"
    said = (
        json.loads(ran.out)["result"]["argv"]
        if "--json" in words
        else shlex.split(ran.out.splitlines()[-1])
    )
    assert f'--gin.MODEL_DIR="{place.work}/a b"' in said
    assert any(word.endswith("tiny_pile_pretrain.gin") for word in said)
    assert not (place.work / "a b").exists()


def test_the_command_line_becomes_the_trainer(place: Place) -> None:
    ran = place.run_rosetta("t5x", "pretrain", "T5_SIZE=tiny", "TRAIN_STEPS=7", RC="5")
    assert ran.rc == 5
    assert bindings(ran)["TRAIN_STEPS"] == "7"
    checkpoints(place, "100")
    ran = place.rosetta("t5x", "finetune", "MODEL_DIR=pre", "FT_STEPS=3", **MNLI)
    assert ran.rc == 0, ran.err
    assert bindings(ran)["MODEL_DIR"] == f'"{place.work}/ft_mnli2_pre"'


@pytest.mark.parametrize("what", ["eval", "infer"])
def test_evaluation_and_inference(place: Place, what: str) -> None:
    checkpoints(place, "100")
    ran = place.rosetta(
        "t5x",
        what,
        "CHECKPOINT_PATH=pre",
        "OUTPUT_DIR=out",
        "NUM_DECODES=4",
        "DEC_SL=8",
        BSIZE="8",
        **MNLI,
    )
    assert ran.rc == 0, ran.err
    assert ran.argv[:5] == ["-u", "-P", "-m", "rosetta.t5x.train", what]
    assert [word for word in ran.argv if "_file=" in word] == [
        f"--gin_file=rosetta/t5x/gin/{name}.gin"
        for name in ("t5_1_1/tiny", f"runs/{what}", "runs/task_mnli2")
    ]
    found = bindings(ran)
    assert found["CHECKPOINT_PATH"] == f'"{place.work}/pre"'
    assert (
        found[{"eval": "EVAL_OUTPUT_DIR", "infer": "INFER_OUTPUT_DIR"}[what]]
        == f'"{place.work}/out"'
    )
    assert (found["BATCH_SIZE"], found["NUM_DECODES"]) == ("8", "4")
    assert found["TASK_FEATURE_LENGTHS"] == '{"inputs": 512, "targets": 8}'
    assert not any("trainer" in name or name == "PACK" for name in found), (
        "what evaluation has none of"
    )
    assert (
        ran.env["XLA_FLAGS"]
        == "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_all_reduce_combine_threshold_bytes=136314880"
    )


@pytest.mark.parametrize(
    ("what", "label", "complaint"),
    [
        ("infer", "-1", ""),
        ("infer", "null", ""),
        ("infer", "true", "questions.jsonl, line 1: not a record of mnli: its label is true"),
        ("eval", "-1", "questions.jsonl: none of its 1 records has an answer"),
        (
            "eval",
            "null",
            "questions.jsonl, line 1: not a record of mnli: it lacks premise, hypothesis or label",
        ),
        ("eval", "false", "questions.jsonl, line 1: not a record of mnli: its label is false"),
    ],
)
def test_questions_are_read_before_anything_starts(
    place: Place, what: str, label: str, complaint: str
) -> None:
    checkpoints(place, "100")
    (place.work / "questions.jsonl").write_text(
        f'{{"premise": "a", "hypothesis": "b", "label": {label}}}\n'
    )
    settings = {**MNLI, "EVAL_DATA": f"jsonl:{place.work}/questions.jsonl"}
    ran = place.rosetta(
        "t5x", what, "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out", "EXTRA_IDS=100", **settings
    )
    assert ran.rc == (2 if complaint else 0), ran.err
    assert complaint in ran.err
    if complaint:
        assert ran.argv == []
        assert not (place.work / "out").exists()
    else:
        assert bindings(ran)["EXTRA_IDS"] == "100"


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "1e2"])
def test_a_number_of_sentinels_that_is_none_is_refused(place: Place, value: str) -> None:
    checkpoints(place, "100")
    for words in (["eval", "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out"], ["pretrain"]):
        ran = place.rosetta("t5x", *words, **MNLI, EXTRA_IDS=value)
        assert (ran.rc, ran.argv) == (2, [])
        assert f"EXTRA_IDS: it is '{value}'; give a whole number, at least 0" in ran.err


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"TP_SIZE": "2"}, "TP_SIZE=2: 1 GPUs do not divide into groups of 2; choose one of: 1"),
        (
            {"TP_SIZE": "3", "XLA_FLAGS": "--xla_force_host_platform_device_count=3"},
            "TP_SIZE=3: a tiny model's heads of 4 do not divide by it; choose one of: 1",
        ),
        (
            {"BSIZE": "6", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
            "BSIZE=6: it does not divide over 4 groups of 1 device(s); give a multiple of 4",
        ),
        ({"PYTHON": "/nowhere/python"}, "PYTHON=/nowhere/python: it is no program"),
    ],
)
def test_evaluation_refused(place: Place, settings: dict[str, str], complaint: str) -> None:
    checkpoints(place, "100")
    ran = place.rosetta("t5x", "eval", "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out", **MNLI, **settings)
    assert (ran.rc, ran.argv) == (2, [])
    assert complaint in ran.err
    assert not (place.work / "out").exists()


def test_no_start_is_kept_of_a_run_that_cannot_begin(place: Place) -> None:
    checkpoints(place, "100")
    ran = place.rosetta("t5x", "finetune", "MODEL_DIR=pre", "PYTHON=/nowhere/python", **MNLI)
    assert ran.rc == 2
    assert (
        "PYTHON=/nowhere/python: it is no program; name the Python of a baked environment"
        in ran.err
    )
    assert not (place.work / "ft_mnli2_pre").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["t5x", "pretrain", "t5_size=tiny"], "'t5_size=tiny' is no setting; write NAME=VALUE"),
        (["t5x", "pretrain", "T5_SIZE=enormous"], "there is no model size 'enormous'"),
        (["t5x", "improve"], "there is no 'improve'"),
        (["t5x", "pretrain", "--enable-fp8"], "unrecognized arguments: --enable-fp8"),
        (["t5x", "eval", "OUTPUT_DIR=out"], "CHECKPOINT_PATH: it is not set"),
        (
            ["t5x", "eval", "OUTPUT_DIR=out", "CHECKPOINT_PATH=pre"],
            "FT_TASK: it is ''; choose one of: mnli2, squad1",
        ),
        (
            ["t5x", "infer", "OUTPUT_DIR=out", "CHECKPOINT_PATH=nowhere", "FT_TASK=mnli2"],
            "it is no checkpoint_N and holds none",
        ),
        (
            [
                "t5x",
                "infer",
                "OUTPUT_DIR=out",
                "CHECKPOINT_PATH=pre",
                "FT_TASK=mnli2",
                "T5_FAMILY=t6",
            ],
            "there is no t6/large; choose one of: byt5/base",
        ),
        (
            [
                "t5x",
                "infer",
                "OUTPUT_DIR=corpus.txt",
                "CHECKPOINT_PATH=pre",
                "FT_TASK=mnli2",
                "DATA=jsonl:mnli.jsonl",
            ],
            "is a file",
        ),
        (
            [
                "t5x",
                "infer",
                "OUTPUT_DIR=out",
                "CHECKPOINT_PATH=pre",
                "FT_TASK=mnli2",
                "VOCAB=nowhere",
            ],
            "there is no such vocabulary file",
        ),
    ],
)
def test_the_command_line_refuses_in_one_line(
    place: Place, words: list[str], complaint: str
) -> None:
    checkpoints(place, "100")
    ran = place.rosetta(*words)
    assert (ran.rc, ran.argv, ran.out) == (2, [], "")
    assert complaint in ran.err
    assert len(ran.err.splitlines()) == 1
