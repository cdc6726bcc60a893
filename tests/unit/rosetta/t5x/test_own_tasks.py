"""FT_TASK, OBJECTIVE, OPTIMIZER and the other variables of daily work, up to the trainer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import errors
from tests.support.t5x_scripts import (
    Place,
    make_checkpoint_folder,
    place_,
    read_gin_bindings,
)

__all__ = ["place_"]  # a fixture
TASK = {"FT_TASK": "task:sums", "T5_SIZE": "tiny", "MODEL_DIR": "pre", "DATA": ""}


def list_gin_files(argv: list[str]) -> list[str]:
    return [word.rpartition("/gin/")[2] for word in argv if word.startswith("--gin_file=")]


def write_pairs(place: Place) -> str:
    (place.work / "pairs.jsonl").write_text('{"inputs": "3 May 1998", "targets": "1998-05-03"}\n')
    return "jsonl:pairs.jsonl"


def test_text_to_text_is_another_name_of_pairs(place: Place) -> None:
    make_checkpoint_folder(place, "1000")
    data = write_pairs(place)
    given = {"MODEL_DIR": "pre", "T5_SIZE": "tiny", "DATA": data, "EVAL_DATA": data}
    runs = [
        place.rosetta("t5x", "finetune", f"FT_TASK={task}", **given)
        for task in ("text_to_text", "pairs")
    ]
    assert runs[0].rc == 0, runs[0].err
    assert runs[0].argv == runs[1].argv


def test_a_task_of_seqio_brings_its_own_data(place: Place) -> None:
    make_checkpoint_folder(place, "1000")
    (place.work / "my_tasks.py").write_text("")
    ran = place.rosetta("t5x", "finetune", TASK_MODULE="my_tasks.py", **TASK)
    assert ran.rc == 0, ran.err
    assert list_gin_files(ran.argv) == ["t5_1_1/tiny.gin", "runs/finetune_seqio.gin"]
    bindings = read_gin_bindings(ran)
    assert bindings["DATA"] == '"task:sums"'
    assert bindings["TASK_MODULE"] == json.dumps(f"{place.work}/my_tasks.py")
    assert bindings["MODEL_DIR"] == f'"{place.work}/ft_sums_pre"'
    # The task is evaluated during training, too.
    assert not {"EVAL_DATA", "train.infer_eval_dataset_cfg"} & set(bindings)


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_task_of_glue_trains_on_files(place: Place, evaluated: bool) -> None:
    make_checkpoint_folder(place, "1000")
    (place.work / "cola.jsonl").write_text('{"sentence": "Go.", "label": 1}\n')
    settings = {**TASK, "FT_TASK": "task:glue_cola_v002", "DATA": "jsonl:cola.jsonl"}
    settings |= {"EVAL_DATA": "jsonl:cola.jsonl"} if evaluated else {}
    ran = place.rosetta("t5x", "finetune", **settings)
    assert ran.rc == 0, ran.err
    bindings = read_gin_bindings(ran)
    assert bindings["DATA"] == '"task:glue_cola_v002"'
    assert bindings["TRAIN_FILES"] == '"jsonl:cola.jsonl"'
    if evaluated:
        assert bindings["EVAL_DATA"] == '"jsonl:cola.jsonl"'
        assert "train.infer_eval_dataset_cfg" not in bindings
    else:
        assert bindings["EVAL_DATA"] == bindings["train.infer_eval_dataset_cfg"] == "None"
        assert "EVAL_DATA" in ran.err


@pytest.mark.parametrize(
    ("settings", "kind", "facts"),
    [
        ({"FT_TASK": "glue_sst2"}, errors.UNKNOWN, {"remedy": "task:glue_sst2_v002"}),
        ({"FT_TASK": "task:glue_ax_v002"}, errors.UNKNOWN, {"value": "ax", "remedy": "cola"}),
        ({"DATA": "csv:cola.csv"}, errors.INVALID, {"where": "DATA=", "value": "csv"}),
        ({"DATA": "jsonl:no.jsonl"}, errors.MISSING, {"where": "DATA"}),
        ({"DATA": "jsonl:bad.jsonl"}, errors.INVALID, {"where": "bad.jsonl, line 1"}),
        ({"EVAL_DATA": "jsonl:bad.jsonl"}, errors.INVALID, {"where": "bad.jsonl, line 1"}),
        ({"EVAL_DATA": "jsonl:no.jsonl"}, errors.MISSING, {"where": "EVAL_DATA"}),
        ({"INPUT_PREFIX": "x"}, errors.CONFLICT, {"where": "INPUT_PREFIX=x"}),
        ({"DATA": "", "EVAL_DATA": "jsonl:cola.jsonl"}, errors.CONFLICT, {"where": "EVAL_DATA="}),
    ],
)
def test_files_that_glue_cannot_train_on_are_one_line(
    place: Place, settings: dict[str, str], kind: str, facts: dict[str, Any]
) -> None:
    make_checkpoint_folder(place, "1000")
    (place.work / "cola.jsonl").write_text('{"sentence": "Go.", "label": 1}\n')
    (place.work / "bad.jsonl").write_text('{"sentence": "Go.", "label": 2}\n')
    good = {**TASK, "FT_TASK": "task:glue_cola_v002", "DATA": "jsonl:cola.jsonl"}
    ran = place.rosetta("t5x", "finetune", **{**good, **settings})
    assert (ran.rc, ran.argv) == (2, [])
    assert len(ran.err.splitlines()) == 1
    errors.check_error(ran.error, kind, **facts)


@pytest.mark.parametrize("program", ["eval", "infer"])
def test_a_task_of_seqio_is_evaluated_and_answered(place: Place, program: str) -> None:
    make_checkpoint_folder(place, "1000")
    ran = place.rosetta(
        "t5x",
        program,
        "OUTPUT_DIR=out",
        "CHECKPOINT_PATH=pre",
        **{**TASK, "MODEL_DIR": "", "TASK_MODULE": "package.tasks"},
    )
    assert ran.rc == 0, ran.err
    assert list_gin_files(ran.argv)[-1] == "runs/task_seqio.gin"
    bindings = read_gin_bindings(ran)
    assert (bindings["DATA"], bindings["TASK_MODULE"]) == ('"task:sums"', '"package.tasks"')


@pytest.mark.parametrize(
    ("settings", "kind", "facts"),
    [
        ({"FT_TASK": "pair"}, errors.UNKNOWN, {"value": "pair", "remedy": "pairs"}),
        ({"FT_TASK": "sums"}, errors.UNKNOWN, {"value": "sums", "remedy": "task:NAME"}),
        ({"FT_TASK": "task:"}, errors.UNKNOWN, {"value": "task:", "remedy": "task:NAME"}),
        (
            {"DATA": "jsonl:pairs.jsonl"},
            errors.CONFLICT,
            {"where": "DATA=jsonl:pairs.jsonl", "names": "FT_TASK=task:sums", "remedy": "pairs"},
        ),
        (
            {"TASK_MODULE": "nowhere.py"},
            errors.MISSING,
            {"remedy": "Python file"},
        ),
        (
            {"OPTIMIZER": "adafactor", "WEIGHT_DECAY": "0.1"},
            errors.CONFLICT,
            {"where": "WEIGHT_DECAY=0.1", "remedy": "weight_decay_rate"},
        ),
        ({"OPTIMIZER": "sgd"}, errors.INVALID, {"value": "sgd", "remedy": "adafactor"}),
        ({"LR_SCHEDULE": "constant"}, errors.INVALID, {"value": "constant", "remedy": "cosine"}),
        ({"LAST_RATE": "1.5"}, errors.INVALID, {"where": "LAST_RATE", "value": "1.5"}),
        ({"STATS_PERIOD": "0"}, errors.INVALID, {"where": "STATS_PERIOD", "value": "0"}),
        ({"FREEZE": "encoder,("}, errors.INVALID, {"where": "FREEZE=(", "value": "("}),
        ({"LORA_ALPHA": "4"}, errors.CONFLICT, {"where": "LORA_ALPHA=4", "remedy": "LORA_RANK"}),
        (
            {"LORA_RANK": "4", "LORA_TARGETS": "q"},
            errors.INVALID,
            {"where": "LORA_TARGETS", "remedy": "query"},
        ),
        (
            {"EARLY_STOP_PATIENCE": "2", "CHECKPOINT_DISABLE": "1", "KEEP_BEST": "loss"},
            errors.CONFLICT,
            {"where": "KEEP_BEST=loss", "remedy": "CHECKPOINT_DISABLE"},
        ),
    ],
)
def test_what_does_not_fit_is_one_line(
    place: Place, settings: dict[str, str], kind: str, facts: dict[str, Any]
) -> None:
    make_checkpoint_folder(place, "1000")
    write_pairs(place)
    ran = place.rosetta("t5x", "finetune", **{**TASK, **settings})
    assert (ran.rc, ran.argv) == (2, [])
    assert len(ran.err.splitlines()) == 1
    errors.check_error(ran.error, kind, **facts)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"OBJECTIVE": "prefix_lm"}, {"OBJECTIVE": '"prefix_lm"'}),
        ({"STATS_PERIOD": "20"}, {"STATS_PERIOD": "20"}),
        ({"STATS_PERIOD": "20", "BENCHMARK_MODE": "1"}, {"STATS_PERIOD": "20"}),
        ({"WEIGHT_DECAY": "0.1"}, {"optimizer.adamw.weight_decay": "0.1"}),
        ({"OPTIMIZER": "adafactor"}, {"LEARNING_RATE": "0.01"}),
        (
            {"OPTIMIZER": "adamw_rms", "LR_SCHEDULE": "cosine", "WEIGHT_DECAY": "0.1"},
            {"LEARNING_RATE": "0.01", "optimizer.adamw_rms.weight_decay": "0.1"},
        ),
        (
            {"OPTIMIZER": "muon", "WEIGHT_DECAY": "0.1", "LAST_RATE": "0"},
            {"muon.muon.weight_decay": "0.1", "LAST_RATE": "0.0", "LEARNING_RATE": None},
        ),
        ({"OPTIMIZER": "adafactor", "LEARNING_RATE": "0.5"}, {"LEARNING_RATE": "0.5"}),
        ({"FREEZE": "encoder,.*norm"}, {"FREEZE": '"encoder,.*norm"'}),
        (
            {"KEEP_BEST": "loss", "EVAL_DATA": "text:corpus.txt", "EARLY_STOP_PATIENCE": "2"},
            {"KEEP_BEST": '"loss"', "EARLY_STOP_PATIENCE": "2", "KEEP": None},  # of the gin file
        ),
    ],
)
def test_variables_of_pretraining_reach_the_trainer(
    place: Place, settings: dict[str, str], expected: dict[str, str]
) -> None:
    ran = place.rosetta("t5x", "pretrain", "T5_SIZE=tiny", "MODEL_DIR=out", **settings)
    assert ran.rc == 0, ran.err
    bindings = read_gin_bindings(ran)
    assert {name: bindings.get(name) for name in expected} == expected
    optimizer, schedule = settings.get("OPTIMIZER"), settings.get("LR_SCHEDULE")
    expected_files = [f"optimizers/{optimizer}.gin"] if optimizer else []
    expected_files += [f"runs/{schedule}_decay.gin"] if schedule else []
    files = [file for file in list_gin_files(ran.argv) if "pile_pretrain" not in file]
    assert files == expected_files


def test_one_period_is_fitted_to_the_other(place: Place) -> None:
    ran = place.rosetta(
        "t5x",
        "pretrain",
        "T5_SIZE=tiny",
        "MODEL_DIR=out",
        EVAL_PERIOD="700",
        EVAL_DATA=f"text:{place.work}/corpus.txt",
    )
    assert ran.rc == 0, ran.err
    bindings = read_gin_bindings(ran)
    assert (bindings["EVAL_PERIOD"], bindings["SAVE_PERIOD"]) == ("700", "6300")
    assert sum("SAVE_PERIOD" in line for line in ran.said) == 1


def test_finetuning_takes_adapters_and_keeps_its_best_checkpoint(place: Place) -> None:
    make_checkpoint_folder(place, "1000")
    write_pairs(place)
    settings = {
        "LORA_RANK": "4",
        "LORA_ALPHA": "8",
        "LORA_TARGETS": "query, wo",
        "KEEP_BEST": "accuracy",
        "EVAL_PERIOD": "50",
    }
    ran = place.rosetta("t5x", "finetune", **{**TASK, **settings})
    assert ran.rc == 0, ran.err
    bindings = read_gin_bindings(ran)
    expected = {
        "LORA_RANK": "4",
        "LORA_ALPHA": "8.0",
        "LORA_TARGETS": '"query,wo"',
        "KEEP_BEST": '"accuracy"',
        "KEEP": "1",
        "SAVE_PERIOD": "50",
    }
    assert {name: bindings.get(name) for name in expected} == expected
    assert "RESTORE_OPTIMIZER" not in bindings


def test_pretraining_adapts_only_trained_weights(place: Place) -> None:
    words = ("t5x", "pretrain", "T5_SIZE=tiny", "MODEL_DIR=out", "LORA_RANK=4")
    ran = place.rosetta(*words)
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(
        ran.error, errors.MISSING, where="LORA_RANK=4", remedy="INITIAL_CHECKPOINT_PATH"
    )
    make_checkpoint_folder(place, "1000")
    ran = place.rosetta(*words, INITIAL_CHECKPOINT_PATH="pre")
    assert ran.rc == 0, ran.err
    bindings = read_gin_bindings(ran)
    assert (bindings["LORA_RANK"], bindings["RESTORE_OPTIMIZER"]) == ("4", "False")
