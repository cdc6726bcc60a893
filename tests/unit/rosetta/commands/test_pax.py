"""The commands `rosetta pax` beside the scripts; see tests/support/pax_scripts.py."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tests.support import t5x_scripts
from tests.support.pax_scripts import Place, place_

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
        ("words", "complaint"),
        [
            (
                ["train", "CONFGI=Synthetic5B"],
                "rosetta pax train: it has no variable CONFGI; did you mean CONFIG?",
            ),
            (["train", "QQQ=2"], "it takes PERCORE_BATCH_SIZE ICI_MESH_SHAPE"),
            (
                ["train", "NUM_LAYERS=2"],
                "(any hyper-parameter: fdl.NAME=VALUE; what is for other programs: the environment)",
            ),
            (["train", "config=Synthetic5B"], "'config=Synthetic5B' is no setting"),
            (["improve"], "there is no 'improve'"),
            (["train", "CONFIG=GPT6B"], "did you mean GPT5B?"),
        ],
    )
    def test_refused(self, place: Place, words: list[str], complaint: str) -> None:
        ran = place.rosetta("pax", *words)
        assert (ran.rc, ran.argv) == (2, [])
        assert complaint in ran.err
        assert len(ran.err.splitlines()) == 1


def test_an_environment_without_paxml(place: Place) -> None:
    if importlib.util.find_spec("paxml"):
        pytest.skip("NOT CHECKED here: this environment has Paxml; checked without one")
    (place.work / "paxml.py").touch()
    assert (
        "this environment has no paxml"
        in place.rosetta("pax", "train", "CONFIG=Synthetic5B", "--dry-run", PYTHON="").err
    )
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
    ("setting", "line"),
    [
        ("MAX_STEPS=-1", "MAX_STEPS: it is -1; give a whole number of at least 0"),
        ("MAX_STEPS=abc", "MAX_STEPS: it is 'abc'; give a whole number of at least 0"),
        ("MAX_SEQ_LEN=-1", "MAX_SEQ_LEN: it is -1; give a whole number of at least 2"),
        ("fdl.NUM_LAYERS=0", "NUM_LAYERS: it is 0; give a whole number of at least 1"),
        ("LEARNING_RATE=fast", "LEARNING_RATE: it is 'fast'; give a number above 0, as in 1e-4"),
        ("LEARNING_RATE=-1", "LEARNING_RATE: it is -1; give a number above 0, as in 1e-4"),
        ("NUM_MICROBATCHES=0", "NUM_MICROBATCHES: it is 0; give a whole number of at least 1"),
        (
            "LEARNING_RATE=1_0",
            "LEARNING_RATE: it is '1_0'; give a number in decimal digits, as in 10 or 1e-4",
        ),
        ("LEARNING_RATE=٣", "LEARNING_RATE: it is '٣'; give a number above 0, as in 1e-4"),
        ("MAX_STEPS=0x10", "MAX_STEPS: it is '0x10'; give a number in decimal digits"),
        ("ROSETTA_DOCTOR=maybe", "ROSETTA_DOCTOR: it is 'maybe'; give 0 or 1"),
        (
            "XLA_PYTHON_CLIENT_MEM_FRACTION=lots",
            "XLA_PYTHON_CLIENT_MEM_FRACTION: it is 'lots'; give a number above 0",
        ),
        ("DCN_MESH_SHAPE=[1,2,1]", "it is a mesh of 16 devices, and there are 8"),
    ],
)
@pytest.mark.parametrize("config", ["Synthetic126M", "mine.Experiment"])
def test_wrong_numbers_are_refused_before_jax_starts(
    setting: str, line: str, config: str, place: Place
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
    assert line in ran.err
    assert len(ran.err.splitlines()) == 1


def test_an_experiment_of_the_users_own_need_not_read_data(place: Place) -> None:
    ran = place.rosetta("pax", "train", "CONFIG=mine.Experiment", "LOG_DIR=l", VOCAB_PATH="")
    assert ran.rc == 0, ran.err
    assert "--fdl_config=mine.Experiment" in ran.argv


@pytest.mark.parametrize(("command", "more"), [("lambada", {}), ("boolq", {"EVAL_ONLY": "1"})])
def test_an_evaluation_needs_evaluation_data_alone(
    command: str, more: dict[str, str], place: Place
) -> None:
    (place.work / "l/checkpoints/checkpoint_00000003").mkdir(parents=True)
    settings = [
        *(f"{name}={value}" for name, value in more.items()),
        "LOG_DIR=l",
        "EVAL_DATA=text:corpus.txt",
    ]
    settings += ["CHECKPOINT_RESTORE_PATH=l"] if more else []
    ran = place.rosetta("pax", command, *settings, DATA="")
    assert ran.rc == 0, ran.err
    assert (ran.env["EVAL_DATA"], ran.env["DATA"]) == ("text:corpus.txt", "text:corpus.txt")


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
