from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rosetta.core import tensorflow_import
from tests.support import required_modules

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("startup_heavy", "startup_loaded"):
        (tmp_path / f"{name}.py").write_text("")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)


def test_what_is_missing_can_be_imported_afterwards() -> None:
    with tensorflow_import.hide_modules("startup_heavy"), pytest.raises(ImportError):
        importlib.import_module("startup_heavy")
    assert importlib.import_module("startup_heavy").__name__ == "startup_heavy"


def test_what_is_loaded_stays() -> None:
    loaded = importlib.import_module("startup_loaded")
    with tensorflow_import.hide_modules("startup_loaded"):
        assert importlib.import_module("startup_loaded") is loaded
    assert sys.modules["startup_loaded"] is loaded


def test_an_error_leaves_nothing_behind() -> None:
    with pytest.raises(KeyError), tensorflow_import.hide_modules("startup_heavy"):
        raise KeyError
    assert "startup_heavy" not in sys.modules


def test_tensorflow_comes_without_what_it_does_not_need() -> None:
    required_modules.need_modules("tensorflow")
    code = (
        "import sys; from rosetta.core import tensorflow_import as t; t.import_tensorflow(); "
        "import tensorflow; print([name for name in t.UNUSED_MODULES if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"
