"""A search with XLA's compiler: T5-tiny for two H100s that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rosetta.presets import preset_run
from tests.support import required_modules

required_modules.need_modules("jax", "t5x")

ROOT = Path(__file__).resolve().parents[4]
WORDS = ("plan", "t5x", "--size", "tiny", "--card", "h100", "--gpus", "2", "--search")
# Few settings, so that few steps are compiled.
FIXED = ("--inputs", "64", "--targets", "32", "--global-batch", "16", "--trials", "2")
LAYERS = ("--with", "remat=none", "scan_layers=false", "fp8=off")


def search(folder: Path) -> dict[str, object]:
    process = subprocess.run(
        [sys.executable, "-P", "-m", "rosetta", *WORDS, *FIXED, "--json", *LAYERS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    result: dict[str, object] = json.loads(process.stdout)["result"]
    return result


def test_a_search_answers_with_a_preset_and_continues(tmp_path: Path) -> None:
    if not any(find_spec(name) for name in ("jax_cuda12_plugin", "jax_cuda13_plugin")):
        pytest.skip(
            "NOT CHECKED here: needs an environment for cuda12 or cuda13 "
            "(python build.py --distribution t5x --accelerator cuda13 --output env:DIR)"
        )
    result = search(tmp_path)
    answer, compiled = result["answer"], result["compiled"]
    assert isinstance(answer, dict)
    assert isinstance(compiled, dict)
    assert (answer["verdict"], answer["whole"], answer["global_batch"]) == ("fits", True, 16)
    assert answer["peak"] > 0
    assert answer["seconds"]["fastest"] < answer["seconds"]["likely"]
    assert (compiled["steps"], compiled["now"]) == (2, 2)
    run = preset_run.describe_run(
        str(tmp_path / "t5x-tiny-2xh100.yaml"), accelerator="h100", settings={}, environment={}
    )
    assert run.nodes * run.gpus_per_node == 2
    assert (tmp_path / "t5x-tiny-2xh100.png").is_file()
    again = search(tmp_path)
    assert again["answer"] == answer
    assert isinstance(again["compiled"], dict)
    assert (again["compiled"]["steps"], again["compiled"]["now"]) == (2, 0)
