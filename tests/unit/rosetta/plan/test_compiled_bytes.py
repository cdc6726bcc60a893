"""Small programs that XLA compiles for H100s that are not here: their bytes are counted by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax")

ROOT = Path(__file__).resolve().parents[4]
ROW = 512 * 128 * 2  # bytes of a layer in bfloat16
STACK = 64 * ROW
INDEX = 4


@pytest.fixture(scope="module")
def figures() -> Any:
    """What tests.support.compile_small_programs prints."""
    if not any(find_spec(name) for name in ("jax_cuda12_plugin", "jax_cuda13_plugin")):
        pytest.skip(
            "NOT CHECKED here: needs an environment for cuda12 or cuda13 "
            "(python build.py --distribution t5x --accelerator cuda13 --output env:DIR)"
        )
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.compile_small_programs"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("program", "moved"),
    [
        ("take_layer", ROW + INDEX + 2 * ROW),  # written in float32
        ("put_layer", ROW + INDEX + ROW),
        ("add", 3 * STACK),
        ("find_largest", STACK + 64 * 512 * 2),
    ],
)
def test_compiled_programs_move_these_bytes(figures: Any, program: str, moved: float) -> None:
    assert figures[program] == moved


def test_a_product_of_triton_hides_an_all_reduce(figures: Any) -> None:
    assert figures["overlap"] == {"products": ["fusion"], "behind": [1]}
