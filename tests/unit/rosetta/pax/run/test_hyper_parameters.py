from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rosetta.pax.run import hyper_parameters, preflight
from tests.support import required_modules

ROOT = Path(__file__).parents[5]


def test_the_nearest_class_states_it_with_its_line() -> None:
    found = hyper_parameters.read("Synthetic5B")
    assert {
        name: hyper_parameters.value(found, name)
        for name in ("NUM_LAYERS", "VOCAB_SIZE", "MAX_STEPS", "ICI_MESH_SHAPE", "USE_LORA")
    } == {
        "NUM_LAYERS": 24,
        "VOCAB_SIZE": 50304,
        "MAX_STEPS": 100,
        "ICI_MESH_SHAPE": (1, 8, 1),
        "USE_LORA": False,
    }
    for name in ("NUM_LAYERS", "VOCAB_SIZE", "MAX_STEPS", "USE_LORA"):
        file, _, line = found[name].place.partition(":")
        assert (ROOT / file).read_text().splitlines()[int(line) - 1].strip().startswith(name)
    assert hyper_parameters.read("GPT5B") == hyper_parameters.read("Pile5B"), "another name of it"


def test_what_is_none_of_ours_states_nothing() -> None:
    assert hyper_parameters.read("Own") == {}
    assert hyper_parameters.value({}, "NUM_LAYERS") is None


@pytest.mark.parametrize("config", preflight.names())
def test_what_is_read_is_what_the_class_has(config: str) -> None:
    required_modules.need("paxml")
    from rosetta.pax import configs

    read = hyper_parameters.read(config)
    assert len(read) > 50
    compared = 0
    for name, each in read.items():
        try:
            literal = ast.literal_eval(each.text)
        except ValueError:
            continue
        assert getattr(getattr(configs, config), name) == literal, name
        compared += 1
    assert compared > 40


def test_every_name_is_an_experiments() -> None:
    assert {"NUM_LAYERS", "NUM_KV_HEADS", "NUM_EXPERTS", "LORA_RANK", "DATA"} <= set(
        hyper_parameters.names()
    )
