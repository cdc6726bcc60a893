"""What gin files bind; test_gin_comparison holds it equal to gin's own reading."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from rosetta.core.not_known import NOT_KNOWN
from rosetta.t5x.run import gin_files, gin_reader, network_fields, parameter_count
from rosetta.t5x.run.gin_text import Reference
from tests.support import required_modules, shipped_gin

CONFIG = network_fields.T5_CONFIG
ROOTS = [Path.cwd(), gin_files.ROOT]
DYNAMIC = "from __gin__ import dynamic_registration\n"


def _read(folder: Path, text: str, *, after: str = "") -> gin_reader.Configuration:
    """Read a user's file after a shipped one (as ROSETTA_GIN is), or alone."""
    (folder / "mine.gin").write_text(text)
    files = [shipped_gin.EXAMPLES / f"{after}.gin"] if after else []
    return gin_reader.read_configuration([*files, folder / "mine.gin"], [folder, gin_files.ROOT])


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("A = 1  # one = 2", "A", 1),
        ("A = %B\nB = %C\nC = 'x#y'", "A", "x#y"),
        ("A = [%B, {'b': %B}]\nB = -1", "A", [-1, {"b": -1}]),
        ("A = None", "A", None),
        ("A = (\n  1,\n  2,\n)", "A", (1, 2)),
        ("  A = 1", "A", 1),
        ("A = 1\ninclude 'other.gin'\n", "A", 2),
        ("include 'other.gin'\nA = 1\n", "A", 1),
        ('A = """\nA = 2\ninclude \'other.gin\'\n"""', "A", "\nA = 2\ninclude 'other.gin'\n"),
        ("A = %A", "A", NOT_KNOWN),
        ("A = %B", "A", NOT_KNOWN),
        ("A = %gin.REQUIRED", "A", NOT_KNOWN),
        ("A = 1\nB = @f(", "A", NOT_KNOWN),
        ("A = 1\ninclude 'nowhere.gin'", "A", NOT_KNOWN),
        ("A = 1\ninclude 'mine.gin'", "A", NOT_KNOWN),
    ],
)
def test_the_value_of_a_macro(tmp_path: Path, text: str, name: str, value: object) -> None:
    (tmp_path / "other.gin").write_text("A = 2\n")
    assert _read(tmp_path, text).value(name) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 6),
        ("from rosetta.t5x import network as net\nnet.T5Config.num_heads = 8", 8),
        ("import rosetta.t5x.network\nrosetta.t5x.network.T5Config.num_heads = 8", 8),
        ("from t5x.examples.t5 import network\nnetwork.T5Config.num_heads = 8", 8),
        ("from mine import network\nnetwork.T5Config.num_heads = 8", NOT_KNOWN),
        ("from mine import network\nnetwork.Config.num_heads = 8", NOT_KNOWN),
        ("from mine import network\nnetwork.T5Config.heads = 8", 6),
        ("from rosetta.t5x import network\ntrain/network.T5Config.num_heads = 8", NOT_KNOWN),
        ("from rosetta.t5x import network\nnetwork.T5Config.num_heads = @mine()", NOT_KNOWN),
    ],
)
def test_the_value_of_a_parameter(tmp_path: Path, text: str, value: object) -> None:
    configuration = _read(tmp_path, DYNAMIC + text, after="small_pile_pretrain")
    assert configuration.value(f"{CONFIG}.num_heads") == value
    assert network_fields.read_field(configuration, "num_heads") == value


def test_a_file_without_imports_names_configurables_by_their_end(tmp_path: Path) -> None:
    text = "T5Config.num_heads = 8\nnetwork.T5Config.mlp_dim = 16\nnowhere.T5Config.emb_dim = 1"
    configuration = _read(tmp_path, text, after="small_pile_pretrain")
    assert configuration.value(f"{CONFIG}.num_heads") == 8
    assert configuration.value(f"{CONFIG}.mlp_dim") == 16
    assert configuration.value(f"{CONFIG}.emb_dim") is NOT_KNOWN


