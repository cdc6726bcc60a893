"""What inference finds in its folder."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from rosetta.launch import t5x_evaluation
from rosetta.t5x.run import gin_reader
from tests.support import errors

# As T5X writes it at the start of an inference.
RECORD = """import __main__ as infer_script

# Macros:
# ==============================================================================
CHECKPOINT_PATH = '/ft/checkpoint_5'
DATA = 'jsonl:/questions.jsonl'
EVAL_DATA = %DATA
MODE = 'predict'
START = @pretrained.start()
TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 32}
"""


def configure(folder: Path, text: str) -> gin_reader.Configuration:
    file = folder / "now.gin"
    file.write_text(text)
    return gin_reader.read_configuration([file], (folder,))


@pytest.mark.parametrize("part", ["squad-predict.jsonl-00000-of-00001.COMPLETED", "tmp-squad-0"])
def test_answers_to_other_questions_are_not_taken_for_these(tmp_path: Path, part: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.gin").write_text(RECORD)
    same = configure(tmp_path, RECORD)
    other = same.bind({"DATA": "jsonl:/others.jsonl"})
    for configuration in (same, other):
        assert t5x_evaluation.check_earlier_answers(str(out), configuration) == ()
    (out / part).mkdir()
    warnings = t5x_evaluation.check_earlier_answers(str(out), same)
    assert len(warnings) == part.endswith(".COMPLETED")
    with errors.expect_user_error(
        errors.DIFFERS, where=f"OUTPUT_DIR={out}", value="DATA, EVAL_DATA"
    ):
        t5x_evaluation.check_earlier_answers(str(out), other)


def test_an_object_store_is_not_looked_at(tmp_path: Path) -> None:
    configuration = configure(tmp_path, RECORD)
    assert t5x_evaluation.check_earlier_answers("gs://bucket/out", configuration) == ()


@pytest.mark.parametrize("program", ["eval", "infer"])
def test_the_columns_of_pairs_reach_the_program(program: str, tmp_path: Path) -> None:
    environment = {
        "CHECKPOINT_PATH": "gs://bucket/run/checkpoint_5",
        "OUTPUT_DIR": str(tmp_path),
        "DATA": "csv:a.csv",
        "TEXT_FIELD": "question,answer",
    }
    values = {"BSIZE": 4, "TP_SIZE": 1, "EXTRA_IDS": None, "NUM_DECODES": None}
    values |= dict.fromkeys(t5x_evaluation._SAMPLING)
    options = mock.Mock(evaluation_bindings=dict)
    bindings = t5x_evaluation._make_bindings(program, environment, values, options)
    assert bindings["TEXT_FIELD"] == "question,answer"
    assert bindings["EVAL_DATA"] == "csv:a.csv"


def _make_glue_environment(folder: Path, record: str, **variables: str) -> dict[str, str]:
    (folder / "cola.jsonl").write_text(record)
    return {
        "CHECKPOINT_PATH": "gs://bucket/run/checkpoint_5",
        "OUTPUT_DIR": str(folder / "out"),
        "FT_TASK": "task:glue_cola_v002",
        "T5_SIZE": "small",
        "VOCAB": "byte",
        "DATA": f"jsonl:{folder}/cola.jsonl",
        "JAX_PLATFORMS": "cpu",
        **variables,
    }


GOOD_RECORD = '{"sentence": "Go.", "label": 1}'


def test_glue_is_evaluated_on_files(tmp_path: Path) -> None:
    environment = _make_glue_environment(tmp_path, GOOD_RECORD)
    with mock.patch.dict("os.environ", environment):
        command = t5x_evaluation.make_command("eval", environment)
    assert '--gin.DATA="task:glue_cola_v002"' in " ".join(command.argv).replace("'", '"')
    assert any("EVAL_DATA" in word and "cola.jsonl" in word for word in command.argv)


@pytest.mark.parametrize(
    ("program", "record", "variables", "kind", "where"),
    [
        ("infer", GOOD_RECORD, {}, errors.CONFLICT, "DATA="),
        ("eval", GOOD_RECORD, {"EVAL_DATA": "jsonl:a"}, errors.CONFLICT, "EVAL_DATA="),
        ("eval", '{"sentence": "Go.", "label": 2}', {}, errors.INVALID, "cola.jsonl, line 1"),
        ("eval", GOOD_RECORD, {"DATA": "jsonl:none.jsonl"}, errors.MISSING, "none.jsonl"),
    ],
    ids=["inference", "two-files", "record", "no-file"],
)
def test_wrong_files_of_glue_are_refused(
    program: str,
    record: str,
    variables: dict[str, str],
    kind: str,
    where: str,
    tmp_path: Path,
) -> None:
    environment = _make_glue_environment(tmp_path, record, **variables)
    with (
        mock.patch.dict("os.environ", environment),
        errors.expect_user_error(kind, where=where),
    ):
        t5x_evaluation.make_command(program, environment)
