from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rosetta.core import path_checks
from rosetta.core.errors import UserError
from rosetta.data import data_checks, pipeline
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*path_checks.CERTIFICATE_VARIABLES, "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("name", path_checks.CERTIFICATE_VARIABLES)
def test_a_missing_certificate_file_is_refused_before_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path_checks.check_certificates()
    monkeypatch.setenv(name, str(tmp_path / "ca.crt"))
    with errors.expect_user_error(
        errors.MISSING, where=f"{name}={tmp_path}/ca.crt", value=str(tmp_path / "ca.crt")
    ):
        path_checks.check_certificates()
    (tmp_path / "ca.crt").touch()
    path_checks.check_certificates(needed=True)


def test_the_error_names_the_system_certificates_of_red_hat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_bundle = tmp_path / "ca-bundle.crt"
    monkeypatch.setattr(
        path_checks, "SYSTEM_CERTIFICATES", (str(tmp_path / "none.crt"), str(system_bundle))
    )
    with errors.expect_user_error(
        errors.MISSING, where="none.crt", remedy="install ca-certificates"
    ):
        path_checks.check_certificates(needed=True)
    system_bundle.touch()
    with errors.expect_user_error(
        errors.MISSING, where="none.crt", remedy=f"export CURL_CA_BUNDLE={system_bundle}"
    ):
        path_checks.check_certificates(needed=True)
    path_checks.check_certificates()


def test_missing_access_to_an_object_store_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURL_CA_BUNDLE", str(tmp_path))
    path_checks.check_remote_path("/local/folder")
    for path, kind, remedy in (
        ("ftp://host/x", errors.UNSUPPORTED, "absolute path"),
        ("gs://", errors.INVALID, "gs://BUCKET/FOLDER"),
        ("s3://b/x", errors.UNSUPPORTED, ("mountpoint-s3", "gs://")),
    ):
        with errors.expect_user_error(kind, where=path, remedy=remedy):
            path_checks.check_remote_path(path)
    path_checks.check_remote_path("gs://b/x")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with errors.expect_user_error(
        errors.MISSING, where="GOOGLE_APPLICATION_CREDENTIALS", value=str(tmp_path / "key.json")
    ):
        path_checks.check_remote_path("gs://b/x")


LENGTHS = "TASK_FEATURE_LENGTHS"
GOOD: dict[str, Any] = {
    "objective": "span_corruption",
    "vocab": "byte",
    "vocab_size": 384,
    "lengths": {"inputs": 64, "targets": 32},
    "mean_noise_span_length": 20.0,
}


