"""kill -9 in the middle of a run, and the batches after it, for each kind of source."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rosetta.data import batch_hashes, data_recipe, pipeline
from tests.support import batch_reader, corpora, data_sources

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
STEPS = 30
KILLED_AFTER = 10  # lines


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))


def start_reader(folder: Path, steps: int = STEPS) -> subprocess.Popen[str]:
    arguments = [str(folder / "recipe.json"), str(folder / "state.json"), str(steps)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.batch_reader", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


def read_hashes(lines: list[str]) -> dict[int, str]:
    return {int(line.split()[0]): line.split()[1] for line in lines if line.endswith("\n")}


def check_killed_run(recipe: data_recipe.Recipe, folder: Path) -> None:
    """Check that a reader that is killed and started again reads the batches of one that is not."""
    batches = pipeline.Batches(recipe, batch_reader.BATCH)
    expected = {step: batch_hashes.hash_batch(batches.make_batch(step)) for step in range(STEPS)}
    assert len(set(expected.values())) == STEPS
    (folder / "recipe.json").write_text(json.dumps(dataclasses.asdict(recipe)))
    with start_reader(folder, 10_000_000) as reader:
        assert reader.stdout is not None
        before = [reader.stdout.readline() for _ in range(KILLED_AFTER)]
        reader.kill()
        before += reader.stdout.readlines()
    assert reader.returncode == -9
    saved = json.loads((folder / "state.json").read_text())["step"]
    assert saved > 0
    with start_reader(folder, saved + STEPS) as reader:
        assert reader.stdout is not None
        after = read_hashes(reader.stdout.readlines())
    assert reader.returncode == 0
    assert sorted(after) == list(range(saved, saved + STEPS))
    expected |= {step: batch_hashes.hash_batch(batches.make_batch(step)) for step in after}
    for step, batch_hash in {**read_hashes(before), **after}.items():
        if step in expected:
            assert batch_hash == expected[step], step


@pytest.mark.parametrize("kind", data_sources.WRITERS)
def test_a_killed_run_on_text_continues_with_equal_batches(kind: str, tmp_path: Path) -> None:
    records = data_sources.make_text_records(300)
    data = data_sources.write_records(kind, tmp_path / "data", records)
    check_killed_run(corpora.make_recipe(data), tmp_path)


def test_a_killed_run_on_tokens_of_megatron_continues_with_equal_batches(tmp_path: Path) -> None:
    documents = [list(record["text"].encode()) for record in data_sources.make_text_records(300)]
    data = data_sources.write_megatron(tmp_path / "a", documents)
    check_killed_run(corpora.make_recipe(data), tmp_path)


@pytest.mark.parametrize("kind", data_sources.WRITERS)
def test_a_killed_run_on_pairs_continues_with_equal_batches(kind: str, tmp_path: Path) -> None:
    records = data_sources.make_pair_records(300)
    data = data_sources.write_records(kind, tmp_path / "data", records)
    recipe = corpora.make_recipe(data, "text_to_text", pack=kind == "csv")
    check_killed_run(recipe, tmp_path)
