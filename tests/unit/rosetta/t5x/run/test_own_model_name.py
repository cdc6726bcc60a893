from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rosetta.t5x.run import own_model_name
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_gets_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.py").write_text("")
    monkeypatch.chdir(tmp_path)
    resolved = own_model_name.resolve_model_name({"MODEL": "m.py:Mine"})
    assert resolved == f"{tmp_path}/m.py:Mine"
    assert own_model_name.split_model_name(resolved) == (f"{tmp_path}/m.py", "Mine")
    assert own_model_name.make_bindings({"MODEL": "a.b:Mine"}, "float32") == {
        "OWN_MODEL": "a.b:Mine",
        "DTYPE": "float32",
    }


def test_without_a_model_nothing_changes() -> None:
    variables = {"ATTENTION": "te", "T5_SIZE": "small"}
    assert own_model_name.resolve_model_name(variables) == ""
    assert own_model_name.make_bindings(variables, "float32") == {}
    assert own_model_name.replace_network_variables(variables) == variables


@pytest.mark.parametrize("name", ["mine", "mine:", ":Mine", "mine:not-a-name"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with errors.expect_user_error(errors.INVALID, where=f"MODEL={name}", value=name):
        own_model_name.resolve_model_name({"MODEL": name})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    name = f"{tmp_path}/m.py:Mine"
    with errors.expect_user_error(errors.MISSING, where=f"MODEL={name}"):
        own_model_name.resolve_model_name({"MODEL": name})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ENABLE_FP8", "1"),
        ("ATTENTION", "cudnn"),
        ("REMAT", "full"),
        ("SCAN_LAYERS", "1"),
        ("T5_SIZE", "small"),
        ("T5_FAMILY", "mt5"),
        ("OPTIMIZER", "adafactor"),
        ("PREC", "float16"),
        ("LORA_RANK", "8"),
        ("FREEZE", "encoder"),
        ("NUM_DECODES", "4"),
    ],
)
def test_settings_of_rosettas_networks_are_refused(variable: str, value: str) -> None:
    with errors.expect_user_error(errors.CONFLICT, where=f"{variable}={value}"):
        own_model_name.resolve_model_name({"MODEL": "a:Mine", variable: value})


@pytest.mark.parametrize(("variable", "value"), [("ENABLE_FP8", "0"), ("REMAT", "none")])
def test_settings_that_change_nothing_are_accepted(variable: str, value: str) -> None:
    assert own_model_name.resolve_model_name({"MODEL": "a:Mine", variable: value}) == "a:Mine"
