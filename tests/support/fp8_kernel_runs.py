"""Run what compares and compiles layers with the FP8 kernels, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import pytest

ROOT = Path(__file__).parents[2]
_FOUR_CPUS = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"


def compare_gradients(layer: str) -> dict[str, Any]:
    """Return what tests/support/fp8_kernel_gradients.py prints for a layer, for each variant."""
    return _run("fp8_kernel_gradients", layer, XLA_FLAGS=_FOUR_CPUS, JAX_PLATFORMS="cpu")


def compile_layer(layer: str, gpu: str, folder: Path) -> dict[str, Any]:
    """Return what tests/support/compile_fp8_kernels.py prints, for each mesh.

    Args:
        layer: The layer.
        gpu: The GPU.
        folder: Where XLA writes its PTX.
    """
    if not any(find_spec(name) for name in ("jax_cuda12_plugin", "jax_cuda13_plugin")):
        pytest.skip("NOT CHECKED here: needs an environment for cuda12 or cuda13")
    return _run("compile_fp8_kernels", layer, gpu, str(folder))


def _run(module: str, *words: str, **variables: str) -> dict[str, Any]:
    """Return what a module of tests.support prints in its last line, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.{module}", *words],
        cwd=ROOT,
        env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parsed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return parsed


def assert_no_spills(folder: Path, kernel: str, count: int) -> None:
    """Check that kernels need no memory for registers that do not fit (ptxas -v).

    Args:
        folder: Where XLA wrote its PTX.
        kernel: The start of the kernels' names.
        count: The fewest programs that the folder must have of them.
    """
    programs = [path for path in folder.glob("*.ptx") if f".entry {kernel}" in path.read_text()]
    assert len(programs) >= count
    ptxas = _find_ptxas()
    for program in programs:
        target = re.search(r"^\.target (\w+)", program.read_text(), re.MULTILINE)
        assert target
        command = [ptxas, "-v", f"-arch={target[1]}", "-o", os.devnull, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "0 bytes stack frame, 0 bytes spill stores" in done.stderr


def _find_ptxas() -> str:
    """Return the path of ptxas in the environment."""
    for package in Path(jax.__file__).parents[1].glob("nvidia/*/bin/ptxas"):
        return str(package)
    pytest.skip("NOT CHECKED here: needs ptxas, of the wheel nvidia-cuda-nvcc")