@pytest.mark.parametrize(
    "text",
    [
        "MODEL = @mine.Model()",
        "model.EncoderDecoderModel.module = @mine.Network()",
        "network.Transformer.config = @mine.Config()",
        "network.Transformer.config = @wide/network.T5Config()",
        "train_script.train.model = @mine.Model()",
    ],
)
def test_the_fields_of_another_model_are_not_known(tmp_path: Path, text: str) -> None:
    imports = (
        "import mine\nimport __main__ as train_script\nfrom rosetta.t5x import model, network\n"
    )
    imports = imports.replace("model, network", "model\nfrom rosetta.t5x import network")
    configuration = _read(tmp_path, DYNAMIC + imports + text, after="small_pile_pretrain")
    assert configuration.value(f"{CONFIG}.num_heads") == 6
    assert network_fields.read_field(configuration, "num_heads") is NOT_KNOWN


def test_words_of_the_command_line_are_bound_last(tmp_path: Path) -> None:
    values: dict[str, Any] = {"TRAIN_STEPS": 5, "network.T5Config.num_heads": 2}
    configuration = _read(tmp_path, "TRAIN_STEPS = 7", after="small_pile_pretrain").bind(values)
    assert configuration.value("__main__.train.total_steps") == 5
    assert configuration.value(f"{CONFIG}.num_heads") == 2
    broken = _read(tmp_path, "TRAIN_STEPS = ", after="small_pile_pretrain").bind(values)
    assert broken.missing
    assert broken.value("TRAIN_STEPS") == 5
    assert broken.value("SAVE_PERIOD") is NOT_KNOWN


def test_a_listing_has_names_and_values_as_written(tmp_path: Path) -> None:
    text = DYNAMIC + (
        "from rosetta.t5x import network as net\nfrom mine import network\n"
        "net.T5Config.num_heads = 8  # more\nnetwork.T5Config.num_heads = 9\n"
    )
    listing = _read(tmp_path, text, after="small_pile_pretrain").listing()
    ours, mine = listing["network.T5Config.num_heads"], listing["mine.network.T5Config.num_heads"]
    assert (ours.text, ours.place) == ("8", f"{tmp_path}/mine.gin:4")
    assert mine.text == "9"
    assert listing["train/utils.DatasetConfig.split"].text == "'train'"


def test_a_reference_keeps_its_scope_and_whether_it_is_called(tmp_path: Path) -> None:
    text = DYNAMIC + "from rosetta.t5x import network as n\nA = [@n.f, @n.f(), @a/b/n.f()]\n"
    name = "rosetta.t5x.network.f"
    assert _read(tmp_path, text).value("A") == [
        Reference(name, called=False),
        Reference(name),
        Reference(name, scope="a/b"),
    ]


def test_a_run_is_built_with_the_values_that_are_read() -> None:
    required_modules.need_modules("jax", "flax", "t5x.train")
    from rosetta.t5x import gin_evaluation

    file = shipped_gin.EXAMPLES / "small_squad1_finetune_adam.gin"
    words = {
        "MODEL_DIR": "/m",
        "INITIAL_CHECKPOINT_PATH": "/m/checkpoint_1",
        "VOCAB": "ids:32128",
        "DATA": "synthetic",
        "EVAL_DATA": "synthetic",
    }
    read = gin_reader.read_configuration([file], ROOTS).bind(words)
    lines = [f"{name} = {value!r}" for name, value in words.items()]
    with gin_evaluation.arguments([str(file)], lines) as built:
        config = built["model"].module.config
        for field in ("num_heads", "mlp_dim", "vocab_size", "emb_dim", "num_encoder_layers"):
            assert network_fields.read_field(read, field) == getattr(config, field)
        data_set = built["train_dataset_cfg"]
        lengths = read.value("train/t5x.utils.DatasetConfig.task_feature_lengths")
        assert lengths == dict(data_set.task_feature_lengths)
        assert parameter_count.find_last_step(read, 1) == built["total_steps"]
        saving = built["checkpoint_cfg"].save
        for field in ("period", "keep", "dtype"):
            assert read.value(f"{parameter_count.SAVE_CONFIG}.{field}") == getattr(saving, field)


def test_the_configurables_of_our_files_are_different_objects() -> None:
    required_modules.need_modules("jax", "flax", "t5x.train")
    names = {
        name for path in _shipped() for name in gin_reader.read_configuration([path], ROOTS).shipped
    }
    objects = {name: _find_object(name) for name in names if not name.startswith("__main__.")}
    assert len(objects) > 40
    assert len({id(found) for found in objects.values()}) == len(objects)


def _shipped() -> list[Path]:
    return sorted((gin_files.ROOT / gin_files.GIN_FOLDER).rglob("*.gin"))


def _find_object(name: str) -> object:
    """Return a class, a function or a method by its name with its module."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return getattr(_find_object(module), attribute)