@pytest.mark.parametrize(
    ("changes", "kind", "facts"),
    [
        ({"data": "text:{folder}/none.txt"}, errors.MISSING, {"where": "none.txt"}),
        ({"eval_data": "text:{folder}/none.txt"}, errors.MISSING, {"where": "none.txt"}),
        ({"data": "cache:{folder}"}, errors.MISSING, {"remedy": "data cache"}),
        (
            {"data": "cache:gs://bucket/tokens"},
            errors.UNSUPPORTED,
            {"names": "gs://", "remedy": ("gcloud storage", "gs://bucket/tokens FOLDER")},
        ),
        ({"vocab": "{folder}/mine.model"}, errors.MISSING, {"where": "mine.model"}),
        ({"vocab_size": 256}, errors.TOO_BIG, {"where": "byte", "value": 259, "names": "256"}),
        (
            {"vocab_size": 300, "extra_ids": 100},
            errors.TOO_BIG,
            {"value": 359, "names": ("100", "300"), "remedy": "EXTRA_IDS"},
        ),
        ({"lengths": {"inputs": 64}}, errors.MISSING, {"where": LENGTHS, "names": "targets"}),
        (
            {"lengths": {"inputs": 64, "targets": 0}},
            errors.INVALID,
            {"where": LENGTHS, "value": 0, "names": "targets"},
        ),
        ({"lengths": {"inputs": 64, "targets": 8}}, errors.INVALID, {"where": LENGTHS, "value": 8}),
        ({"objective": "mnli"}, errors.CONFLICT, {"value": "text", "names": "mnli"}),
        ({"objective": "nli"}, errors.UNKNOWN, {"where": "objective", "value": "nli"}),
    ],
)
def test_a_run_is_refused_before_it_starts(
    changes: dict[str, Any], kind: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("some words\n")
    filled = {
        name: value.format(folder=tmp_path) if isinstance(value, str) else value
        for name, value in changes.items()
    }
    data_checks.check_data(**{"data": f"text:{tmp_path}/a.txt", **GOOD})
    with errors.expect_user_error(kind, **facts) as raised:
        data_checks.check_data(**{"data": f"text:{tmp_path}/a.txt", **GOOD, **filled})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "objective", "kind", "facts"),
    [
        (
            "some words\n",
            "span_corruption",
            errors.INVALID,
            {"where": "a.jsonl, line 1", "names": "JSON"},
        ),
        ('{"body": "some words"}\n', "span_corruption", errors.INVALID, {"names": "'text'"}),
        ("\n", "span_corruption", errors.MISSING, {"where": "a.jsonl"}),
        (
            '{"body": "some words"}\n',
            "mnli",
            errors.INVALID,
            {"where": "a.jsonl, line 1", "names": "mnli"},
        ),
    ],
)
def test_the_first_record_is_checked_if_a_text_field_is_given(
    text: str, objective: str, kind: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    arguments = {**GOOD, "data": f"jsonl:{tmp_path}/a.jsonl", "objective": objective}
    data_checks.check_data(**arguments)
    with errors.expect_user_error(kind, **facts):
        data_checks.check_data(**arguments, text_field="text")
    (tmp_path / "a.jsonl").write_text(
        '{"body": "some words", "premise": "a", "hypothesis": "b", "label": 1}\n'
    )
    data_checks.check_data(**arguments, text_field="body")


def test_evaluation_reads_its_own_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    body = corpora.encode_example(text=[b"some words"])
    corpora.write_tfds_folder(tmp_path, "trains", {"train": [[body]]})
    corpora.write_tfds_folder(tmp_path, "evaluates", {"validation": [[body]]})
    data_checks.check_data(data="tfds:trains", eval_data="tfds:evaluates", **GOOD)
    data_checks.check_data(data="tfds:evaluates", split="validation", **GOOD)
    with errors.expect_user_error(errors.UNKNOWN, value="validation"):
        data_checks.check_data(data="tfds:trains", eval_data="tfds:trains", **GOOD)


def test_prepared_sets_are_read_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", "gs://bucket/sets")
    with errors.expect_user_error(
        errors.UNSUPPORTED, where="TFDS_DATA_DIR=gs://bucket/sets", names="gs://"
    ):
        data_checks.check_data(data="tfds:c4/en", **GOOD)


def test_a_write_check_leaves_the_folder_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path_checks.check_local_folder_writable(str(tmp_path / "not" / "yet"))
    monkeypatch.chdir(tmp_path)
    path_checks.check_local_folder_writable("not/yet")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with errors.expect_user_error(
        errors.INVALID, where=tmp_path / "file" / "model", value=str(tmp_path / "file")
    ):
        path_checks.check_local_folder_writable(str(tmp_path / "file" / "model"))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with errors.expect_user_error(
        errors.INVALID,
        where=tmp_path / "gone",
        value=str(tmp_path / "gone"),
        names=tmp_path / "nowhere",
    ):
        path_checks.check_local_folder_writable(str(tmp_path / "gone"))
    with errors.expect_user_error(
        errors.DENIED, where="/proc/m", value="/proc"
    ):  # by the superuser neither
        path_checks.check_local_folder_writable("/proc/m")


def test_synthetic_data_needs_nothing() -> None:
    data_checks.check_data(
        data="synthetic",
        objective="span_corruption",
        vocab="ids:32128",
        vocab_size=32128,
        lengths={"inputs": 512, "targets": 128},
    )
    batch = pipeline.Batches(
        corpora.make_recipe(
            "synthetic", vocab="ids:32128", extra_ids=0, mean_noise_span_length=3.0
        ),
        4,
    ).make_batch(0)
    assert 30000 < batch["encoder_input_tokens"].max() < 32128
    assert (batch["decoder_target_tokens"] != 0).all()


@pytest.mark.parametrize(
    ("name", "wrong", "line"),
    [
        ("DATA", "text:none.txt", "DATA: none.txt: "),
        ("EVAL_DATA", "text:none.txt", "EVAL_DATA: none.txt: "),
        ("EVAL_DATA", "text:gs://bucket/a", "EVAL_DATA=text:gs://bucket/a: "),
        ("DATA", "text:gs://bucket/a", "DATA=text:gs://bucket/a: "),
    ],
)
def test_missing_data_names_its_variable(name: str, wrong: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words\n")
    sources = {"DATA": f"text:{tmp_path}/a.txt", "EVAL_DATA": f"text:{tmp_path}/a.txt", name: wrong}
    with pytest.raises(UserError) as caught:
        data_checks.check_data(
            data=sources["DATA"],
            eval_data=sources["EVAL_DATA"],
            objective="lm",
            vocab="byte",
            vocab_size=None,
            lengths={"targets": 64},
        )
    assert str(caught.value).startswith(line)
