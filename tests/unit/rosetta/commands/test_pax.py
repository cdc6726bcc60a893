"""The commands `rosetta pax` beside the scripts; see tests/support/pax_scripts.py."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from tests.support import errors, t5x_scripts
from tests.support.pax_scripts import H100, Place, place_

__all__ = ["place_"]  # a fixture


class TestCommand:
    def test_it_does_what_the_scripts_do(self, place: Place) -> None:
        ran = place.run_rosetta(
            "pax",
            "train",
            "CONFIG=Synthetic5B",
            "fdl.NUM_LAYERS=2",
            "LOG_DIR=l",
            "NUM_GPUS=8",
            "fdl.ICI_MESH_SHAPE=[1, 8, 1]",
            "DCN_MESH_SHAPE=[1,1,1]",
        )
        assert ran.rc == 0, ran.err
        assert ran.hyper == {
            "FPROP_DTYPE": '"bfloat16"',
            "NUM_LAYERS": "2",
            "ICI_MESH_SHAPE": "[1,8,1]",
            "DCN_MESH_SHAPE": "[1,1,1]",
        }
        assert place.run_rosetta("pax", "pile", "DATA=text:corpus.txt", RC="6").rc == 6

    def test_dry_run(self, place: Place) -> None:
        ran = place.rosetta("pax", "boolq", "DATA=jsonl:boolq.jsonl", "LOG_DIR=l", "--dry-run")
        assert (ran.rc, ran.argv) == (0, [])
        assert [" --mode=eval " in line for line in ran.out.splitlines() if " --mode=" in line] == [
            False,
            True,
        ]
        assert (
            len(
                json.loads(
                    place.rosetta(
                        "pax", "boolq", "DATA=jsonl:boolq.jsonl", "--dry-run", "--json"
                    ).out
                )["result"]["runs"]
            )
            == 2
        )

    @pytest.mark.parametrize(
        ("words", "kind", "facts"),
        [
            (
                ["train", "CONFGI=Synthetic5B"],
                errors.UNKNOWN,
                {"where": "pax train", "value": "CONFGI", "remedy": "CONFIG"},
            ),
            (
                ["train", "QQQ=2"],
                errors.UNKNOWN,
                {
                    "where": "pax train",
                    "value": "QQQ",
                    "remedy": ("pax train", "--help"),
                },
            ),
            (
                ["train", "NUM_LAYERS=2"],
                errors.UNKNOWN,
                {
                    "where": "pax train",
                    "value": "NUM_LAYERS",
                    "remedy": ("hyper-parameter", "fdl.NAME=VALUE"),
                },
            ),
            (
                ["train", "config=Synthetic5B"],
                errors.INVALID,
                {"where": "pax train", "value": "config=Synthetic5B"},
            ),
            (["improve"], errors.UNKNOWN, {"where": "rosetta pax", "value": "improve"}),
            (
                ["train", "CONFIG=GPT6B"],
                errors.UNKNOWN,
                {"where": "CONFIG", "value": "GPT6B", "remedy": "GPT5B"},
            ),
        ],
    )
    def test_refused(
        self, place: Place, words: list[str], kind: str, facts: dict[str, Any]
    ) -> None:
        ran = place.rosetta("pax", *words)
        assert (ran.rc, ran.argv) == (2, [])
        errors.check_error(ran.error, kind, **facts)
        assert len(ran.err.splitlines()) == 1


def test_the_word_for_the_platform_wins(place: Place) -> None:
    """It reaches the trainer, and a machine without GPUs will do."""
    words = ("CONFIG=Synthetic5B", "JAX_PLATFORMS=cpu")
    ran = place.rosetta("pax", "train", *words, JAX_PLATFORMS="")
    assert ran.rc == 0, ran.err
    assert ran.env["JAX_PLATFORMS"] == "cpu"


def test_the_word_for_the_gpus_wins(place: Place) -> None:
    """It chooses among the GPUs, or hides all of them."""
    environment = {**place.cards(*[H100] * 4), "CUDA_VISIBLE_DEVICES": "3"}
    words = ("pax", "train", "CONFIG=Synthetic5B")
    ran = place.rosetta(*words, "CUDA_VISIBLE_DEVICES=0,1", "NUM_GPUS=2", **environment)
    assert ran.rc == 0, ran.err
    assert ran.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    environment["JAX_PLATFORMS"] = ""
    ran = place.rosetta(*words, "CUDA_VISIBLE_DEVICES=-1", **environment)
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, errors.MISSING, where="CUDA_VISIBLE_DEVICES=-1", names="hides")


def test_an_environment_without_paxml(place: Place) -> None:
    if importlib.util.find_spec("paxml"):
        pytest.skip("NOT CHECKED here: this environment has Paxml; checked without one")
    (place.work / "paxml.py").touch()
    ran = place.rosetta("pax", "train", "CONFIG=Synthetic5B", "--dry-run", PYTHON="")
    errors.check_error(ran.error, errors.MISSING, where="rosetta pax", names="paxml")
    assert (
        place.rosetta(
            "pax",
            "train",
            "CONFIG=Synthetic5B",
            "--dry-run",
            PYTHON="",
            PYTHONPATH=f"{place.work}:{t5x_scripts.ROOT}",
        ).rc
        == 0
    )


@pytest.mark.parametrize(
    ("setting", "kind", "facts"),
    [
        ("MAX_STEPS=-1", errors.INVALID, {"where": "MAX_STEPS", "value": "-1", "remedy": "0"}),
        ("MAX_STEPS=abc", errors.INVALID, {"where": "MAX_STEPS", "value": "abc", "remedy": "0"}),
        ("MAX_SEQ_LEN=-1", errors.INVALID, {"where": "MAX_SEQ_LEN", "value": "-1", "remedy": "2"}),
        ("fdl.NUM_LAYERS=0", errors.INVALID, {"where": "NUM_LAYERS", "value": 0, "remedy": "1"}),
        (
            "LEARNING_RATE=fast",
            errors.INVALID,
            {"where": "LEARNING_RATE", "value": "fast", "remedy": ("0", "1e-4")},
        ),
        (
            "LEARNING_RATE=-1",
            errors.INVALID,
            {"where": "LEARNING_RATE", "value": "-1", "remedy": ("0", "1e-4")},
        ),
        (
            "NUM_MICROBATCHES=0",
            errors.INVALID,
            {"where": "NUM_MICROBATCHES", "value": "0", "remedy": "1"},
        ),
        (
            "LEARNING_RATE=1_0",
            errors.INVALID,
            {"where": "LEARNING_RATE", "value": "1_0", "remedy": ("0", "1e-4")},
        ),
        (
            "LEARNING_RATE=٣",
            errors.INVALID,
            {"where": "LEARNING_RATE", "value": "٣", "remedy": ("0", "1e-4")},
        ),
        ("MAX_STEPS=0x10", errors.INVALID, {"where": "MAX_STEPS", "value": "0x10"}),
        (
            "ROSETTA_DOCTOR=maybe",
            errors.INVALID,
            {"where": "ROSETTA_DOCTOR", "value": "maybe", "remedy": ("0", "1")},
        ),
        (
            "XLA_PYTHON_CLIENT_MEM_FRACTION=lots",
            errors.INVALID,
            {"where": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "lots", "remedy": "0"},
        ),
        (
            "DCN_MESH_SHAPE=[1,2,1]",
            errors.CONFLICT,
            {"where": "ICI_MESH_SHAPE=[8,1,1] x DCN_MESH_SHAPE=[1,2,1]", "value": 16},
        ),
    ],
)
@pytest.mark.parametrize("config", ["Synthetic126M", "mine.Experiment"])
def test_wrong_numbers_are_refused_before_jax_starts(
    setting: str, kind: str, facts: dict[str, Any], config: str, place: Place
) -> None:
    ran = place.rosetta(
        "pax",
        "train",
        f"CONFIG={config}",
        "LOG_DIR=l",
        "NUM_GPUS=8",
        "ICI_MESH_SHAPE=[8,1,1]",
        setting,
        "--dry-run",
    )
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, kind, **facts)
    assert len(ran.err.splitlines()) == 1


def test_an_experiment_of_the_users_own_need_not_read_data(place: Place) -> None:
    ran = place.rosetta("pax", "train", "CONFIG=mine.Experiment", "LOG_DIR=l", VOCAB_PATH="")
    assert ran.rc == 0, ran.err
    assert "--fdl_config=mine.Experiment" in ran.argv


@pytest.mark.parametrize(
    ("command", "data", "more"),
    [
        ("lambada", "text:corpus.txt", {}),
        ("boolq", "jsonl:questions.jsonl", {"EVAL_ONLY": "1"}),
    ],
)
def test_an_evaluation_needs_evaluation_data_alone(
    command: str, data: str, more: dict[str, str], place: Place
) -> None:
    (place.work / "questions.jsonl").write_text("{}\n", encoding="utf-8")
    (place.work / "l/checkpoints/checkpoint_00000003").mkdir(parents=True)
    settings = [
        *(f"{name}={value}" for name, value in more.items()),
        "LOG_DIR=l",
        f"EVAL_DATA={data}",
    ]
    settings += ["CHECKPOINT_RESTORE_PATH=l"] if more else []
    ran = place.rosetta("pax", command, *settings, DATA="")
    assert ran.rc == 0, ran.err
    assert (ran.env["EVAL_DATA"], ran.env["DATA"]) == (data, data)


@pytest.mark.parametrize(
    ("settings", "evaluates"),
    [
        ({}, False),
        ({"EVAL_DATA": "text:corpus.txt"}, True),
        ({"ROSETTA_FDL": '--fdl.EVAL_DATA="text:corpus.txt"'}, True),
        ({"EVAL_DATA": "text:corpus.txt", "ADDITIONAL_ARGS": "--noeval_on_test"}, False),
    ],
)
def test_evaluation_data_is_evaluated_while_a_run_trains(
    settings: dict[str, str], evaluates: bool, place: Place
) -> None:
    ran = place.rosetta("pax", "pile", "DATA=text:corpus.txt", "LOG_DIR=l", **settings)
    assert ran.rc == 0, ran.err
    assert ("--eval_on_test" in ran.argv) is evaluates
