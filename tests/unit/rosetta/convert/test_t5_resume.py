"""A conversion that is killed goes on when it is started again."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("ml_dtypes", "tensorstore")

import numpy as np

from rosetta import cli
from rosetta.convert import output_folder, t5_conversion, t5x_checkpoint, weight_files
from tests.support import t5_weights

CONFIG = t5_weights.make_config("t5_1_1")
WEIGHTS = t5_weights.make_weights(CONFIG)
# A program that is killed while it writes part number PARTS + 1.
KILLED = """
import os, signal, sys
from rosetta import cli
from rosetta.convert import t5_conversion, weight_files
weight_files.LARGEST_FILE = 30_000
name, parts = sys.argv[1], int(sys.argv[2])
write = getattr(t5_conversion.Conversion, name)
def write_or_die(self, first, second):
    global parts
    if not parts:
        os.kill(os.getpid(), signal.SIGKILL)
    parts -= 1
    return write(self, first, second)
setattr(t5_conversion.Conversion, name, write_or_die)
sys.exit(cli.main(["convert", "t5", *sys.argv[3:]]))
"""


def convert(*words: object) -> int:
    return cli.main(["convert", "t5", *map(str, words)])


def kill_conversion(method: str, parts: int, *words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, method, str(parts), *map(str, words)],
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
    )
    assert done.returncode == -signal.SIGKILL


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(weight_files, "LARGEST_FILE", 30_000)
    t5_weights.write_folder(tmp_path / "hf", CONFIG, WEIGHTS)
    return tmp_path


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the parts that are written from now on."""
    names: list[str] = []

    def record(method: str, find_name: Callable[..., str]) -> None:
        write = getattr(t5_conversion.Conversion, method)

        def write_and_record(self: Any, first: Any, second: Any) -> Any:
            names.append(find_name(first, second))
            return write(self, first, second)

        monkeypatch.setattr(t5_conversion.Conversion, method, write_and_record)

    record("_write_file", lambda first, _: first)
    record("_write_array", lambda _, second: second.array)
    return names


def find_part(models: Path) -> Path:
    (part,) = models.glob(f"{output_folder.PART_PREFIX}*")
    return part


def test_to_t5x(models: Path, written: list[str]) -> None:
    kill_conversion("_write_array", 5, models / "hf", models / "out")
    assert not (models / "out").exists()
    assert convert(models / "hf", models / "out") == 0
    assert len(written) == len(WEIGHTS) - 5
    assert convert(models / "out", models / "back") == 0
    assert all(
        np.array_equal(tensor, WEIGHTS[name])
        for name, tensor in t5_weights.read_tensors(models / "back").items()
    )
    assert not list(models.glob(".*"))


def test_to_hugging_face(models: Path, written: list[str]) -> None:
    assert convert(models / "hf", models / "t5x") == 0
    assert convert(models / "t5x", models / "expected") == 0
    file_count = len(list((models / "expected").glob("*.safetensors")))
    written.clear()
    kill_conversion("_write_file", 2, models / "t5x", models / "out")
    assert not (models / "out").exists()
    assert convert(models / "t5x", models / "out") == 0
    assert len(written) == file_count - 2
    for path in (models / "expected").iterdir():
        if path.name != "README.md":
            assert (models / "out" / path.name).read_bytes() == path.read_bytes(), path


def test_a_changed_part_is_written_again(models: Path, written: list[str]) -> None:
    assert convert(models / "hf", models / "t5x") == 0
    kill_conversion("_write_file", 2, models / "t5x", models / "out")
    first = min((find_part(models) / "out").glob("*.safetensors"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    written.clear()
    assert convert(models / "t5x", models / "out") == 0
    assert first.name in written
    assert all(
        np.array_equal(tensor, WEIGHTS[name])
        for name, tensor in t5_weights.read_tensors(models / "out").items()
    )


def test_a_changed_array_is_written_again(models: Path, written: list[str]) -> None:
    kill_conversion("_write_array", 5, models / "hf", models / "out")
    journal = json.loads((find_part(models) / "journal.json").read_text())
    name = next(iter(journal["finished"]))
    state = find_part(models) / "out" / "rosetta-part-checkpoint_0" / "state"
    chunk = next(path for path in (state / name.replace("/", ".")).iterdir() if path.name[0] != ".")
    chunk.write_bytes(chunk.read_bytes()[:-3])
    assert convert(models / "hf", models / "out") == 0
    assert len(written) == len(WEIGHTS) - 4
    arrays = t5x_checkpoint.Source(models / "out").arrays
    assert np.array_equal(
        arrays["target/token_embedder/embedding"].read(), WEIGHTS["shared.weight"]
    )


@pytest.mark.parametrize("change", ["option", "source"])
def test_another_conversion_begins_anew(change: str, models: Path, written: list[str]) -> None:
    kill_conversion("_write_array", 5, models / "hf", models / "out")
    words = ("--dtype", "bfloat16") if change == "option" else ()
    if change == "source":
        path = models / "hf" / "model.safetensors"
        path.write_bytes(path.read_bytes())
    assert convert(models / "hf", models / "out", *words) == 0
    assert len(written) == len(WEIGHTS)


def test_two_at_once(models: Path) -> None:
    with (
        output_folder.resume_folder(models / "out", {}),
        errors.expect_reported_error(errors.IN_USE, where="out"),
    ):
        assert convert(models / "hf", models / "out") == 2
    assert (models / "out").exists()


def test_a_lock_that_another_process_removed(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends removes its lock. Who has opened the lock before does not own OUT."""
    lock = fcntl.flock

    def lock_removed_file(file: Any, operation: int) -> None:
        Path(file.name).unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock_removed_file)
    with errors.expect_reported_error(errors.IN_USE, where="out"):
        assert convert(models / "hf", models / "out") == 2
    assert not (models / "out").exists()
