"""rosetta reads gin files as gin does: shipped ones, users' ones, and ones made at random."""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from rosetta.commands import new
from rosetta.core.not_known import NOT_KNOWN
from rosetta.t5x.run import gin_files, gin_reader, gin_text
from tests.support import gin_comparison, gin_generator, required_modules, shipped_gin

required_modules.need_modules("gin")

if TYPE_CHECKING:
    from collections.abc import Sequence

SHIPPED = [
    *sorted((gin_files.ROOT / gin_files.GIN_FOLDER).rglob("*.gin")),
    *sorted(shipped_gin.OVERLAY.rglob("*.gin")),
]
USERS = Path(__file__).parent / "users_files"
# What a run's launcher binds after the files.
WORDS = {
    "MODEL_DIR": "/runs/a b",
    "TRAIN_STEPS": 100,
    "DATA": {"text:/a": 0.5, "text:/b": 0.5},
    "EVAL_DATA": None,
    "network.T5Config.dtype": "float32",
    "utils.CheckpointConfig.save": None,
}


def _compare(
    files: Sequence[Path], folder: Path, words: dict[str, Any] | None = None
) -> gin_comparison.Comparison:
    search = [folder, gin_files.ROOT]
    read = gin_reader.read_configuration(files, [Path.cwd(), *search]).bind(words or {})
    assert not read.missing
    lines = [f"{name} = {gin_text.format_literal(value)}" for name, value in (words or {}).items()]
    comparison = gin_comparison.compare_with_gin(read, files, search, lines)
    assert comparison.differences == {}
    return comparison


def _open(comparison: gin_comparison.Comparison) -> set[str]:
    """Return what gin binds and rosetta does not know, except for what is left to the user."""
    unset = {name for name, value in comparison.real.items() if value is NOT_KNOWN}
    return set(comparison.real) - comparison.known - unset


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_shipped_file_is_known_to_the_last_value(file: Path, tmp_path: Path) -> None:
    comparison = _compare([file], tmp_path)
    assert _open(comparison) == set()


@pytest.mark.parametrize(
    "file", sorted(shipped_gin.EXAMPLES.glob("*.gin")), ids=lambda file: file.stem
)
def test_a_run_of_the_scripts_is_known_to_the_last_value(file: Path, tmp_path: Path) -> None:
    comparison = _compare([file], tmp_path, WORDS)
    assert _open(comparison) == set()
    assert comparison.real["__main__.train.total_steps"] == 100
    assert comparison.real["rosetta.t5x.network.T5Config.dtype"] == "float32"


@pytest.mark.parametrize("run", ["eval", "infer"])
@pytest.mark.parametrize("family", ["t5_1_1", "mt5", "umt5", "byt5", "t5_1_0", "decoder_only"])
def test_evaluation_and_inference_are_known_to_the_last_value(
    run: str, family: str, tmp_path: Path
) -> None:
    names = (f"{family}/base", f"runs/{run}", "runs/task_squad1")
    files = [gin_files.ROOT / gin_files.GIN_FOLDER / f"{name}.gin" for name in names]
    assert _open(_compare(files, tmp_path, {"NUM_PARTITIONS": 2})) == set()


@pytest.mark.parametrize("family", new._FAMILIES)
def test_the_files_of_a_new_model(family: str, tmp_path: Path) -> None:
    given = Namespace(
        name="mine",
        size="base",
        family=family,
        vocab="byte",
        data="text:/data/*.txt",
        eval_data="text:/held/*.txt",
        inputs=512,
        targets=128,
        steps=1000,
        checkpoint=None,
        out=tmp_path,
    )
    new.write_files(given)
    comparison = _compare([tmp_path / "mine_base.gin"], tmp_path)
    # The module of its task could have any class of ours under a name of its own.
    assert {name.rpartition(".")[2] for name in _open(comparison)} <= {"vocabulary", "VOCABULARY"}
    assert comparison.real["rosetta.t5x.network.T5Config.vocab_size"] == 384


NEWLINES = {"as-written": ("\n", "  "), "crlf": ("\r\n", "  "), "tabs": ("\n", "\t")}


@pytest.mark.parametrize("style", NEWLINES)
@pytest.mark.parametrize("after", ["", "small_pile_pretrain", "small_squad1_finetune_adam"])
@pytest.mark.parametrize("name", sorted(path.name for path in USERS.glob("*.gin")))
def test_a_users_file_has_gins_values(
    name: str, after: str, style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "files"
    shutil.copytree(USERS, folder)
    monkeypatch.chdir(folder)
    ending, indentation = NEWLINES[style]
    for path in folder.rglob("*.gin"):
        text = path.read_text().replace("@FOLDER@", str(folder)).replace("\n  ", f"\n{indentation}")
        path.write_bytes(text.replace("\n", ending).encode())
    if name == "without_imports.gin" and not after:
        after = "tiny_pile_pretrain"  # gin knows no configurable by itself
    files = [shipped_gin.EXAMPLES / f"{after}.gin"] if after else []
    comparison = _compare([*files, folder / name], folder)
    assert comparison.known


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_files_made_at_random_have_gins_values(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reexporting.py").write_text(
        "from rosetta.t5x.network import SaveCheckpointConfig, T5Config, TransformerConfig\n"
        "Renamed = T5Config\n"
    )
    for number in range(seed, seed + 20):
        random = Random(number)  # noqa: S311 (none of it is secret)
        _compare_one([gin_generator.Generator(random, tmp_path).file()], tmp_path)


def _compare_one(files: Sequence[Path], folder: Path) -> None:
    read = gin_reader.read_configuration(files, [folder])
    try:
        comparison = gin_comparison.compare_with_gin(read, files, [folder])
    except SyntaxError:
        assert read.missing
    except (OSError, ValueError, LookupError, NameError, TypeError, RecursionError):
        return  # gin starts no run of it
    else:
        assert comparison.differences == {}
        assert not read.missing
