"""Damaged files of checkpoints, in each format that T5X and Paxml write."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rosetta.health import checkpoint_files
from rosetta.health.checkpoint_files import explain_damage, find_damage, find_problem

WITH_TENSORSTORE = pytest.mark.skipif(
    importlib.util.find_spec("tensorstore") is None,
    reason="NOT TESTED: needs TensorStore (--inside)",
)
ARRAYS = ("target.scale", "state.count")


def _database(folder: Path) -> None:
    """Write what T5X's manager writes: an OCDBT database with two arrays."""
    import numpy as np
    import tensorstore  # type: ignore[import-not-found]

    state = folder / "state"
    state.mkdir(parents=True)
    tree = {}
    for name in ARRAYS:
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "ocdbt", "base": f"file://{state}/", "path": f"{name}/"},
        }
        values = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
        spec["metadata"] = {
            "shape": [64, 64],
            "chunks": [32, 64],
            "dtype": "<f4",
            "compressor": None,
        }
        array = tensorstore.open(spec, create=True).result()
        array.write(values).result()
        keys = [{"key": key} for key in name.split(".")]
        tree[name] = {"key_metadata": keys, "value_metadata": {"value_type": "jax.Array"}}
    (state / "_METADATA").write_text(json.dumps({"tree_metadata": tree, "use_ocdbt": True}))
    (folder / "_CHECKPOINT_METADATA").write_text("{}")


def _array_folders(folder: Path) -> None:
    """Write what Paxml's manager wrote before OCDBT: a folder for each array."""
    for name in ARRAYS:
        array = folder / "state" / name
        array.mkdir(parents=True)
        description = {
            "zarr_format": 2,
            "shape": [4, 2],
            "chunks": [2, 2],
            "dtype": "<f4",
            "compressor": None,
        }
        (array / ".zarray").write_text(
            json.dumps({**description, "fill_value": None, "order": "C", "filters": None})
        )
        for chunk in ("0.0", "1.0"):
            (array / chunk).write_bytes(bytes(16))
    (folder / "metadata").mkdir()
    (folder / "metadata" / "metadata").write_text('{"version": 1.1}')


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _largest(folder: Path) -> Path:
    return max(
        (path for path in folder.rglob("d/*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )


@WITH_TENSORSTORE
@pytest.mark.parametrize("harm", [_cut, Path.unlink])
@pytest.mark.parametrize(
    ("write", "which"),
    [
        (_database, _largest),
        (_database, lambda folder: folder / "state" / "manifest.ocdbt"),
        (_database, lambda folder: folder / "state" / "_METADATA"),
        (_array_folders, lambda folder: folder / "state" / ARRAYS[0] / ".zarray"),
        (_array_folders, lambda folder: folder / "state" / ARRAYS[1] / "1.0"),
    ],
)
def test_the_damaged_file_is_named(
    tmp_path: Path,
    harm: Callable[[Path], None],
    write: Callable[[Path], None],
    which: Callable[[Path], Path],
) -> None:
    checkpoint = tmp_path / "checkpoint_20"
    write(checkpoint)
    assert find_damage(str(checkpoint)) is None
    assert find_damage(str(checkpoint), read_values=True) is None
    file = which(checkpoint)
    harm(file)
    damage = find_damage(str(checkpoint), read_values=True)
    assert damage is not None
    assert str(file).startswith(damage.file)


@pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "metadata/metadata", "rosetta.json"])
def test_metadata_that_is_cut_short(tmp_path: Path, name: str) -> None:
    _array_folders(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"version": ')
    damage = find_damage(str(tmp_path))
    assert damage is not None
    assert damage.file == str(tmp_path / name)


def test_a_missing_and_an_empty_folder_are_damaged(tmp_path: Path) -> None:
    assert find_damage(str(tmp_path / "checkpoint_1")) is not None
    (tmp_path / "checkpoint_1").mkdir()
    assert find_damage(str(tmp_path / "checkpoint_1")) is not None


@WITH_TENSORSTORE
@pytest.mark.parametrize("write", [_database, _array_folders])
def test_the_error_names_the_newest_complete_checkpoint(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    for name in (
        "checkpoint_00000010",
        "checkpoint_00000020",
        "checkpoint_00000030",
        "checkpoint_00000040",
    ):
        write(tmp_path / name)
    shutil.rmtree(tmp_path / "checkpoint_00000020" / "state")
    for file in (tmp_path / "checkpoint_00000030").rglob("*METADATA"):
        _cut(file)
    for file in (tmp_path / "checkpoint_00000030").rglob("metadata/metadata"):
        _cut(file)
    checkpoint = f"{tmp_path}/checkpoint_00000040"
    damage = checkpoint_files.Damage(f"{checkpoint}/state/d/ab", "the file is missing")
    line = str(explain_damage(checkpoint, damage, resumes=True))
    start = (
        f"{checkpoint}/state/d/ab: the file is missing, so checkpoint_00000040 can't be restored"
    )
    assert line.startswith(
        f"{start}; checkpoint_00000010 is complete; to resume from checkpoint_00000010"
    )
    assert f"mv {checkpoint} {tmp_path}/damaged_checkpoint_00000040" in line
    assert str(explain_damage(checkpoint, damage, resumes=False)).endswith(
        f"name {tmp_path}/checkpoint_00000010 instead"
    )
    shutil.rmtree(tmp_path / "checkpoint_00000010")
    assert "no earlier checkpoint is complete" in str(
        explain_damage(checkpoint, damage, resumes=True)
    )


def test_a_step_without_a_checkpoint(tmp_path: Path) -> None:
    _array_folders(tmp_path / "checkpoint_00000010")
    assert find_problem(str(tmp_path), 10) is None
    assert (
        find_problem(str(tmp_path), 20)
        == f"{tmp_path} has no checkpoint of step 20, its newest one is of step 10"
    )
