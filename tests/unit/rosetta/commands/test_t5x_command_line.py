"""The commands `rosetta t5x` beside the scripts; see tests/support/t5x_scripts.py."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.support import errors
from tests.support.t5x_scripts import MNLI, Place, make_checkpoint_folder, place_, read_gin_bindings

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
    assert read_gin_bindings(ran)["TRAIN_STEPS"] == "7"
    make_checkpoint_folder(place, "100")
    ran = place.rosetta("t5x", "finetune", "MODEL_DIR=pre", "FT_STEPS=3", **MNLI)
    assert ran.rc == 0, ran.err
    assert read_gin_bindings(ran)["MODEL_DIR"] == f'"{place.work}/ft_mnli2_pre"'


@pytest.mark.parametrize("environment", ["", "cuda,cpu"])
def test_the_word_for_the_platform_wins(place: Place, environment: str) -> None:
    """It reaches the trainer, and a machine without GPUs will do."""
    words = ("T5_SIZE=tiny", "JAX_PLATFORMS=cpu")
    ran = place.rosetta("t5x", "pretrain", *words, JAX_PLATFORMS=environment)
    assert ran.rc == 0, ran.err
    assert ran.env["JAX_PLATFORMS"] == "cpu"


@pytest.mark.parametrize(
    ("word", "facts"),
    [
        ("JAX_PLATFORMS=cpuu", {"where": "JAX_PLATFORMS", "value": "cpuu"}),
        ("XLA_FLAGS=garbage --xla_x=1", {"where": "XLA_FLAGS", "value": "garbage"}),
        ("BASE_XLA_FLAGS=xla_x=1 --xla_y=1", {"where": "BASE_XLA_FLAGS", "value": "xla_x=1"}),
    ],
)
def test_words_that_jax_would_stumble_over_are_refused(
    place: Place, word: str, facts: dict[str, Any]
) -> None:
    """A word and the variable of the environment alike, in a run and in a dry run."""
    name, _, value = word.partition("=")
    preset = ("run", "t5x-tiny", "--dry-run")
    for words in (("t5x", "pretrain"), ("t5x", "pretrain", "--dry-run"), preset):
        for ran in (place.rosetta(*words, word), place.rosetta(*words, **{name: value})):
            assert (ran.rc, ran.argv) == (2, []), words
            errors.check_error(ran.error, errors.INVALID, **facts)
            assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("what", ["eval", "infer"])
def test_evaluation_and_inference(place: Place, what: str) -> None:
    make_checkpoint_folder(place, "100")
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
    found = read_gin_bindings(ran)
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


_INFER = ("t5x", "infer", "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out", "T5_SIZE=tiny", "VOCAB=byte")


def test_inference_on_the_lines_of_a_text(place: Place) -> None:
    make_checkpoint_folder(place, "100")
    (place.work / "in.txt").write_text("one\ntwo\n")
    words = ("INPUTS=in.txt", "TEMPERATURE=0.5", "TOP_K=7")
    dry = place.rosetta(*_INFER, *words, "--dry-run", DATA="")
    assert (dry.rc, dry.argv) == (0, []), dry.err
    assert not (place.work / "out").exists()
    ran = place.rosetta(*_INFER, *words, DATA="")
    assert ran.rc == 0, ran.err
    files = [word.rpartition("/")[2] for word in ran.argv if "_file=" in word]
    assert files == ["tiny.gin", "infer.gin", "sampling.gin", "task_pairs.gin"]
    found = read_gin_bindings(ran)
    assert (found["TEMPERATURE"], found["TOP_K"]) == ("0.5", "7")
    (written,) = (place.work / "out").glob("inputs-*.jsonl")
    assert found["DATA"] == found["EVAL_DATA"] == f'"jsonl:{written}"'
    assert [json.loads(line) for line in written.read_text().splitlines()] == [
        {"idx": 1, "inputs": "one"},
        {"idx": 2, "inputs": "two"},
    ]


@pytest.mark.parametrize(
    ("kind", "where", "words"),
    [
        (errors.CONFLICT, "DATA=jsonl:x", ["DATA=jsonl:x"]),
        (errors.CONFLICT, "FT_TASK=squad1", ["FT_TASK=squad1"]),
        (errors.INVALID, "TOP_P=2", ["TOP_P=2"]),
        (errors.INVALID, "TEMPERATURE", ["TEMPERATURE=0"]),
        (errors.CONFLICT, "TOP_K=3", ["TOP_K=3", "TOP_P=0.5"]),
        (errors.UNSUPPORTED, "TOP_K=3", ["TOP_K=3", "T5_FAMILY=decoder_only"]),
        (errors.MISSING, "INPUTS=absent", ["INPUTS=absent"]),
    ],
)
def test_wrong_options_of_inference(place: Place, kind: str, where: str, words: list[str]) -> None:
    make_checkpoint_folder(place, "100")
    (place.work / "in.txt").write_text("one\n")
    ran = place.rosetta(*_INFER, "INPUTS=in.txt", *words, DATA="")
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, kind, where=where)
    assert not (place.work / "out").exists()


@pytest.mark.parametrize(
    ("what", "label", "kind", "facts"),
    [
        ("infer", "-1", "", {}),
        ("infer", "null", "", {}),
        ("infer", "true", errors.INVALID, {"where": "questions.jsonl, line 1"}),
        ("eval", "-1", errors.MISSING, {"where": "questions.jsonl", "value": 1}),
        (
            "eval",
            "null",
            errors.INVALID,
            {"where": "questions.jsonl, line 1"},
        ),
        ("eval", "false", errors.INVALID, {"where": "questions.jsonl, line 1"}),
    ],
)
def test_questions_are_read_before_anything_starts(
    place: Place, what: str, label: str, kind: str, facts: dict[str, Any]
) -> None:
    make_checkpoint_folder(place, "100")
    (place.work / "questions.jsonl").write_text(
        f'{{"premise": "a", "hypothesis": "b", "label": {label}}}\n'
    )
    settings = {**MNLI, "EVAL_DATA": f"jsonl:{place.work}/questions.jsonl"}
    ran = place.rosetta(
        "t5x", what, "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out", "EXTRA_IDS=100", **settings
    )
    assert ran.rc == (2 if kind else 0), ran.err
    if kind:
        errors.check_error(ran.error, kind, **facts)
        assert ran.argv == []
        assert not (place.work / "out").exists()
    else:
        assert read_gin_bindings(ran)["EXTRA_IDS"] == "100"


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "1e2"])
def test_a_number_of_sentinels_that_is_none_is_refused(place: Place, value: str) -> None:
    make_checkpoint_folder(place, "100")
    for words in (["eval", "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out"], ["pretrain"]):
        ran = place.rosetta("t5x", *words, **MNLI, EXTRA_IDS=value)
        assert (ran.rc, ran.argv) == (2, [])
        errors.check_error(ran.error, errors.INVALID, where="EXTRA_IDS", value=value, remedy="0")


@pytest.mark.parametrize(
    ("settings", "kind", "facts"),
    [
        (
            {"TP_SIZE": "2"},
            errors.INVALID,
            {"where": "TP_SIZE=2", "value": 2, "names": ("1", "GPUs"), "remedy": "1"},
        ),
        (
            {"TP_SIZE": "3", "XLA_FLAGS": "--xla_force_host_platform_device_count=3"},
            errors.INVALID,
            {"where": "TP_SIZE=3", "value": 3, "names": "4", "remedy": "1"},
        ),
        (
            {"BSIZE": "6", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
            errors.INVALID,
            {"where": "BSIZE=6", "value": 6, "names": ("4", "1"), "remedy": "4"},
        ),
        (
            {"PYTHON": "/nowhere/python"},
            errors.MISSING,
            {"where": "PYTHON=/nowhere/python", "value": "/nowhere/python"},
        ),
    ],
)
def test_evaluation_refused(
    place: Place, settings: dict[str, str], kind: str, facts: dict[str, Any]
) -> None:
    make_checkpoint_folder(place, "100")
    ran = place.rosetta("t5x", "eval", "CHECKPOINT_PATH=pre", "OUTPUT_DIR=out", **MNLI, **settings)
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, kind, **facts)
    assert not (place.work / "out").exists()


def test_no_start_is_kept_of_a_run_that_cannot_begin(place: Place) -> None:
    make_checkpoint_folder(place, "100")
    ran = place.rosetta("t5x", "finetune", "MODEL_DIR=pre", "PYTHON=/nowhere/python", **MNLI)
    assert ran.rc == 2
    errors.check_error(ran.error, errors.MISSING, where="PYTHON", value="/nowhere/python")
    assert not (place.work / "ft_mnli2_pre").exists()


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (
            ["t5x", "pretrain", "t5_size=tiny"],
            errors.INVALID,
            {"where": "rosetta t5x pretrain", "value": "t5_size=tiny", "remedy": "NAME=VALUE"},
        ),
        (
            ["t5x", "pretrain", "T5_SIZE=enormous"],
            errors.UNKNOWN,
            {"where": "T5_SIZE", "value": "enormous"},
        ),
        (["t5x", "improve"], errors.UNKNOWN, {"where": "rosetta t5x", "value": "improve"}),
        (
            ["t5x", "pretrain", "--enable-fp8"],
            errors.UNKNOWN,
            {"where": "rosetta t5x", "value": "--enable-fp8"},
        ),
        (["t5x", "eval", "OUTPUT_DIR=out"], errors.MISSING, {"where": "CHECKPOINT_PATH"}),
        (
            ["t5x", "eval", "OUTPUT_DIR=out", "CHECKPOINT_PATH=pre"],
            errors.MISSING,
            {"where": "FT_TASK", "remedy": ("mnli2", "squad1", "pairs")},
        ),
        (
            ["t5x", "eval", "OUTPUT_DIR=out", "CHECKPOINT_PATH=pre", "FT_TASK=pairs", "DATA="],
            errors.MISSING,
            {"where": "DATA", "remedy": "jsonl"},
        ),
        (
            ["t5x", "infer", "OUTPUT_DIR=out", "CHECKPOINT_PATH=nowhere", "FT_TASK=mnli2"],
            errors.MISSING,
            {"where": "nowhere"},
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
            errors.UNKNOWN,
            {
                "where": "T5_FAMILY, T5_SIZE",
                "value": "large",
                "names": "t6/large",
                "remedy": "byt5/base",
            },
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
            errors.INVALID,
            {"where": "corpus.txt"},
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
            errors.MISSING,
            {"where": "nowhere"},
        ),
    ],
)
def test_the_command_line_refuses_in_one_line(
    place: Place, words: list[str], kind: str, facts: dict[str, Any]
) -> None:
    make_checkpoint_folder(place, "100")
    ran = place.rosetta(*words)
    assert (ran.rc, ran.argv, ran.out) == (2, [], "")
    errors.check_error(ran.error, kind, **facts)
    assert len(ran.err.splitlines()) == 1
