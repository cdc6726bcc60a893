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


def _make_encoder_environment(folder: Path, **variables: str) -> dict[str, str]:
    (folder / "a.jsonl").write_text('{"premise": "a", "hypothesis": "b", "label": 1}\n')
    (folder / "a.txt").write_text("Some text.\n" * 40)
    environment = {
        "CHECKPOINT_PATH": "gs://bucket/run/checkpoint_5",
        "OUTPUT_DIR": str(folder / "out"),
        "T5_FAMILY": "bert",
        "T5_SIZE": "tiny",
        "JAX_PLATFORMS": "cpu",
        "FT_TASK": "classification",
        "LABELS": "no,yes",
        "TEXT_FIELD": "premise,hypothesis,label",
        "DATA": f"jsonl:{folder}/a.jsonl",
        **variables,
    }
    return {name: value for name, value in environment.items() if value}


def _make_masked_environment(folder: Path, **variables: str) -> dict[str, str]:
    masked = {"FT_TASK": "", "LABELS": "", "TEXT_FIELD": "", "OBJECTIVE": "mlm"}
    return _make_encoder_environment(
        folder, **{**masked, "DATA": f"text:{folder}/a.txt", **variables}
    )


@pytest.mark.parametrize("program", ["eval", "infer"])
def test_encoders_are_evaluated(program: str, tmp_path: Path) -> None:
    environment = _make_encoder_environment(tmp_path)
    with mock.patch.dict("os.environ", environment):
        command = t5x_evaluation.make_command(program, environment)
    files = [word for word in command.argv if word.startswith("--gin_file=")]
    assert files[0].endswith("bert/tiny.gin")
    assert files[-1].endswith("runs/task_classification.gin")
    assert any("LABELS" in word and "no,yes" in word for word in command.argv)


def test_hidden_tokens_are_evaluated(tmp_path: Path) -> None:
    environment = _make_masked_environment(tmp_path)
    with mock.patch.dict("os.environ", environment):
        command = t5x_evaluation.make_command("eval", environment)
    assert any(word.endswith("runs/task_masked.gin") for word in command.argv)
    assert any("OBJECTIVE" in word and "mlm" in word for word in command.argv)


@pytest.mark.parametrize("field", ["", "text,label"])
def test_lines_of_text_are_classified(field: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nb\n")
    environment = _make_encoder_environment(
        tmp_path, DATA="", TEXT_FIELD=field, INPUTS=str(tmp_path / "lines.txt")
    )
    with mock.patch.dict("os.environ", environment):
        command = t5x_evaluation.make_command("infer", environment)
    assert any(word.endswith("runs/task_classification.gin") for word in command.argv)


def test_lines_of_text_are_not_pairs_of_texts(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\n")
    environment = _make_encoder_environment(tmp_path, DATA="", INPUTS=str(tmp_path / "lines.txt"))
    with (
        mock.patch.dict("os.environ", environment),
        errors.expect_user_error(errors.CONFLICT, where="TEXT_FIELD=premise", remedy="DATA=jsonl:"),
    ):
        t5x_evaluation.make_command("infer", environment)


@pytest.mark.parametrize(
    ("variables", "kind", "where"),
    [
        ({"LABELS": "other,names,only", "ENC_SL": "4"}, errors.INVALID, "TASK_FEATURE_LENGTHS"),
        ({"LABELS": "2,3"}, errors.INVALID, "a.jsonl, line 1"),
        ({"LABELS": ""}, errors.MISSING, "LABELS"),
        ({"NUM_DECODES": "4"}, errors.CONFLICT, "NUM_DECODES=4"),
        ({"FT_TASK": "pairs"}, errors.CONFLICT, "FT_TASK=pairs"),
        ({"T5_FAMILY": "t5_1_1"}, errors.CONFLICT, "FT_TASK=classification"),
        ({"TEXT_FIELD": "a,b,c,d"}, errors.INVALID, "TEXT_FIELD"),
        ({"OBJECTIVE": "mlm"}, errors.CONFLICT, "OBJECTIVE=mlm"),
    ],
    ids=["length", "label", "classes", "decodes", "pairs", "family", "fields", "objective"],
)
def test_what_encoders_do_not_do_is_refused(
    variables: dict[str, str], kind: str, where: str, tmp_path: Path
) -> None:
    environment = _make_encoder_environment(tmp_path, **variables)
    with (
        mock.patch.dict("os.environ", environment),
        errors.expect_user_error(kind, where=where),
    ):
        t5x_evaluation.make_command("eval", environment)


@pytest.mark.parametrize(
    ("variables", "kind", "where"),
    [
        ({"DATA": ""}, errors.MISSING, "DATA"),
        ({"DATA": "synthetic"}, errors.UNSUPPORTED, "DATA=synthetic"),
        ({"DATA": "hf:owner/name"}, errors.UNSUPPORTED, "DATA=hf:owner/name"),
        ({"OBJECTIVE": "ul2"}, errors.UNSUPPORTED, "OBJECTIVE=ul2"),
        ({"T5_FAMILY": "t5_1_1"}, errors.CONFLICT, "OBJECTIVE=mlm"),
    ],
    ids=["nothing", "synthetic", "stream", "objective", "family"],
)
def test_what_hidden_tokens_need(
    variables: dict[str, str], kind: str, where: str, tmp_path: Path
) -> None:
    environment = _make_masked_environment(tmp_path, **variables)
    with (
        mock.patch.dict("os.environ", environment),
        errors.expect_user_error(kind, where=where),
    ):
        t5x_evaluation.make_command("eval", environment)
