"""Hyper-parameters have the values that Python and Fiddle give them, or are not known here."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from rosetta.core.not_known import NOT_KNOWN
from rosetta.core.variables import readers
from rosetta.pax.run import (
    experiment_checks,
    fiddle_arguments,
    hyper_parameters,
    parameter_count,
    preflight,
    settings,
)
from rosetta.presets import combine_thresholds, pax_flags, preset_files, preset_run
from tests.support import required_modules

ROOT = Path(__file__).parents[5]
CHECKS = (experiment_checks, parameter_count, preflight, combine_thresholds, pax_flags)
PRESETS = [
    name
    for name in sorted(preset_files.load_presets())
    if preset_files.load_preset_chain(name)[0].name == "pax"
]
USERS = "tests.unit.rosetta.pax.run.users_experiments"


def _list_checked_names() -> set[str]:
    """Return the hyper-parameters that the checks before a run name."""
    found = set[str]()
    for module in CHECKS:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    # The check of FPROP_DTYPE runs in the trainer alone.
    return found & {*hyper_parameters.list_names(), *hyper_parameters._PAXML_DEFAULTS} - {
        "FPROP_DTYPE"
    }


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def test_the_nearest_class_states_it_with_its_line() -> None:
    known = hyper_parameters.resolve_values("Synthetic5B", {})
    expected = {
        "NUM_LAYERS": 24,
        "VOCAB_SIZE": 50304,
        "MAX_STEPS": 100,
        "ICI_MESH_SHAPE": (1, 8, 1),
        "USE_LORA": False,
        "ATTENTION": None,
        "ACTIVATION_CLS": NOT_KNOWN,
    }
    assert {name: known[name] for name in expected} == expected
    found = hyper_parameters.read_stated_values("Synthetic5B")
    for name in ("NUM_LAYERS", "VOCAB_SIZE", "MAX_STEPS", "USE_LORA"):
        file, _, line = found[name].place.partition(":")
        assert (ROOT / file).read_text().splitlines()[int(line) - 1].strip().startswith(name)
    assert hyper_parameters.read_stated_values("GPT5B") == hyper_parameters.read_stated_values(
        "Pile5B"
    ), "another name of it"
    assert hyper_parameters.read_stated_values(
        "rosetta.pax.configs.GPT5B"
    ) == hyper_parameters.read_stated_values("GPT5B")


@pytest.mark.parametrize("config", ["Own", "mine.GPT5B", "mine.configs.Pile126M", ""])
def test_a_users_experiment_states_nothing(config: str) -> None:
    assert hyper_parameters.read_stated_values(config) == {}
    assert hyper_parameters.resolve_values(config, {"NUM_LAYERS": "2"}) == {"NUM_LAYERS": 2}


@pytest.mark.parametrize("config", hyper_parameters.list_experiments())
def test_every_value_that_a_check_asks_for_is_known(config: str) -> None:
    known = hyper_parameters.resolve_values(config, {})
    asked = _list_checked_names()
    assert len(asked) > 20
    assert {name for name in asked if known.get(name) is NOT_KNOWN} == set()


def test_every_name_is_an_experiments() -> None:
    assert {"NUM_LAYERS", "NUM_KV_HEADS", "NUM_EXPERTS", "LORA_RANK", "DATA"} <= set(
        hyper_parameters.list_names()
    )


def test_the_experiments_are_those_of_the_module() -> None:
    required_modules.need_modules("paxml")
    from rosetta.pax import configs

    there = {
        name
        for name, found in vars(configs).items()
        if isinstance(found, type) and found.__module__ == configs.__name__
    }
    assert set(hyper_parameters.list_experiments()) == there


@pytest.mark.parametrize("config", hyper_parameters.list_experiments())
def test_stated_values_are_those_of_the_class(config: str) -> None:
    required_modules.need_modules("paxml")
    from rosetta.pax import configs

    experiment = getattr(configs, config)
    known = hyper_parameters.resolve_values(config, {})
    values = {name: value for name, value in known.items() if value is not NOT_KNOWN}
    assert len(values) > 40
    others = {
        name: (value, getattr(experiment, name))
        for name, value in values.items()
        if not _is_same(value, getattr(experiment, name))
    }
    assert others == {}
    missing = {
        name for name in _list_checked_names() if name not in known and hasattr(experiment, name)
    }
    assert missing == set()


def _differences(experiment: Any, hyper: dict[str, str], config: str) -> dict[str, Any]:
    """Return the values that are known before a run and other ones in it, as Fiddle sets them."""
    from fiddle._src.absl_flags import legacy_flags, utils

    words = [f"--fdl.{name}={text}" for name, text in hyper.items()]
    for word in legacy_flags.rewrite_fdl_args(words):
        utils.set_value(experiment, word.removeprefix("--fdl_set="))
    return {
        name: (value, getattr(experiment, name))
        for name, value in hyper_parameters.resolve_values(config, hyper).items()
        if value is not NOT_KNOWN and not _is_same(value, getattr(experiment, name))
    }


@pytest.mark.parametrize("accelerator", ["a100", "h100", "b200"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_the_run_the_values_that_are_read(
    name: str, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    required_modules.need_modules("paxml")
    from rosetta.pax import configs

    monkeypatch.setenv("ROSETTA_SITE", "")
    asked = {"fdl.CHECKPOINT_EVERY_N_STEPS": "20", "LEARNING_RATE": "1e-4"}
    asked |= (
        {} if preset_files.load_preset_chain(name)[-1].configs else {"CONFIG": "SyntheticLLaMA7B"}
    )
    run = preset_run.describe_run(name, accelerator=accelerator, settings=asked, environment={})
    variables = {**run.env, "SLURM_NTASKS": str(run.processes)}
    variables["SLURM_JOB_NUM_NODES"] = str(run.nodes)
    script = readers.COMMAND_SCRIPTS[f"pax {run.entry[-1]}"]
    given = settings.read_settings(script, [], variables, run.gpus_per_node)
    assert given.hyper["CHECKPOINT_EVERY_N_STEPS"] == "20"
    experiment = getattr(configs, given.config)()
    assert _differences(experiment, dict(given.hyper), given.config) == {}


WORDS = (
    "",
    "--fdl.NUM_LAYERS=2 --fdl.NUM_LAYERS=4",
    "--fdl.ICI_MESH_SHAPE=[1, 2, 1] --fdl.DCN_MESH_SHAPE=(1,1,1)",
    "--fdl.LEARNING_RATE=1e-3 --fdl.USE_LORA=true --fdl.USE_FP8=FALSE",
    "--fdl.DATA={'text:/a b/*.txt': 0.5, \"text:/c --d\": 1}",
    "--fdl.CHECKPOINT_IGNORE_RULES=['a b', \"c\"] --fdl.CHECKPOINT_IGNORE_RULES[0]='x'",
    "--fdl_set=MAX_STEPS=7 --fdl_set NUM_HEADS=2",
    "--fdl.MAX_STEPS=-1 --fdl.DIMS_PER_HEAD=None",
    "--fdl.VOCAB=/a/b.model --fdl.TEXT_FIELD='it\\'s'",
)


@pytest.mark.parametrize("text", WORDS)
@pytest.mark.parametrize("config", ["Synthetic5B", "LLaMA70B", "PileGLaM64B64E"])
def test_words_give_our_experiments_the_values_that_are_read(config: str, text: str) -> None:
    required_modules.need_modules("paxml")
    from rosetta.pax import configs

    hyper, _ = fiddle_arguments.split_arguments(text)
    assert _differences(getattr(configs, config)(), hyper, config) == {}


@pytest.mark.parametrize("text", WORDS)
@pytest.mark.parametrize("name", ["Synthetic126M", "Pile5B", "Computed", "Properties", "Fields"])
def test_words_give_users_experiments_the_values_that_are_read(name: str, text: str) -> None:
    required_modules.need_modules("paxml")
    from tests.unit.rosetta.pax.run import users_experiments

    hyper, _ = fiddle_arguments.split_arguments(text)
    config = f"{USERS}.{name}"
    assert _differences(getattr(users_experiments, name)(), hyper, config) == {}
    named = {fiddle_arguments.strip_part(name) for name in hyper}
    assert hyper_parameters.resolve_values(config, hyper).keys() == named
