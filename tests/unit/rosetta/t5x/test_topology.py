"""One run on 4 devices with all there is, and its checkpoint on other numbers of them, of which 6 is no power of two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "t5x.utils")
ROOT = Path(__file__).parents[4]


def run_program(what: str, folder: Path) -> dict[str, Any]:
    """Return what tests/support/t5x_topologies.py prints.

    It needs a process of its own: the number of virtual devices is fixed once JAX runs.
    """
    flags = "--xla_force_host_platform_device_count=6 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = os.environ | {
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.t5x_topologies", what, str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    result: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What training comes to on each topology."""
    return run_program("all", tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("topology", ["one", "two"])
def test_a_checkpoint_of_four_devices_goes_on_elsewhere_with_the_same_loss(
    found: dict[str, Any], topology: str
) -> None:
    assert found["begun"][1] < found["begun"][0]
    assert found[topology] == pytest.approx(found["goes on"], rel=1e-5)


def test_fsdp_keeps_a_share_of_the_optimizers_state(found: dict[str, Any]) -> None:
    assert found["moments of one"] == 1
    assert found["moments"] == pytest.approx(
        1 / 4, rel=0.02
    )  # two groups, two shards of the model each


def test_fsdp_over_what_is_no_power_of_two(found: dict[str, Any]) -> None:
    """Of 6 devices each keeps half of the optimizer's state; what it saves goes on on one device."""
    assert found["moments of six"] == pytest.approx(1 / 2, rel=0.02)
    assert found["six"] == pytest.approx(found["one on another batch"], rel=1e-5)
    assert found["six once"] == pytest.approx(found["one on another batch"], rel=1e-5)
    assert found["one after six"] == pytest.approx(found["six goes on"], rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw_rms", "muon"])
def test_other_optimizers_resume_on_other_devices_too(
    found: dict[str, Any], optimizer: str
) -> None:
    losses = found[optimizer]
    assert losses["resumed"] == pytest.approx(losses["whole"], rel=1e-5)
    assert found[f"adamw to {optimizer}"] == errors.DIFFERS


def test_gradients_added_up_once_a_step_are_the_same(found: dict[str, Any]) -> None:
    assert found["float32"] == pytest.approx(found["goes on"], rel=1e-5)
    assert found["tensor"] == pytest.approx(found["goes on"], rel=1e-5)
    assert (
        found["apart float32"] < 1e-3
    )  # of steps of 0.01: Adam takes the whole step whatever the gradient's size


def test_gradients_in_bfloat16_are_rounded(found: dict[str, Any]) -> None:
    assert found["bfloat16"][0] == pytest.approx(
        found["goes on"][0], rel=1e-5
    )  # before the first update
    assert found["bfloat16"][1] == pytest.approx(found["goes on"][1], rel=1e-4)
    assert found["apart bfloat16"] > 10 * found["apart float32"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What training does to a part of the model, without and with GRADIENT_DTYPE=bfloat16."""
    return run_program("parts", tmp_path_factory.mktemp("parts"))


@pytest.mark.parametrize("name", ["frozen", "frozen, fp8", "adapters", "adapters, fp8"])
def test_parts_of_the_model_train_with_gradients_in_bfloat16(
    parts: dict[str, Any], name: str
) -> None:
    """The losses are almost those of float32 gradients, and frozen parameters do not change."""
    plain, rounded = parts[name]
    assert rounded["losses"][0] == pytest.approx(plain["losses"][0], rel=1e-5)
    assert rounded["losses"] == pytest.approx(plain["losses"], rel=5e-3)
    assert rounded["losses"] != plain["losses"]
    assert plain["losses"][-1] < plain["losses"][0]
    for run in (plain, rounded):
        assert run["frozen"] == 0
        assert run["trained"] > 0.01
