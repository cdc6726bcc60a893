from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

import pytest

from rosetta.pax.run import dataset_download
from tests.support import errors


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sources of the same kind on this machine."""
    lines = "".join(
        json.dumps({"question": "q", "passage": "p", "label": n % 2 == 0}) + "\n" for n in range(3)
    )
    (tmp_path / "lambada.jsonl").write_text('{"text": "a b"}\n{"text": "c d"}\n')
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out:
        out.writestr("BoolQ/train.jsonl", lines)
        out.writestr("BoolQ/val.jsonl", lines)
    (tmp_path / "BoolQ.zip").write_bytes(made.getvalue())
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    fields = ("question", "passage", "label")
    sources = {
        "lambada": dataset_download.DownloadableDataset(
            "tfds:my_lambada/lm",
            "test",
            f"file://{tmp_path}/lambada.jsonl",
            {"lambada/test.jsonl": dataset_download.JsonLinesFile("", 2, ("text",))},
        ),
        "boolq": dataset_download.DownloadableDataset(
            "tfds:super_glue/boolq",
            "train",
            f"file://{tmp_path}/BoolQ.zip",
            {
                "boolq/train.jsonl": dataset_download.JsonLinesFile("BoolQ/train.jsonl", 3, fields),
                "boolq/validation.jsonl": dataset_download.JsonLinesFile(
                    "BoolQ/val.jsonl", 3, fields
                ),
            },
        ),
    }
    monkeypatch.setattr(dataset_download, "DATASETS", sources)
    monkeypatch.setattr(sys, "argv", ["download.py"])


@pytest.mark.parametrize(
    ("name", "last"), [("lambada", "lambada/test.jsonl"), ("boolq", "boolq/validation.jsonl")]
)
def test_a_set_is_fetched_once(
    name: str, last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "data")
    assert dataset_download.find_downloaded_files(name, root) == {}
    assert dataset_download.main(name) == 0
    assert "examples, from file://" in capsys.readouterr().out
    assert dataset_download.find_downloaded_files(name, root)["EVAL_DATA"] == f"jsonl:{root}/{last}"
    (tmp_path / "lambada.jsonl").unlink()
    (tmp_path / "BoolQ.zip").unlink()
    assert dataset_download.main(name) == 0
    assert "is there, nothing to download" in capsys.readouterr().out


def test_what_tfds_prepared_earlier_is_the_data(tmp_path: Path) -> None:
    dataset_download.main("lambada")
    (tmp_path / "data" / "my_lambada" / "lm").mkdir(parents=True)
    assert dataset_download.find_downloaded_files("lambada", str(tmp_path / "data")) == {}


def test_a_wrong_download_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "BoolQ.zip").write_text("<html>sign in</html>")
    assert dataset_download.main("boolq") == 2
    (tmp_path / "lambada.jsonl").write_text('{"text": "a b"}\n')
    assert dataset_download.main("lambada") == 2
    said = capsys.readouterr().err.splitlines()
    assert "(BadZipFile)" in said[0]
    assert "1 lines" in said[1]
    assert not (tmp_path / "data").exists()


def test_a_line_may_hold_other_line_separators(tmp_path: Path) -> None:
    (tmp_path / "lambada.jsonl").write_text('{"text": "a\u2028b"}\n{"text": "c\u0085d"}\n')
    assert dataset_download.main("lambada") == 0


def test_a_result_that_cannot_be_written_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert dataset_download.main("lambada") == 2


def test_a_missing_network_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lambada.jsonl").unlink()
    assert dataset_download.main("lambada") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be downloaded" in line
    assert "DATA=jsonl:FILE" in line


@pytest.mark.parametrize("name", ["lambada", "boolq", "the_pile"])
def test_help_downloads_nothing(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for word, status in (("--help", 0), ("-h", 0), ("--foo", 2), ("x", 2)):
        monkeypatch.setattr(sys, "argv", ["download.py", word])
        assert dataset_download.main(name) == status
        captured = capsys.readouterr()
        assert ("TFDS_DATA_DIR of the environment" in captured.out) == (status == 0)
        assert captured.err.count("\n") == (status == 2)
    assert not (tmp_path / "data").exists()


def test_the_pile_cannot_be_downloaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert dataset_download.main("the_pile") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the Pile has been offline since October 2023" in line
    assert "DATA=text:" in line
    (tmp_path / "data" / "the_pile").mkdir(parents=True)
    with errors.expect_user_error(errors.UNKNOWN, where="data", value="the_pile/lm"):
        dataset_download.check_pile(str(tmp_path / "data"))
