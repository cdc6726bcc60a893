"""The files that `rosetta new t5x` writes, and when it writes none."""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rosetta.commands import new
from tests.support import errors


def _write(folder: Path, *words: str) -> list[Path]:
    parser = argparse.ArgumentParser()
    new.add_parsers(parser.add_subparsers(dest="command"), argparse.ArgumentParser(add_help=False))
    given = ["--vocab", "byte", "--data", "text:corpus.txt", "--out", str(folder)]
    return new.write_files(parser.parse_args(["new", "t5x", "ro_t5x", *given, *words]))


def test_four_files_named_by_model_and_size(tmp_path: Path) -> None:
    assert [path.name for path in _write(tmp_path, "--size", "small")] == [
        "ro_t5x_small.gin",
        "ro_t5x_small_tasks.py",
        "ro_t5x_small_pretrain.gin",
        "ro_t5x_small.sh",
    ]


@pytest.mark.parametrize("words", [(), ("--family", "mt5"), ("--eval-data", "text:kept.txt")])
def test_no_placeholder_is_left(tmp_path: Path, words: tuple[str, ...]) -> None:
    for path in _write(tmp_path, *words):
        assert not re.findall(r"@[A-Z_]+@?|[A-Z_]+@", path.read_text()), path


def test_paths_of_the_data_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = _write(
        tmp_path,
        "--data",
        '{"text:a.txt,b.txt": 0.5, "hf:owner/set": 0.3, "hf:./set": 0.1, "cache:a,b": 0.1}',
        "--eval-data",
        "jsonl:kept.jsonl",
    )[1]
    values: dict[str, Any] = {}
    for node in ast.parse(tasks.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = ast.literal_eval(node.value)
    data = {
        f"text:{tmp_path}/a.txt,{tmp_path}/b.txt": 0.5,
        "hf:owner/set": 0.3,
        f"hf:{tmp_path}/set": 0.1,
        f"cache:{tmp_path}/a,b": 0.1,
    }
    assert values == {"DATA": data, "EVAL_DATA": f"jsonl:{tmp_path}/kept.jsonl"}


def test_the_script_is_valid_bash_and_executable(tmp_path: Path) -> None:
    script = _write(tmp_path)[-1]
    subprocess.run(["bash", "-n", script], check=True)
    assert script.stat().st_mode & 0o111 == 0o111


def test_the_script_passes_its_folder_and_arguments_to_the_trainer(tmp_path: Path) -> None:
    script = _write(tmp_path / "my models")[-1]
    shown = tmp_path / "show"
    shown.write_text('#!/bin/bash\nprintf "%s\\n" "$@" "$PYTHONPATH"\n')
    shown.chmod(0o755)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHON": str(shown),
        "MODEL_DIR": str(tmp_path / 'a "b'),
    }
    words = subprocess.run(
        [script, "--gin.BATCH_SIZE=4"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        cwd="/",
    ).stdout.splitlines()
    assert words == [
        "-u",
        "-m",
        "rosetta.t5x.train",
        f"--gin_search_paths={tmp_path}/my models",
        "--gin_file=ro_t5x_base.gin",
        f'--gin.MODEL_DIR="{tmp_path}/a \\"b"',
        "--gin.BATCH_SIZE=4",
        f"{tmp_path}/my models",
    ]


def test_own_vocabulary_sets_the_embedding(tmp_path: Path) -> None:
    assert "network.T5Config.vocab_size = 384  # 259 ids" in _write(tmp_path)[0].read_text()


def test_another_model_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "ro_t5x_base.sh").write_text("mine")
    with errors.expect_user_error(errors.EXISTS, where="ro_t5x_base.sh"):
        _write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ro_t5x_base.sh"]


@pytest.mark.parametrize("fails", ["chmod", "replace"])
def test_a_full_disk_leaves_none_of_the_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    real, left = getattr(os, fails), [2]

    def full(*args: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(OSError, match="No space"):
        _write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with errors.expect_user_error(errors.INVALID, where=tmp_path / "file"):
        _write(tmp_path / "file")


def test_a_model_from_a_checkpoint_keeps_the_embedding_of_its_family(tmp_path: Path) -> None:
    checkpoint = tmp_path / "byt5" / "checkpoint_1000000"
    checkpoint.mkdir(parents=True)
    text = _write(tmp_path / "out", "--family", "byt5", "--from", str(checkpoint))[0].read_text()
    assert f"INITIAL_CHECKPOINT_PATH = '{checkpoint}'" in text
    assert "vocab_size" not in text
    assert "SCALE_ATTN_LOGITS" not in text  # the checkpoint says


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (["--size", "huge"], errors.UNKNOWN, {"value": "huge", "remedy": ("base", "xxl")}),
        (["--data", "corpus.txt"], errors.UNKNOWN, {"where": "DATA=", "value": "corpus.txt"}),
        (["--vocab", "missing.model"], errors.MISSING, {"where": "missing.model"}),
        (["--from", "missing/checkpoint_1"], errors.DIFFERS, {"names": ("250112", "mt5")}),
    ],
)
def test_errors_are_one_line_and_write_nothing(
    tmp_path: Path, words: list[str], kind: str, facts: dict[str, Any]
) -> None:
    with errors.expect_user_error(kind, **facts):
        _write(tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_a_family_has_the_sizes_of_its_gin_files() -> None:
    assert new.list_sizes("t5_1_0") == ["11B", "3B", "base", "large", "small", "tiny"]


def test_the_embedding_of_a_family_is_read_from_its_gin_file() -> None:
    assert {
        family: new.read_vocab_size(family)
        for family in ("t5_1_1", "t5_1_0", "mt5", "umt5", "byt5")
    } == {
        "t5_1_1": 32128,
        "t5_1_0": 32128,
        "mt5": 250112,
        "umt5": 256384,
        "byt5": 384,
    }


def test_a_new_umt5_adds_the_usual_sentinels_and_public_weights_have_their_300(
    tmp_path: Path,
) -> None:
    assert (new.read_extra_ids("umt5"), new.read_extra_ids("mt5")) == (300, None)
    text = _write(tmp_path / "own", "--family", "umt5")[0].read_text()
    assert "\nEXTRA_IDS = None" in text
    assert "network.T5Config.vocab_size = 384  # 259 ids" in text
    checkpoint = tmp_path / "checkpoint_0"
    checkpoint.mkdir()
    words = ("--family", "umt5", "--from", str(checkpoint), "--vocab", "ids:256000")
    text = _write(tmp_path / "public", *words)[0].read_text()
    assert "EXTRA_IDS" not in text
    assert "vocab_size" not in text
