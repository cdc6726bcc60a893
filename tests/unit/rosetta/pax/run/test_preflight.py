"""Names of hyper-parameters, before Paxml is imported; the rest of the checks is tried by the scripts, in test_launch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from rosetta.core.errors import UserError
from rosetta.pax.run import hyper_parameters, preflight
from tests.support import required_modules


@pytest.fixture
def paxml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Paxml whose base class has one hyper-parameter of its own."""
    (tmp_path / "tasks" / "lm").mkdir(parents=True)
    (tmp_path / "tasks" / "lm" / "model_params.py").write_text(
        "class TransformerLmSpmdAdafactor:\n  SUMMARY_INTERVAL_STEPS = 100\n  PLAIN: int\nclass Another:\n  NUM_LAYER = 8\n"
    )
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda _: SimpleNamespace(submodule_search_locations=[str(tmp_path)]),
    )


@pytest.mark.usefixtures("paxml")
@pytest.mark.parametrize("config", ["Synthetic5B", "rosetta.pax.configs.Synthetic5B"])
def test_a_misspelt_name_gets_a_suggestion(config: str) -> None:
    preflight.check_hyper_parameter_names(
        config, ["NUM_LAYERS", "SUMMARY_INTERVAL_STEPS", "PLAIN", "USE_FP8", "train_programs"]
    )
    for name, near in (
        ("NUM_LAYRES", "NUM_LAYERS"),
        ("NUM_LAYER", "NUM_LAYERS"),
        ("SUMMARY_INTERVAL_STEP", "SUMMARY_INTERVAL_STEPS"),
        ("num_layers", "NUM_LAYERS"),
    ):
        with pytest.raises(UserError) as refused:
            preflight.check_hyper_parameter_names(config, ["MAX_STEPS", name])
        assert (
            str(refused.value)
            == f"--fdl.{name}: there is no such hyper-parameter; did you mean {near}?"
        )


@pytest.mark.usefixtures("paxml")
def test_the_names_of_a_users_experiment_are_not_checked() -> None:
    preflight.check_hyper_parameter_names("my.own.Experiment", ["ANYTHING"])


def test_names_are_not_checked_without_paxml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    preflight.check_hyper_parameter_names("Synthetic5B", ["NUM_LAYRES"])


def test_every_hyper_parameter_of_every_experiment_is_known() -> None:
    required_modules.need_modules("paxml")
    from rosetta.pax import configs

    for config in hyper_parameters.list_experiments():
        preflight.check_hyper_parameter_names(
            config,
            [
                name
                for name in dir(getattr(configs, config))
                if name.isupper() and name != "DIFFERENCES"
            ],
        )
