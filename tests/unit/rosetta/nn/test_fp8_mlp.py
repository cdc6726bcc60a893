"""The gated MLP in FP8 with its own kernels, against the one of XLA, and when it is chosen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "t5x.utils")

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as flax_partitioning
from jax.sharding import Mesh

from rosetta.core import log
from rosetta.nn import current_mesh, fp8_mlp, kernel_placement, mlp_kernels
from rosetta.t5x.layers import Mlp
from rosetta.t5x.run.model_config import T5Config
from tests.support import fp8_kernel_runs
from tests.support.fp8_kernel_gradients import RULES, VARIANTS

NAMES = ("batch", "length", "mlp")


@pytest.fixture(scope="module", params=["mlp", "biased mlp"])
def results(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The differences of an MLP from one without the kernels, for each variant."""
    return fp8_kernel_runs.compare_gradients(request.param)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "bfloat16"])
def test_same_as_without(results: dict[str, Any], variant: str) -> None:
    """Output, gradients and observed states are those of XLA's kernels on one device."""
    differences = results[variant]["differences"]
    assert {"output", "input gradient", "params/wo/kernel"} < set(differences)
    assert {name: value for name, value in differences.items() if not value <= 1e-5} == {}


def test_bfloat16_is_no_less_exact(results: dict[str, Any]) -> None:
    """XLA's route rounds the hidden features and their gradients to bfloat16 before FP8."""
    error, error_without = results["bfloat16"]["errors"]
    assert 0 < error <= error_without


@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels(results: dict[str, Any], variant: str) -> None:
    """There is a kernel for each pass. Rematerialisation repeats none, and no product."""
    assert results[variant]["kernels"] == 2
    assert results[variant]["plain kernels"] == 0


def make_mesh(*, platform: str = "gpu", capability: str = "9.0") -> Any:
    """Return a stand-in for a mesh of 2 x 2 devices."""
    device = SimpleNamespace(platform=platform, compute_capability=capability)
    return SimpleNamespace(
        devices=np.full((2, 2), device),
        shape={"data": 2, "model": 2},
        axis_names=("data", "model"),
    )


def choose(mesh: Any, shape: tuple[int, ...] = (8, 16, 64)) -> Any:
    """Return what `choose_placement` returns on a mesh."""
    with current_mesh.use_mesh(mesh), flax_partitioning.axis_rules(RULES):
        spec = kernel_placement.find_logical_axes(NAMES)
        return fp8_mlp.choose_placement(mlp_kernels.GEGLU, current_mesh.find_mesh(), shape, spec)


@pytest.mark.parametrize("capability", ["8.9", "9.0", "10.0", "12.0"])
def test_gpus_with_fp8(capability: str) -> None:
    """A GPU that has FP8 runs the kernels on each device's part."""
    mesh = make_mesh(capability=capability)
    placement, problem = choose(mesh)
    assert problem == ""
    assert placement == kernel_placement.Placement(mesh, (("data",), (), ("model",)))


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [
        pytest.param(make_mesh(capability="8.0"), (8, 16, 64), id="A100"),
        pytest.param(make_mesh(capability="gfx942"), (8, 16, 64), id="no NVIDIA GPU"),
        pytest.param(make_mesh(), (7, 16, 64), id="batch"),
        pytest.param(make_mesh(), (8, 16, 65), id="features"),
        pytest.param(make_mesh(), (8, 2, 64), id="rows of a device"),
        pytest.param(make_mesh(), (8, 16, 48), id="features of a device"),
        pytest.param(None, (8, 16, 64), id="no mesh"),
    ],
)
def test_not_chosen(mesh: Any, shape: tuple[int, ...]) -> None:
    """What the kernels cannot compute is left to XLA, with a reason."""
    placement, problem = choose(mesh, shape)
    assert placement is None
    assert problem


def count_kernels(*, keep_mask: Any = None, **settings: Any) -> int:
    """Return the kernels in the forward pass of an MLP on a mesh of one CPU."""
    sizes = {"emb_dim": 32, "mlp_dim": 64, "mlp_activations": ("gelu", "linear")}
    module = Mlp(T5Config(vocab_size=1, **{**sizes, "fp8": "xla", "fuse_mlp": True, **settings}))
    x = jnp.ones((2, 8, 32))
    variables = module.init(jax.random.key(0), x)
    mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    with current_mesh.use_mesh(mesh), flax_partitioning.axis_rules(RULES):
        return str(jax.make_jaxpr(module.apply)(variables, x, keep_mask)).count("name=geglu")


def test_cpu_by_default() -> None:
    """A CPU does not interpret the kernels unless it is asked to."""
    assert count_kernels() == 0
    assert count_kernels(fused_geglu=True) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"fp8": "off"},
        {"mlp_activations": ("silu", "linear")},
        {"fuse_mlp": False},
        {"keep_mask": np.ones((2, 64), bool), "dropout_rate": 0.5},
    ],
    ids=["without FP8", "another unit", "separate halves", "dropout"],
)
def test_other_mlps(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA computes other MLPs, and a line says why if the kernels are asked for."""
    lines: list[str] = []
    monkeypatch.setattr(log, "warn", lambda text, **_options: lines.append(text))
    assert count_kernels(**settings) == 0
    assert lines == []
    assert count_kernels(**settings, fused_geglu=True) == 0
    assert any("dropout" in line for line in lines) == ("keep_mask" in settings)
    assert lines
