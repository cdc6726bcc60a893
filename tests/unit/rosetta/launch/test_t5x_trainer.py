"""What the tests of the scripts do not see from outside: folders, devices, checks by themselves."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import gpu_query
from rosetta.core.errors import UserError
from rosetta.core.not_known import NOT_KNOWN
from rosetta.data import data_recipe, pipeline
from rosetta.launch import t5x_trainer
from rosetta.t5x.run import (
    checkpoint_record,
    folders,
    gin_files,
    gin_reader,
    network_fields,
    preflight,
    settings,
)
from rosetta.t5x.run.gin_text import Reference
from rosetta.t5x.run.settings import Settings
from tests.support import errors, shipped_gin

MINE = """
include 'rosetta/t5x/gin/t5_1_1/tiny.gin'
include 'rosetta/t5x/gin/runs/pretrain_pile.gin'
DATA = 'synthetic'
"""


def _settings(**variables: str) -> Settings:
    return settings.read_script_settings("multiprocess_pretrain_pile", [], variables, 1)


def _checkpoint(folder: Path, step: int) -> str:
    (folder / f"checkpoint_{step}").mkdir(parents=True)
    return str(folder / f"checkpoint_{step}")


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    assert folders.find_newest_checkpoint(str(tmp_path / "nowhere")) is None
    _checkpoint(tmp_path, 9)
    newest = _checkpoint(tmp_path, 10)
    (tmp_path / "checkpoint_11.orbax-checkpoint-tmp-1").mkdir()
    assert folders.find_newest_checkpoint(str(tmp_path)) == newest


def test_the_start_is_kept_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folders.write_start_file(str(out), "/pre/checkpoint_5")
    folders.write_start_file(str(out), "/pre/checkpoint_5")
    assert [(path.name, path.read_text()) for path in (out / "rosetta").iterdir()] == [
        ("start", "/pre/checkpoint_5")
    ]
    folders.write_start_file("gs://bucket/out", "/pre/checkpoint_5")
    assert not Path("gs:").exists()


def test_a_start_that_is_gone_is_said(tmp_path: Path) -> None:
    pre = tmp_path / "pre"
    _checkpoint(pre, 10)
    out, start = folders.choose_finetuning_folders(str(pre), "mnli2", {}, "x")
    assert (out, start) == (f"{tmp_path}/ft_mnli2_pre", f"{pre}/checkpoint_10")
    folders.write_start_file(out, f"{pre}/checkpoint_5")
    _checkpoint(Path(out), 12)
    with errors.expect_user_error(errors.MISSING, where="ft_mnli2_pre"):
        folders.choose_finetuning_folders(str(pre), "mnli2", {}, "x")
    assert folders.choose_finetuning_folders(
        str(pre), "mnli2", {"INITIAL_CHECKPOINT_PATH": f"{pre}/checkpoint_10"}, "x"
    ) == (out, f"{pre}/checkpoint_10")


@pytest.mark.parametrize(
    ("split", "fields", "number"),
    [
        ("4", {}, "6"),
        ("8", {"num_heads": 8, "mlp_dim": 100}, "100"),
        ("2", {"vocab_size": 101}, "101"),
    ],
)
def test_what_lies_over_the_model_axis_divides_by_it(
    split: str, fields: dict[str, int], number: str
) -> None:
    given = _settings(NUM_GPUS="8", TP_SIZE=split)
    values = {f"network.T5Config.{name}": value for name, value in fields.items()}
    configuration = shipped_gin.read_pretraining({"MIXTURE_OR_TASK_NAME": "mine", **values})
    with errors.expect_user_error(
        errors.INVALID, where=f"TP_SIZE={split}", names=number, remedy="1"
    ):
        preflight.check_training(given, configuration, {})
    preflight.check_training(_settings(NUM_GPUS="8"), configuration, {})


def test_a_split_of_another_network_is_left_to_the_trainer() -> None:
    given = _settings(NUM_GPUS="8", TP_SIZE="4")
    for values in (
        {"MODEL": Reference("mine.Model")},
        {"model.EncoderDecoderModel.module": Reference("mine.Network")},
        {"network.Transformer.config": Reference("mine.Config")},
        {"network.Transformer.config": Reference("rosetta.t5x.network.T5Config", scope="wide")},
        {"partitioning.PjitPartitioner.logical_axis_rules": ()},
        {"network.T5Config.num_heads": Reference("mine.heads")},
    ):
        preflight.check_training(
            given, shipped_gin.read_pretraining({"MIXTURE_OR_TASK_NAME": "mine", **values}), {}
        )


def test_gin_files_of_another_tree_are_refused() -> None:
    with errors.expect_user_error(errors.DIFFERS, where="T5X_DIR"):
        preflight.check_training(_settings(NUM_GPUS="8"), gin_reader.Configuration(), {})


def test_data_is_checked_in_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", "/before")
    values = {"DATA": "tfds:c4/en", "VOCAB": "byte"}
    with errors.expect_user_error(errors.UNKNOWN, where=f"TFDS_DATA_DIR={tmp_path}", value="c4/en"):
        preflight.check_data(
            shipped_gin.read_pretraining(values), {"TFDS_DATA_DIR": str(tmp_path)}, trains=True
        )
    assert os.environ["TFDS_DATA_DIR"] == "/before"
    for open_value in (
        {"MIXTURE_OR_TASK_NAME": "a task of SeqIO"},
        {"DATA": Reference("mine.data")},
        {"VOCABULARY": Reference("mine.vocabulary")},
        {"EXTRA_IDS": Reference("mine.sentinels")},
        {"MEAN_NOISE_SPAN_LENGTH": Reference("mine.span")},
    ):
        preflight.check_data(
            shipped_gin.read_pretraining({**values, **open_value}), {}, trains=True
        )


def test_the_first_record_is_read_before_training(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain words\n")
    values = {"DATA": f"jsonl:{tmp_path}/a.txt", "VOCAB": "byte"}
    configuration = shipped_gin.read_configuration(
        "byt5/small", "runs/pretrain_pile", values=values
    )
    preflight.check_data(configuration.bind({"utils.DatasetConfig.task_feature_lengths": {}}), {})
    with errors.expect_user_error(errors.INVALID, where="a.txt, line 1", names="JSON"):
        preflight.check_data(configuration, {}, trains=True)
    (tmp_path / "a.txt").write_text('{"body": "words"}\n')
    preflight.check_data(configuration.bind({"TEXT_FIELD": "body"}), {}, trains=True)


def test_a_run_that_goes_on_makes_the_rows_it_began_with(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words of a text\n" * 100)
    values = {
        "DATA": f"text:{tmp_path}/a.txt",
        "MEAN_NOISE_SPAN_LENGTH": 20.0,
        "TASK_FEATURE_LENGTHS": {"inputs": 64, "targets": 32},
    }
    configuration = shipped_gin.read_pretraining(values)
    batches = pipeline.Batches(
        data_recipe.Recipe(
            str(values["DATA"]), "span_corruption", "byte", 100, 64, 32, mean_noise_span_length=20.0
        ),
        4,
    )
    checkpoint = _checkpoint(tmp_path / "run", 5)
    preflight.check_resumed_data(checkpoint, "", configuration)  # it says nothing of itself
    checkpoint_record.write_record(
        str(tmp_path / "run"),
        checkpoint_record.Record(
            5, scale_attn_logits=True, data=json.loads(json.dumps(batches.make_state(5)))
        ),
    )
    preflight.check_resumed_data(checkpoint, "", configuration)
    other = configuration.bind({"TASK_FEATURE_LENGTHS": {"inputs": 60, "targets": 32}})
    for changed, names in (
        (other, ("inputs 64", "60")),
        (configuration.bind({"PACK": True}), ("pack False", "True")),
    ):
        with errors.expect_user_error(errors.DIFFERS, where=f"DATA={values['DATA']}", names=names):
            preflight.check_resumed_data(checkpoint, "", changed)
    longer = pipeline.Batches(
        data_recipe.Recipe(
            str(values["DATA"]), "span_corruption", "byte", 100, 60, 32, mean_noise_span_length=20.0
        ),
        4,
    )
    with errors.expect_user_error(errors.DIFFERS, where="DATA=", names=("inputs 64", "60")):
        longer.check_same_data(batches.make_state(5))
    preflight.check_resumed_data(
        checkpoint, "/pre/checkpoint_3", other
    )  # a finetuning's start, in the same folder
    preflight.check_resumed_data(checkpoint, "", other.bind({"DATA": "task:mine"}))
    lengths = {"TASK_FEATURE_LENGTHS": Reference("mine.lengths")}
    preflight.check_resumed_data(checkpoint, "", other.bind(lengths))


@pytest.mark.parametrize("vocab", ["ids:40000", "ids:32129"])
def test_a_vocabulary_with_more_ids_than_the_model_has_rows(vocab: str) -> None:
    configuration = shipped_gin.read_pretraining({"DATA": "synthetic", "VOCAB": vocab})
    with errors.expect_user_error(errors.TOO_BIG, names="32128"):
        preflight.check_data(configuration, {}, trains=True)


def test_a_dry_run_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = tmp_path / gin_files.EXAMPLE_FOLDER
    examples.mkdir(parents=True)
    (tmp_path / "t5x" / "train.py").touch()
    (examples / "mine_pile_pretrain.gin").write_text(MINE)
    monkeypatch.setattr(gpu_query, "detect_gpus", lambda _: [])
    for name, value in {
        "JAX_PLATFORMS": "cpu",
        "HF_TOKEN": "hf_secret",
        "T5_SIZE": "mine",
        "MODEL_DIR": str(tmp_path / "m"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert t5x_trainer.main(["multiprocess_pretrain_pile", str(tmp_path), "--dry-run"]) == 0
    out = capsys.readouterr().out
    shown = json.loads(out)
    assert shown["env"]["JAX_PLATFORMS"] == "cpu"
    assert f'--gin.MODEL_DIR="{tmp_path}/m"' in shown["argv"]
    assert "hf_secret" not in out
    assert not (tmp_path / "m").exists()
    wanted = t5x_trainer.make_command("multiprocess_pretrain_pile", [], os.environ, str(tmp_path))
    assert wanted.env["HF_TOKEN"] == os.environ["HF_TOKEN"], "it reaches the trainer all the same"


def test_a_python_of_no_environment_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(t5x_trainer, "make_command", lacking)
    assert t5x_trainer.main(["multiprocess_pretrain_pile", "/tree"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'numpy'; put a baked environment's bin first on PATH" in line


@pytest.mark.parametrize(
    ("error", "code", "facts"),
    [
        (ValueError("odd"), 3, ("settings: ValueError: odd; ", "ROSETTA_DEBUG=1")),
        (KeyboardInterrupt(), 130, ("settings: interrupted; ",)),
        (PermissionError(13, "Permission denied", "/a"), 2, ("/a: Permission denied; ",)),
        (OSError("odd"), 2, ("settings: odd; ",)),
    ],
)
def test_whatever_goes_wrong_is_one_line_and_a_status(
    error: BaseException,
    code: int,
    facts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(t5x_trainer, "make_command", fail)
    monkeypatch.delenv("ROSETTA_DEBUG", raising=False)
    assert t5x_trainer.main(["multiprocess_pretrain_pile", "/tree"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"multiprocess_pretrain_pile.sh: {facts[0]}")
    assert line.endswith(facts[-1]) or len(facts) == 1


@pytest.mark.parametrize(
    ("values", "kind", "facts"),
    [
        (
            {"SAVE_PERIOD": 300, "EVAL_PERIOD": 1000},
            errors.CONFLICT,
            {
                "where": "SAVE_PERIOD=300",
                "value": 300,
                "names": "EVAL_PERIOD=1000",
                "remedy": "EVAL_PERIOD=300",
            },
        ),
        (
            {"utils.SaveCheckpointConfig.period": 300, "EVAL_PERIOD": 1000},
            errors.CONFLICT,
            {"where": "SAVE_PERIOD=300", "names": "EVAL_PERIOD=1000"},
        ),
        ({"SAVE_PERIOD": 300, "EVAL_PERIOD": 900}, "", {}),
        ({"SAVE_PERIOD": 1000, "EVAL_PERIOD": 500}, "", {}),
        ({"SAVE_PERIOD": 300, "EVAL_PERIOD": 1000, "EVAL_DATA": None}, "", {}),
        ({"SAVE_PERIOD": 300, "EVAL_PERIOD": Reference("mine.period")}, "", {}),
        (
            {
                "SAVE_PERIOD": 300,
                "utils.SaveCheckpointConfig.period": 500,
                "EVAL_PERIOD": 1000,
            },
            "",
            {},
        ),
        (
            {"SAVE_PERIOD": 300, "EVAL_PERIOD": 1000, "utils.CheckpointConfig.save": None},
            "",
            {},
        ),
    ],
)
def test_periods_that_t5x_refuses_are_refused_before_it_starts(
    values: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    configuration = shipped_gin.read_pretraining({"EVAL_DATA": "text:x", **values})
    if not kind:
        preflight.check_periods(configuration)
        return
    with errors.expect_user_error(kind, **facts):
        preflight.check_periods(configuration)


def test_a_run_that_continues_in_another_precision_is_named(tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path, 5)
    checkpoint_record.write_record(
        str(tmp_path),
        checkpoint_record.Record(
            step=5,
            scale_attn_logits=True,
            config={"dtype": "float32", "logits_dtype": "float32"},
        ),
    )
    checkpoint_record.distribute_records(str(tmp_path))
    without_record = _checkpoint(tmp_path, 6)
    single = {"DTYPE": "float32"}
    narrow_logits = {"network.T5Config.logits_dtype": "bfloat16"}
    for bindings, variables in (
        ({}, ["PREC"]),
        (single, []),
        ({**single, **narrow_logits}, ["LOGITS_DTYPE"]),
        (narrow_logits, ["PREC", "LOGITS_DTYPE"]),
    ):
        configuration = shipped_gin.read_pretraining(bindings)
        lines = preflight.describe_precision_change(checkpoint, configuration)
        assert [line.rpartition("(")[2].partition("=float32")[0] for line in lines] == variables
        assert preflight.describe_precision_change(without_record, configuration) == ()


@pytest.mark.parametrize(
    ("values", "begun", "step", "kind", "facts"),
    [
        (
            {"TRAIN_STEPS": 1},
            0,
            350,
            errors.CONFLICT,
            {"where": "TRAIN_STEPS=1", "names": ("MODEL_DIR", "350")},
        ),
        (
            {"TRAIN_STEPS": 350},
            0,
            350,
            "",
            {"line": ("TRAIN_STEPS=350", "MODEL_DIR", "350")},
        ),
        ({"TRAIN_STEPS": 351}, 0, 350, "", {}),
        ({"TRAIN_STEPS": Reference("mine.steps"), "FT_STEPS": 5}, 100, 350, "", {}),
        ({"TRAIN_STEPS": 1, "train.relative_steps": 5}, 0, 350, "", {}),
        (
            {"FT_STEPS": 5},
            100,
            106,
            errors.CONFLICT,
            {"where": "FT_STEPS=5", "names": ("MODEL_DIR", "106")},
        ),
        (
            {"FT_STEPS": 5},
            100,
            105,
            "",
            {"line": ("FT_STEPS=5", "MODEL_DIR", "105")},
        ),
        ({"FT_STEPS": 5}, 100, 104, "", {}),
        ({"FT_STEPS": 5}, 0, 104, "", {}),
    ],
)
def test_a_run_that_ends_before_its_checkpoint_is_refused(
    values: dict[str, Any], begun: int, step: int, kind: str, facts: dict[str, Any]
) -> None:
    made = shipped_gin.read_pretraining if "TRAIN_STEPS" in values else shipped_gin.read_finetuning
    configuration = made(values)
    if not kind:
        lines = preflight.check_last_step(configuration, begun, step, "MODEL_DIR")
        assert len(lines) == len(facts)
        assert all(fact in lines[0] for fact in facts.get("line", ()))
        return
    with errors.expect_user_error(kind, **facts):
        preflight.check_last_step(configuration, begun, step, "MODEL_DIR")


@pytest.mark.parametrize(("steps", "status"), [("1", 2), ("350", 0), ("351", 0)])
def test_the_launcher_compares_train_steps_with_the_checkpoint(
    steps: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    examples = tmp_path / gin_files.EXAMPLE_FOLDER
    examples.mkdir(parents=True)
    (tmp_path / "t5x" / "train.py").touch()
    (examples / "mine_pile_pretrain.gin").write_text(MINE)
    monkeypatch.setattr(gpu_query, "detect_gpus", lambda _: [])
    _checkpoint(tmp_path / "m", 350)
    for name, value in {
        "JAX_PLATFORMS": "cpu",
        "T5_SIZE": "mine",
        "MODEL_DIR": str(tmp_path / "m"),
        "TRAIN_STEPS": steps,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert t5x_trainer.main(["multiprocess_pretrain_pile", str(tmp_path), "--dry-run"]) == status
    output = capsys.readouterr()
    assert ("MODEL_DIR is at step 350" in output.out + output.err) == (steps != "351")


@pytest.mark.parametrize(
    "wrong",
    [
        "LEARNING_RATE=٣",
        "LEARNING_RATE=1_0",
        "LEARNING_RATE=nan",
        "LOSS_SPIKE=٣",
        "ROSETTA_DATA_WORKERS=many",
        "ROSETTA_DOCTOR=maybe",
        "XLA_PYTHON_CLIENT_MEM_FRACTION=lots",
    ],
)
def test_values_that_a_run_would_stumble_over_are_refused(wrong: str) -> None:
    name, _, value = wrong.partition("=")
    with pytest.raises(UserError) as caught:
        _settings(**{name: value})
    assert caught.value.where.partition("=")[0] == name


@pytest.mark.parametrize("size", ["tiny", "small", "base", "large", "xl", "xxl"])
@pytest.mark.parametrize("script", ["multiprocess_pretrain_pile", "singlenode_ft_frompile"])
def test_every_value_that_a_check_asks_for_is_known_of_our_files(
    script: str, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(shipped_gin.OVERLAY, tree)
    (tree / "t5x" / "train.py").touch()
    checkpoint = _checkpoint(tmp_path / "start", 100)
    record: dict[str, Any] = {
        "id": "1",
        "question": "?",
        "context": "b",
        "premise": "a",
        "hypothesis": "b",
    }
    record |= {"label": 0, "answers": {"text": ["b"], "answer_start": [0]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    asked: dict[str, object] = {}
    read_value = gin_reader.Configuration.value

    def record_value(configuration: gin_reader.Configuration, name: str) -> object:
        asked[name] = read_value(configuration, name)
        return asked[name]

    monkeypatch.setattr(gin_reader.Configuration, "value", record_value)
    monkeypatch.setattr(gpu_query, "detect_gpus", lambda _: [])
    variables = {
        "JAX_PLATFORMS": "cpu",
        "T5_SIZE": size,
        "MODEL_DIR": str(tmp_path / "start" if "_ft_" in script else tmp_path / "m"),
        "INITIAL_CHECKPOINT_PATH": checkpoint,
        "DATA": f"jsonl:{tmp_path}/a.jsonl" if "_ft_" in script else "synthetic",
        "EVAL_DATA": f"jsonl:{tmp_path}/a.jsonl" if "_ft_" in script else "synthetic",
        "VOCAB": "byte",
        "ENC_SL": "64",
    }
    t5x_trainer.make_command(script, [], variables, str(tree))
    unknown = {name for name, value in asked.items() if value is NOT_KNOWN}
    assert unknown == set()
    made_later = {
        name.rpartition(".")[2]
        for name, value in asked.items()
        if isinstance(value, Reference) and name.startswith(f"{network_fields.T5_CONFIG}.")
    }
    assert made_later == ({"vocab_size"} if size == "tiny" else set())
    assert {"train/t5x.utils.DatasetConfig.task_feature_lengths", "MIXTURE_OR_TASK_NAME"} <= set(
        asked
    )
